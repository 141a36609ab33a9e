// The chart of a long text: each constituent is a bar over its tokens. Its height is its number of tokens on a
// logarithmic scale; darker bars are more probable. The cells of a triangle over 500 tokens would be too small to see.

import { d3 } from "./vendor/d3.js";
import { MONO, element, isPhone, plural, shortened, spanKey, within } from "./dom.js";

const LEFT = 44;
const BOTTOM = 46;
const TOP = 14;
const THICK = 6;

export class SkylineView {
  /** `on`: {point(key, side), choose(key, side)}. */
  constructor(side, label, on) {
    this.side = side;
    this.on = on;
    this.spans = side.chart
      .map(([start, end, value]) => ({ start, end, value, key: spanKey(start, end) }))
      .sort((a, b) => a.start - b.start || b.end - a.end);
    this.current = this.spans.findIndex(({ start, end }) => end - start === side.size);
    this.transform = d3.zoomIdentity;
    this.canvas = element("canvas", {
      class: "skyline",
      tabindex: 0,
      role: "img",
      "aria-label":
        `${label}: ${plural(this.spans.length, "constituent")} over ${plural(side.size, "token")}; ` +
        "use the left and right arrow keys to move between them",
    });
    this.root = element("div", { class: "canvas" }, this.canvas);
    this.zoom = d3
      .zoom()
      .scaleExtent([1, Math.max(side.size / 12, 1)])
      .filter((event) => (event.type === "wheel" ? !isPhone() || event.ctrlKey : !event.button))
      .on("zoom", ({ transform }) => {
        this.transform = transform;
        this.#later();
      });
    d3.select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("pointermove", (event) => this.on.point(this.#at(event)?.key ?? null, side));
    this.canvas.addEventListener("pointerleave", () => this.on.point(null));
    this.canvas.addEventListener("click", (event) => this.#choose(this.spans.indexOf(this.#at(event))));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#later());
    new ResizeObserver(() => this.#resized()).observe(this.root);
  }

  #resized() {
    const { clientWidth: width, clientHeight: height } = this.root;
    if (!width || !height) return;
    this.size = { width, height };
    this.zoom
      .extent([
        [LEFT, 0],
        [width, height],
      ])
      .translateExtent([
        [LEFT, 0],
        [width, height],
      ]);
    this.y = d3
      .scaleLog()
      .domain([2, this.side.size])
      .range([height - BOTTOM - THICK, TOP]);
    this.#later();
  }

  get x() {
    const range = this.side.rightToLeft ? [this.size.width - 8, LEFT] : [LEFT, this.size.width - 8];
    return this.transform.rescaleX(d3.scaleLinear().domain([0, this.side.size]).range(range));
  }

  #later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#paint();
    });
  }

  #paint() {
    if (!this.size) return;
    const { width, height } = this.size;
    const density = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * density) || this.canvas.height !== Math.round(height * density)) {
      [this.canvas.width, this.canvas.height] = [Math.round(width * density), Math.round(height * density)];
    }
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const context = this.canvas.getContext("2d");
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${MONO}`;
    const { x, y } = this;
    this.#paintAxes(context, color, x, y);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    const made = this.side.tree.bySpan;
    for (const span of this.spans) {
      const [from, to] = [x(span.start), x(span.end)].sort((a, b) => a - b);
      if (to < LEFT || from > width) continue;
      const isLit = span.key === this.lit;
      context.globalAlpha = isLit ? 1 : within(span.value, 0.12, 1);
      context.fillStyle = color(isLit ? "lit" : made.has(span.key) ? "tree" : "faint");
      context.fillRect(from + 0.5, y(span.end - span.start), Math.max(to - from - 1, 1), isLit ? THICK + 2 : THICK);
    }
    context.globalAlpha = 1;
    this.#paintTokens(context, color, x);
    context.restore();
  }

  #paintAxes(context, color, x, y) {
    context.fillStyle = color("faint");
    context.strokeStyle = color("line");
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const length of [2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000].filter((each) => each <= this.side.size)) {
      const at = Math.round(y(length) + THICK / 2) + 0.5;
      context.globalAlpha = 0.5;
      context.beginPath();
      context.moveTo(LEFT, at);
      context.lineTo(this.size.width, at);
      context.stroke();
      context.globalAlpha = 1;
      context.fillText(String(length), LEFT - 8, at + 4);
    }
    context.textAlign = "center";
    for (const position of x.ticks(Math.max(this.size.width / 120, 2)).filter(Number.isInteger)) {
      const at = x(position);
      if (at >= LEFT) context.fillText(String(position), at, this.size.height - 8);
    }
  }

  /** Draw the tokens if they fit, otherwise a line. */
  #paintTokens(context, color, x) {
    const room = Math.abs(x(1) - x(0));
    const line = this.size.height - BOTTOM + 18;
    context.fillStyle = color("ink");
    if (room < 26) {
      context.globalAlpha = 0.4;
      context.fillRect(Math.min(x(0), x(this.side.size)), line - 6, Math.abs(x(this.side.size) - x(0)), 2);
      context.globalAlpha = 1;
      return;
    }
    const [first, last] = [x.invert(LEFT), x.invert(this.size.width)].sort((a, b) => a - b);
    for (let position = Math.max(Math.floor(first), 0); position < Math.min(last, this.side.size); position++) {
      context.fillText(
        shortened(this.side.tokens[position], room - 4, context.font),
        (x(position) + x(position + 1)) / 2,
        line,
      );
    }
  }

  /** The bar under the pointer, or the nearest one above or below it. */
  #at({ offsetX, offsetY }) {
    if (!this.size) return null;
    const position = this.x.invert(offsetX);
    let best = null;
    for (const span of this.spans) {
      if (position < span.start || position > span.end) continue;
      const away = Math.abs(this.y(span.end - span.start) + THICK / 2 - offsetY);
      if (away < (best?.away ?? 14)) best = { span, away };
    }
    return best?.span ?? null;
  }

  #choose(index) {
    if (index < 0 || index >= this.spans.length) return;
    this.current = index;
    this.on.choose(this.spans[index].key, this.side);
  }

  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const factor = { "+": 1.3, "=": 1.3, "-": 1 / 1.3 }[event.key];
    if (by) this.#choose(this.current + by);
    else if (factor) this.zoomBy(factor);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  zoomBy(factor) {
    d3.select(this.canvas).call(this.zoom.scaleBy, factor);
  }
  fit() {
    d3.select(this.canvas).call(this.zoom.transform, d3.zoomIdentity);
  }
  update() {
    this.#later();
  }

  highlight(key) {
    this.lit = key;
    this.#later();
  }
}
