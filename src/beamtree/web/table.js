// Reads the texts of a small file: lines, or a table with columns for the text, a second text and the label.

// The same names as in beamtree.data.tables.
const COLUMNS = {
  text: ["text", "sentence", "sentence1", "premise", "source"],
  second: ["text2", "sentence2", "second", "hypothesis"],
  label: ["label", "gold_label", "target", "sentiment"],
};
const MAX_BYTES = 1_000_000;

/** Read the rows {text, second, label} of a file. */
export async function readFile(file) {
  if (file.size > MAX_BYTES) {
    throw new Error(
      `${file.name} has ${file.size.toLocaleString("en")} bytes: the maximum is ${MAX_BYTES.toLocaleString("en")}.`,
    );
  }
  const rows = parseTable(await file.text(), file.name).map((row) => ({ ...row, text: withoutBrackets(row.text) }));
  if (!rows.length) throw new Error(`${file.name} has no text in it.`);
  return rows;
}

/** Remove the brackets of gold trees in ListOps files. */
const withoutBrackets = (text) => (/\[(MAX|MIN|MED|SM)\b/.test(text) ? text.replace(/[()]\s*/g, "").trim() : text);

export function parseTable(content, name) {
  const text = content.replace(/^\ufeff/, "");
  if (/\.jsonl?$/i.test(name))
    return text
      .split("\n")
      .filter((line) => line.trim())
      .map(fromJson);
  if (/\.txt$/i.test(name))
    return text
      .split(/\r?\n/)
      .filter((line) => line.trim())
      .map((line) => fromLine(line));
  const cells = /\.csv$/i.test(name) ? fromCsv(text) : text.split(/\r?\n/).map((line) => line.split("\t"));
  return fromCells(cells.filter((row) => row.some((cell) => cell.trim())));
}

function fromLine(line) {
  const [text, second = ""] = line.split("\t");
  return { text, second, label: null };
}

function fromJson(line, index) {
  let row;
  try {
    row = JSON.parse(line);
  } catch {
    throw new Error(`Line ${index + 1} is not JSON.`);
  }
  const value = (kind) => COLUMNS[kind].map((each) => row[each]).find((each) => each !== undefined) ?? null;
  const text = value("text");
  if (text === null) throw new Error(`Line ${index + 1} has no field "text".`);
  return {
    text: String(text),
    second: String(value("second") ?? ""),
    label: value("label") === null ? null : String(value("label")),
  };
}

function fromCells(cells) {
  if (!cells.length) return [];
  const heads = cells[0].map((cell) => cell.trim().toLowerCase());
  const column = (kind) => heads.findIndex((head) => COLUMNS[kind].includes(head));
  let columns = { text: column("text"), second: column("second"), label: column("label") };
  let rows = cells.slice(1);
  if (columns.text < 0) {
    // no header: the columns are text, label or text, text, label
    const count = cells[0].length;
    columns = { text: 0, second: count > 2 ? 1 : -1, label: count > 1 ? Math.min(count - 1, 2) : -1 };
    const letters = (place) => cells.reduce((sum, row) => sum + (row[place] ?? "").length, 0);
    if (count === 2 && letters(0) < letters(1)) columns = { text: 1, second: -1, label: 0 }; // as in ListOps files
    rows = cells;
  }
  return rows
    .map((row) => ({
      text: row[columns.text] ?? "",
      second: row[columns.second] ?? "",
      label: row[columns.label]?.trim() || null,
    }))
    .filter(({ text }) => text.trim());
}

/** The cells of a CSV file. Quoted cells may contain commas, line breaks and doubled quotes. */
function fromCsv(text) {
  const rows = [[]];
  const pattern = /("(?:[^"]|"")*"|[^,\r\n]*)(,|\r?\n|$)/g;
  for (const [, cell, end] of text.matchAll(pattern)) {
    rows.at(-1).push(cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell);
    if (end === "") break;
    if (end !== ",") rows.push([]);
  }
  return rows;
}
