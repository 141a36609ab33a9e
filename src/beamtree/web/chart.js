// The chart of a short text: the constituents of all beams in a triangle over the tokens. Darker is more probable.

import { MONO, drawn, element, measure, moveFocus, shortened, spanKey, within } from "./dom.js";

const FONT = `12px ${MONO}`;
const HEAT = [0.1, 0.25, 0.5, 0.75, 1];

export class ChartView {
  /** `on`: {point(key, side), choose(key, side)}. */
  constructor(side, label, on) {
    this.side = side;
    this.on = on;
    this.label = label;
    this.root = element("div", { class: "scroll chart-box", tabindex: -1 });
    this.size = null;
    new ResizeObserver(() => {
      const { clientWidth: width, clientHeight: height } = this.root;
      if (!width || (this.size?.width === width && this.size?.height === height)) return;
      this.size = { width, height };
      this.#draw();
    }).observe(this.root);
  }

  /** The column of a cell is the middle of its constituent; its row is the number of tokens, the whole text on top. */
  #draw() {
    const { tokens, size, chart } = this.side;
    const widths = tokens.map((token) => measure(token, FONT));
    const cell = within((this.size.width - 40) / size, 20, within(Math.max(...widths) + 12, 64, 84));
    const upright = widths.some((width) => width > cell - 4);
    const below = upright ? Math.min(Math.max(...widths), 120) + 14 : 24;
    const row = within((this.size.height - below - 70) / Math.max(size - 1, 1), 7, 44);
    const margin = 12;
    const bottom = 12 + (size - 1) * row;
    const width = Math.max(2 * margin + size * cell, 240);
    const height = bottom + below + 48;
    const at = (position) => margin + (this.side.rightToLeft ? size - position : position) * cell;
    const corners = [
      [margin, bottom],
      [margin + size * cell, bottom],
      [margin + (size * cell + cell) / 2, 12],
      [margin + (size * cell - cell) / 2, 12],
    ];
    const order = [...chart].sort((a, b) => a[1] - a[0] - (b[1] - b[0]) || a[0] - b[0]);
    this.cells = order.map(([start, end, value]) => {
      const x = (at(start) + at(end)) / 2 - cell / 2;
      const y = bottom - (end - start - 1) * row;
      const key = spanKey(start, end);
      const node =
        this.side.tree.bySpan.get(key) ?? this.side.beams.find(({ bySpan }) => bySpan.has(key))?.bySpan.get(key);
      const name = this.side.describe(node ?? { start, end, key, children: true });
      const group = drawn(
        "g",
        { class: "constituent cell", "data-span": key, role: "img", tabindex: -1, "aria-label": name },
        drawn("rect", {
          x: x + 0.5,
          y: y + 0.5,
          width: cell - 1,
          height: Math.max(row - 1, 3),
          rx: 2,
          class: "heat",
          "fill-opacity": Math.max(value, 0.05).toFixed(3),
        }),
      );
      if (cell >= 34 && row >= 15) {
        group.append(
          drawn(
            "text",
            {
              x: x + cell / 2,
              y: y + row / 2 + 4,
              "text-anchor": "middle",
              class: value > 0.5 ? "value on-dark" : "value",
            },
            value.toFixed(2),
          ),
        );
      }
      return group;
    });
    const labels = tokens.map((token, position) => {
      const x = (at(position) + at(position + 1)) / 2;
      const place = upright
        ? { transform: `translate(${x - 4} ${bottom + 8}) rotate(90)`, "text-anchor": "start" }
        : { x, y: bottom + 16, "text-anchor": "middle" };
      return drawn(
        "text",
        { ...place, class: "label", "data-leaf": position },
        shortened(token, upright ? 120 : cell, FONT),
      );
    });
    this.svg = drawn(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        class: "chart",
        role: "group",
        tabindex: -1,
        "aria-label": this.label,
      },
      drawn("polygon", { points: corners.join(" "), class: "triangle" }),
      ...this.cells,
      ...labels,
      heatLegend(margin, bottom + below + 8),
    );
    this.cells.at(-1)?.setAttribute("tabindex", 0);
    this.#listen(order);
    this.root.replaceChildren(this.svg);
    this.update();
    this.highlight(this.lit);
  }

  #listen(order) {
    const point = ({ target }) => this.on.point(target.closest?.("[data-span]")?.dataset.span ?? null, this.side);
    this.svg.addEventListener("pointerover", point);
    this.svg.addEventListener("pointerleave", () => this.on.point(null));
    this.svg.addEventListener("focusin", ({ target }) => {
      const cell = target.closest("[data-span]");
      if (cell) this.on.choose(cell.dataset.span, this.side);
    });
    this.svg.addEventListener("click", ({ target }) => {
      const cell = target.closest("[data-span]");
      if (cell) moveFocus(this.cells, cell);
    });
    this.svg.addEventListener("keydown", (event) => this.#walk(event, order));
  }

  /** Arrow keys: left and right to the adjacent constituent, up and down to the nearest longer and shorter one. */
  #walk(event, order) {
    const index = this.cells.indexOf(event.target);
    if (index < 0) return;
    const [start, end] = order[index];
    const nearest = (fits) =>
      order
        .map((other, place) => ({
          place,
          length: other[1] - other[0],
          away: Math.abs(other[0] + other[1] - start - end),
        }))
        .filter(({ length }) => fits(length - (end - start)))
        .sort((a, b) => Math.abs(a.length - end + start) - Math.abs(b.length - end + start) || a.away - b.away)[0]
        ?.place;
    const chosen = {
      ArrowLeft: () => index - 1,
      ArrowRight: () => index + 1,
      ArrowUp: () => nearest((more) => more > 0),
      ArrowDown: () => nearest((more) => more < 0),
      Home: () => 0,
      End: () => this.cells.length - 1,
    }[event.key];
    if (!chosen) return;
    event.preventDefault();
    event.stopPropagation();
    const cell = this.cells[chosen()];
    if (!cell) return;
    moveFocus(this.cells, cell);
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Outline the constituents of the chosen tree. */
  update() {
    for (const cell of this.cells ?? []) cell.classList.toggle("made", this.side.tree.bySpan.has(cell.dataset.span));
  }

  highlight(key) {
    this.lit = key;
    const [start, end] = key?.split("-").map(Number) ?? [0, 0];
    for (const cell of this.cells ?? []) cell.classList.toggle("lit", cell.dataset.span === key);
    for (const label of this.svg?.querySelectorAll("[data-leaf]") ?? []) {
      label.classList.toggle("lit", label.dataset.leaf >= start && label.dataset.leaf < end);
    }
  }
}

function heatLegend(x, y) {
  const group = drawn("g", { "aria-hidden": "true" });
  HEAT.forEach((value, index) => {
    const left = x + index * 42;
    group.append(
      drawn("rect", { x: left, y, width: 41, height: 8, class: "heat", "fill-opacity": value }),
      drawn("text", { x: left + 20, y: y + 22, "text-anchor": "middle", class: "label" }, String(value)),
    );
  });
  return group;
}
