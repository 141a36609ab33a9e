// The texts of a small file: lines, or a table with columns for the text, a second one and the label.

// As beamtree.data.tables names the columns.
const COLUMNS = {
  text: ["text", "sentence", "sentence1", "premise", "source"],
  second: ["text2", "sentence2", "second", "hypothesis"],
  label: ["label", "gold_label", "target", "sentiment"],
};
const MOST_BYTES = 1_000_000;

/** The rows {text, second, label} of a file that was chosen. */
export async function readFile(file) {
  if (file.size > MOST_BYTES) {
    throw new Error(
      `${file.name} has ${file.size.toLocaleString("en")} bytes: ${MOST_BYTES.toLocaleString("en")} are the most.`,
    );
  }
  const rows = parseTable(await file.text(), file.name).map((row) => ({ ...row, text: withoutBrackets(row.text) }));
  if (!rows.length) throw new Error(`${file.name} has no text in it.`);
  return rows;
}

/** Files of ListOps hold gold trees as brackets around the expression's own. */
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
    // no header: text, label or text, text, label
    const count = cells[0].length;
    columns = { text: 0, second: count > 2 ? 1 : -1, label: count > 1 ? Math.min(count - 1, 2) : -1 };
    const letters = (place) => cells.reduce((sum, row) => sum + (row[place] ?? "").length, 0);
    if (count === 2 && letters(0) < letters(1)) columns = { text: 1, second: -1, label: 0 }; // files of ListOps
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

/** Cells of a CSV file; quoted ones may hold commas, line ends and doubled quotes. */
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
