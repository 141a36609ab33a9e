"use strict";
// A document on the page: what the model says, and for each side the trees of its beams and the chart.

const MOST_LABELS = 10;
const LEAST = 0.0005; // what is less is shown as 0.000

/** What is drawn of one side, and what is known of its constituents. */
class SideView {
  constructor(side, name, file, onChoose) {
    this.side = side;
    this.probabilities = new Map(side.chart.map(([start, end, value]) => [spanKey(start, end), value]));
    this.holders = new Map(); // the beams, from 1, that hold a constituent
    side.beams.forEach((beam, index) => {
      for (const [start, end] of beam.merges) {
        const key = spanKey(start, end);
        this.holders.set(key, [...(this.holders.get(key) ?? []), index + 1]);
      }
    });
    this.bySpan = new Map();
    this.byLeaf = side.tokens.map(() => []);
    const describe = (start, end) => this.describe(start, end);
    this.trees = side.beams.map((beam, index) => drawTree(side, beam,
      `Tree of beam ${index + 1}, probability ${probability(beam.probability)}`, describe));
    this.chart = drawChart(side, `Chart of ${name}: every constituent and its probability`, describe);
    for (const drawing of [...this.trees, this.chart]) this.#index(drawing);
    this.buttons = side.beams.map((_, index) => {
      const button = element("button", { type: "button" }, `Beam ${index + 1}`);
      button.addEventListener("click", () => onChoose(index));
      return button;
    });
    this.cards = this.trees.map((drawing, index) => this.#card(drawing, index, file));
    this.root = element("section", { class: "side", "aria-label": name },
      element("h3", {}, `${name[0].toUpperCase()}${name.slice(1)}: ${plural(side.tokens.length, "token")}, `
        + plural(side.beams.length, "tree")),
      element("div", { class: "beams" }, ...this.cards),
      element("figure", { class: "beam whole" },
        element("figcaption", {}, element("span", {}, "Chart: how probable each constituent is over all beams"),
          svgButton(this.chart, `${file}-chart`, "the chart")),
        element("div", { class: "scroll" }, this.chart)));
  }

  #index(drawing) {
    for (const group of drawing.querySelectorAll("[data-span]")) {
      const key = group.dataset.span;
      if (!this.bySpan.has(key)) this.bySpan.set(key, []);
      this.bySpan.get(key).push(group);
    }
    for (const leaf of drawing.querySelectorAll("[data-leaf]")) this.byLeaf[leaf.dataset.leaf].push(leaf);
  }

  #card(drawing, index, file) {
    const { probability: value, tree } = this.side.beams[index];
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--part", value);
    return element("figure", { class: "beam" },
      element("figcaption", {}, this.buttons[index], element("span", { class: "number" }, probability(value)), bar,
        svgButton(drawing, `${file}-beam-${index + 1}`, `beam ${index + 1}`)),
      element("div", { class: "scroll" }, drawing),
      element("details", {}, element("summary", {}, "With brackets"), element("code", {}, tree)));
  }

  describe(start, end) {
    const key = spanKey(start, end);
    const held = this.holders.get(key) ?? [];
    const beams = held.length
      ? `in ${held.length === 1 ? "beam" : "beams"} ${held.join(", ")} of ${this.side.beams.length}`
      : "in none of the beams shown";
    return `“${words(this.side.tokens, start, end)}” · span [${start}, ${end}) · `
      + `probability ${probability(this.probabilities.get(key) ?? 0)} · ${beams}`;
  }

  choose(beam) {
    this.beam = beam;
    this.chosen = new Map(this.side.beams[beam].merges.map(([start, end], order) => [spanKey(start, end), order]));
    this.cards.forEach((card, index) => card.classList.toggle("selected", index === beam));
    this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", index === beam));
  }

  /** Show the first merges of every beam, and in the chart those of the chosen one. */
  show(step) {
    for (const drawing of this.trees) showStep(drawing, step);
    for (const cell of this.chart.querySelectorAll(".cell")) {
      const order = this.chosen.get(cell.dataset.span);
      cell.classList.toggle("made", order < step); // no order, no merge: never
      cell.classList.toggle("newest", order === step - 1 && step < this.chosen.size);
    }
    if (step === 0 || !this.chosen.size) return "no merge yet";
    const [start, end] = this.side.beams[this.beam].merges[Math.min(step, this.chosen.size) - 1];
    return `makes “${words(this.side.tokens, start, end, 6)}”`;
  }

  /** Mark what the chosen tree has and the other one has not. */
  setApart(other) {
    for (const [key, groups] of this.bySpan) {
      const alone = Boolean(other) && this.chosen.has(key) && !other.chosen.has(key);
      for (const group of groups) {
        group.classList.toggle("alone", alone && (group.ownerSVGElement === this.trees[this.beam]
          || group.ownerSVGElement === this.chart));
      }
    }
  }

  light(start, end, on) {
    for (const group of this.bySpan.get(spanKey(start, end)) ?? []) group.classList.toggle("lit", on);
    for (const leaves of this.byLeaf.slice(start, end)) for (const leaf of leaves) leaf.classList.toggle("lit", on);
    const held = this.holders.get(spanKey(start, end)) ?? [];
    this.cards.forEach((card, index) => card.classList.toggle("holds", on && held.includes(index + 1)));
  }
}

