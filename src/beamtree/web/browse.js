// The texts of a file as a list with their predicted labels, with filters for wrong and for uncertain answers.

import { explain, fetchDocument } from "./api.js";
import { button, byId, element, plural, probability, words } from "./dom.js";
import { readFile } from "./table.js";

const MAX_TEXTS = 200; // per file
const SURE = 0.7; // answers with a lower probability are uncertain
const AT_ONCE = 2; // concurrent requests

export class Browser {
  /** `on`: {choose(row), model() → the chosen model, showError(message)}. */
  constructor(on) {
    this.on = on;
    this.rows = [];
    this.filter = "all";
    byId("file").addEventListener("change", async ({ target }) => {
      const [file] = target.files;
      target.value = ""; // so that choosing the same file again is a change
      if (file) await this.open(file);
    });
    byId("close-file").addEventListener("click", () => this.close());
    for (const each of document.querySelectorAll("[data-filter]")) {
      each.addEventListener("click", () => this.#choose(each.dataset.filter));
    }
    byId("items").addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const all = [...byId("items").querySelectorAll("button")];
      const next = all[all.indexOf(event.target) + by];
      if (!next) return;
      event.preventDefault();
      next.focus();
    });
  }

  async open(file) {
    try {
      const rows = await readFile(file);
      this.left = Math.max(rows.length - MAX_TEXTS, 0);
      this.rows = rows.slice(0, MAX_TEXTS);
    } catch (error) {
      this.on.showError(error.message);
      return;
    }
    byId("file-name").textContent = file.name;
    byId("browse").hidden = false;
    document.body.classList.add("browsing");
    this.#choose("all");
    await this.read();
  }

  close() {
    this.asking?.abort();
    this.rows = [];
    byId("browse").hidden = true;
    document.body.classList.remove("browsing");
    byId("file").focus();
  }

  /** Parse all rows with the chosen model. */
  async read() {
    if (!this.rows.length) return;
    this.asking?.abort();
    const { signal } = (this.asking = new AbortController());
    const model = this.on.model();
    for (const row of this.rows) Object.assign(row, { answer: null, error: null });
    const waiting = [...this.rows];
    const work = async () => {
      for (let row = waiting.shift(); row && !signal.aborted; row = waiting.shift()) {
        try {
          row.answer = answered(await fetchDocument(asked(row, model), signal), row);
        } catch (error) {
          if (signal.aborted) return;
          row.error = explain(error);
        }
        this.#show();
      }
    };
    this.#show();
    await Promise.all(Array.from({ length: AT_ONCE }, work));
  }

  #choose(filter) {
    this.filter = filter;
    for (const each of document.querySelectorAll("[data-filter]"))
      each.setAttribute("aria-pressed", each.dataset.filter === filter);
    this.#show();
  }

  #matches(row, filter) {
    return filter === "all" || Boolean(row.answer?.[filter]);
  }

  #show() {
    const done = this.rows.filter(({ answer, error }) => answer || error).length;
    for (const each of document.querySelectorAll("[data-filter]")) {
      const count = this.rows.filter((row) => this.#matches(row, each.dataset.filter)).length;
      each.textContent = `${each.dataset.filter[0].toUpperCase()}${each.dataset.filter.slice(1)} ${count}`;
    }
    const rest = this.left ? ` The file has ${this.left} more.` : "";
    byId("file-progress").textContent =
      done < this.rows.length
        ? `${done} of ${plural(this.rows.length, "text")} parsed …`
        : `${plural(this.rows.length, "text")}; uncertain: below ${SURE}.${rest}`;
    const focused = byId("items").contains(document.activeElement) ? document.activeElement.dataset.row : null;
    byId("items").replaceChildren(
      ...this.rows.flatMap((row, index) =>
        this.#matches(row, this.filter) ? [element("li", {}, this.#item(row, index))] : [],
      ),
    );
    if (focused) byId("items").querySelector(`[data-row="${focused}"]`)?.focus({ preventScroll: true });
  }

  #item(row, index) {
    const { answer, error } = row;
    const made = button("", () => this.on.choose(row), { class: "entry", "data-row": index });
    const text = row.text.split(/\s+/);
    const said =
      error ??
      (answer
        ? `${answer.label ?? "no label"}${answer.label ? ` ${probability(answer.probability)}` : ""}` +
          `${answer.expected !== null && answer.wrong ? ` ≠ ${answer.expected}` : ""}`
        : "…");
    made.classList.toggle("wrong", Boolean(answer?.wrong || error));
    made.append(
      element("span", { class: "entry-text", dir: "auto" }, words(text, 0, text.length, 14)),
      element("span", { class: "entry-model" }, said),
    );
    return made;
  }
}

const asked = (row, model) => ({
  model: model.name,
  text: row.text,
  ...(model.pair && row.second && { second: row.second }),
});

/** The part of a document that the list shows. A label in the file is a name or an index. */
function answered(content, row) {
  const { label, labels } = content;
  const given = row.label === null || labels.includes(row.label) ? row.label : (labels[Number(row.label)] ?? row.label);
  const expected = given ?? content.sides[0].beams[0].constituents.at(-1).expected ?? null;
  const value = label === null ? 1 : content.probabilities[label];
  return {
    label,
    probability: value,
    expected,
    wrong: label !== null && expected !== null && label !== expected,
    uncertain: value < SURE,
  };
}
