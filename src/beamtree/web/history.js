// The history of parsed texts, stored only in this browser.

import { button, byId, element, words } from "./dom.js";

const KEY = "beamtree.history";
const MAX_ENTRIES = 30;

const isEntry = (entry) => typeof entry?.model === "string" && typeof entry.text === "string";

function load() {
  try {
    // the browser may forbid storage, and the stored value may be invalid
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter(isEntry) : [];
  } catch {
    return [];
  }
}

function store(entries) {
  try {
    localStorage.setItem(KEY, JSON.stringify(entries));
  } catch {
    /* storage is full or forbidden: no history */
  }
}

const isSame = (a, b) => a.model === b.model && a.text === b.text && (a.second ?? "") === (b.second ?? "");

export class History {
  /** `onChoose` is called with an entry {model, text, second, label}. */
  constructor(onChoose) {
    this.onChoose = onChoose;
    byId("forget").addEventListener("click", () => {
      store([]);
      byId("history-menu").open = false;
      this.show();
    });
    this.show();
  }

  add(entry) {
    store([entry, ...load().filter((other) => !isSame(other, entry))].slice(0, MAX_ENTRIES));
    this.show();
  }

  show() {
    const entries = load();
    byId("history-menu").hidden = !entries.length;
    byId("history").replaceChildren(
      ...entries.map((entry) => {
        const text = [entry.text, entry.second]
          .filter(Boolean)
          .map((each) => words(each.split(/\s+/), 0, each.split(/\s+/).length, 12));
        const made = button(
          "",
          () => {
            byId("history-menu").open = false;
            this.onChoose(entry);
          },
          { class: "entry" },
        );
        made.append(
          element("span", { class: "entry-text", dir: "auto" }, text.join(" | ")),
          element("span", { class: "entry-model" }, entry.label ? `${entry.model}: ${entry.label}` : entry.model),
        );
        return element("li", {}, made);
      }),
    );
  }
}