/** A document: its heading, the labels, the sides. */
class Panel {
  constructor(content, onChange) {
    this.content = content;
    const file = fileName(content.model);
    this.sides = content.sides.map((side, index) => {
      const name = content.sides.length > 1 ? ["first text", "second text"][index] : null;
      return new SideView(side, name ?? "beams", name ? fileName(file, name) : file, (beam) => {
        this.sides[index].choose(beam);
        onChange();
      });
    });
    const json = element("button", { type: "button" }, "Download JSON");
    json.addEventListener("click", () => save(`${file}.json`, JSON.stringify(content, null, 2), "application/json"));
    this.root = element("article", { class: "panel", "aria-label": content.model },
      element("header", {}, element("h2", {}, content.model), json),
      ...content.sides.map((side) => element("p", { class: "text" }, side.text)),
      labels(content),
      ...(content.unknown.length
        ? [element("p", { class: "unknown" },
          `Unknown to the model, which reads them all as one word: ${content.unknown.join(", ")}`)]
        : []),
      ...this.sides.map((side) => side.root));
  }

  get steps() {
    return Math.max(...this.sides.map((side) => side.side.tokens.length - 1));
  }

  /** In words, for those who do not see the drawings. */
  get summary() {
    const { model, label, probabilities, sides } = this.content;
    const said = label === null
      ? "no label for one side of a pair alone"
      : `${label} (${probability(probabilities[label])})`;
    return `${model}: ${said}, ${sides.map((side) => plural(side.beams.length, "tree")).join(" and ")}.`;
  }
}

function labels({ label, probabilities }) {
  if (label === null) return element("p", {}, "One side of a pair alone has trees but no label.");
  const sorted = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const shown = sorted.slice(0, MOST_LABELS).filter(([name, value]) => name === label || value >= LEAST);
  const rows = shown.map(([name, value]) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--part", value);
    return element("li", { class: name === label ? "said" : null }, element("span", { class: "name" }, name), bar,
      element("span", { class: "number" }, probability(value)));
  });
  const others = sorted.length - shown.length;
  if (others) {
    const rest = sorted.slice(-others).reduce((sum, [, value]) => sum + value, 0);
    rows.push(element("li", { class: "others" }, `${plural(others, "other")}: ${probability(rest)}`));
  }
  return element("ol", { class: "labels", "aria-label": "Labels and their probabilities" }, ...rows);
}

function svgButton(drawing, name, what) {
  const button = element("button", { type: "button", class: "save", "aria-label": `Download ${what} as SVG` }, "SVG");
  button.addEventListener("click", () => save(`${name}.svg`, svgText(drawing), "image/svg+xml"));
  return button;
}
