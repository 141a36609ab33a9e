// The large tree of the chosen beam, with zoom and pan, collapsible subtrees, and navigation by pointer and keys. Of
// two trees over the same tokens, one is drawn above the tokens and one below. Only visible nodes are in the document.

import { Camera, LARGEST, READABLE } from "./camera.js";
import { drawn, within } from "./dom.js";
import { collapsedAtFirst, edge, expand, layOut } from "./layout.js";
import { TOKEN_ROW, drawBelow, drawNode } from "./marks.js";
import { Minimap } from "./minimap.js";
import { walk } from "./walk.js";

const MARGIN = 22;
const TOKENS_FROM = 0.3; // minimum scale at which tokens are drawn
const MAX_NODES = 600; // drawn individually; the others are drawn as a single path without labels

export class TreeView {
  /** `parts`: one side, or the same side of two models. `on`: {point(key, side), choose(key, side), collapsed()}. */
  constructor(parts, label, on) {
    this.parts = parts;
    this.on = on;
    this.step = null;
    this.current = null; // "part:span" of the node that Tab reaches
    this.lit = null;
    this.drawn = new Map(); // "part:span" → its group
    this.edges = new Map();
    this.many = drawn("path", { class: "edge many" });
    this.band = drawn("rect", { class: "band", rx: 8 });
    this.edgeLayer = drawn("g", { class: "edges", "aria-hidden": "true" }, this.many);
    this.nodeLayer = drawn("g", { class: "nodes", role: "tree", "aria-label": label });
    this.world = drawn("g", {}, this.band, this.edgeLayer, this.nodeLayer);
    this.svg = drawn("svg", { class: "tree", tabindex: -1 }, this.world); // otherwise Tab stops at it in Chromium
    this.root = document.createElement("div");
    this.root.className = "canvas";
    this.minimap = new Minimap((x, y) => this.camera.centre(x, y));
    this.root.append(this.svg, this.minimap.root);
    this.collapsed = new Set();
    this.camera = new Camera(this.svg, this.world, {
      onMove: () => this.#renderSoon(),
      isLarge: () => this.minimap.isShown,
    });
    this.#listen();
    new ResizeObserver(() => this.#resized()).observe(this.root);
  }

  get #trees() {
    return this.parts.map((side) => side.tree);
  }
  static sign = (part) => (part === 0 ? 1 : -1);

  /** Lay out and draw the chosen beams again, after another was chosen or a constituent collapsed. */
  update() {
    if (!this.size) return;
    const layOutAll = (scale) =>
      this.parts.map((side, part) =>
        layOut(
          side,
          side.tree,
          this.collapsed,
          (this.size.height / scale - 2 * MARGIN - TOKEN_ROW) / this.parts.length,
          TreeView.sign(part),
        ),
      );
    // The width determines the scale, and the scale determines the distance between levels.
    this.layouts = layOutAll(within(this.size.width / (layOutAll(1)[0].width + 2 * MARGIN), READABLE, LARGEST));
    const [upper, lower] = this.layouts;
    if (lower) for (const place of lower.places.values()) place.y += TOKEN_ROW;
    this.bounds = {
      left: -MARGIN,
      top: -upper.height - MARGIN,
      right: upper.width + MARGIN,
      bottom: TOKEN_ROW + (lower?.height ?? 0) + MARGIN,
    };
    this.camera.setScene(this.bounds, this.size);
    const hadFocus = this.nodeLayer.contains(document.activeElement);
    for (const group of this.drawn.values()) group.remove();
    for (const path of this.edges.values()) path.remove();
    this.drawn.clear();
    this.edges.clear();
    if (!this.#place(this.current)) this.current = `0:${this.parts[0].tree.root.key}`;
    this.minimap.draw(this.layouts, this.bounds);
    // Place the map in the corner where the tree is lowest.
    const root = upper.places.get(this.parts[0].tree.root.key);
    this.minimap.root.classList.toggle("left", root.x > upper.width / 2);
    this.#render();
    this.highlight(this.lit);
    if (hadFocus) this.drawn.get(this.current).focus({ preventScroll: true });
  }

  /** Fit the whole tree to the view; with `whole` false, a long tree stays readable, and the view shows its start. */
  fit(whole = true, isQuick = false) {
    this.camera.fit({ whole, isQuick, fromRight: this.parts[0].rightToLeft, inMiddle: this.parts.length > 1 });
  }

  zoomBy(factor) {
    this.camera.zoomBy(factor);
  }

  #renderSoon() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.#render();
    });
  }

  #resized() {
    const { clientWidth: width, clientHeight: height } = this.root;
    if (!width || !height) return;
    if (!this.size) this.collapsed = collapsedAtFirst(this.parts, width / READABLE);
    this.size = { width, height };
    this.update();
    if (!this.camera.isMoved) this.fit(false, true);
    this.on.collapsed();
  }

  #place(id) {
    const [part, key] = id?.split(":") ?? [];
    return this.layouts?.[part]?.places.get(key);
  }

  /** The visible nodes in reading order, parents before their children. */
  #visible() {
    const view = this.camera.view(80);
    return this.layouts.flatMap(({ places }, part) => {
      const sign = TreeView.sign(part);
      const found = [];
      for (const place of places.values()) {
        if (place.to < view.left || place.from > view.right) continue;
        if (part > 0 && !place.node.children) continue; // the tokens are drawn only once
        const end = sign > 0 ? TOKEN_ROW : 0;
        if (Math.max(place.y, end) < view.top || Math.min(place.y, end) > view.bottom) continue;
        found.push({ id: `${part}:${place.node.key}`, place, part, sign });
      }
      return found.sort(({ place: { node: a } }, { place: { node: b } }) => a.start - b.start || b.end - a.end);
    });
  }

  #render() {
    if (!this.layouts) return;
    let visible = this.#visible();
    if (this.camera.transform.k < TOKENS_FROM) visible = visible.filter(({ place }) => place.node.children);
    let rest = [];
    if (visible.length > MAX_NODES) {
      const order = [...visible].sort((a, b) => b.place.to - b.place.from - (a.place.to - a.place.from));
      const kept = new Set(order.slice(0, MAX_NODES / 2));
      rest = visible.filter((each) => !kept.has(each) && each.place.children);
      visible = visible.filter((each) => kept.has(each));
    }
    const focus = this.#place(this.current);
    const [part] = this.current.split(":").map(Number);
    if (focus && !visible.some(({ id }) => id === this.current)) {
      visible.push({ id: this.current, place: focus, part, sign: TreeView.sign(part) });
    }
    this.many.setAttribute("d", rest.map(({ place, sign }) => edge(place, sign)).join(""));
    const made = visible.map((each) => ({ ...each, group: this.drawn.get(each.id) ?? this.#draw(each) }));
    const kept = new Set(made.map(({ id }) => id));
    for (const [id, group] of this.drawn) {
      if (kept.has(id)) continue;
      group.remove();
      this.edges.get(id)?.remove();
      this.drawn.delete(id);
      this.edges.delete(id);
    }
    const focused = this.nodeLayer.contains(document.activeElement) ? document.activeElement : null;
    let next = this.nodeLayer.firstChild;
    for (const { group } of made) {
      if (group === next) next = next.nextSibling;
      else this.nodeLayer.insertBefore(group, next);
    }
    if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true }); // lost by moving
    this.minimap.move(this.camera.transform, this.size);
    this.svg.classList.toggle("movable", this.minimap.isShown);
  }

  #draw({ id, place, part, sign }) {
    const group = drawNode(this.parts[part], place, part);
    this.drawn.set(id, group);
    if (place.node.children) {
      const below = drawBelow(this.parts[part], place, part, sign);
      this.edges.set(id, below);
      this.edgeLayer.append(below);
    }
    if (id === this.current) group.setAttribute("tabindex", 0);
    this.#mark(id, place.node, part);
    return group;
  }

  /** Set the classes that depend on the step, on the other tree and on the highlighted constituent. */
  #mark(id, node, part) {
    const other = this.parts[1 - part];
    for (const each of [this.drawn.get(id), this.edges.get(id)]) {
      if (!each) continue;
      each.classList.toggle("pending", this.step !== null && node.order >= this.step);
      each.classList.toggle("newest", this.step !== null && node.order === this.step - 1);
      each.classList.toggle("shared", Boolean(other && node.children && other.tree.bySpan.has(node.key)));
      each.classList.toggle("only", Boolean(other && node.children && !other.tree.bySpan.has(node.key)));
      each.classList.toggle("lit", node.key === this.lit);
    }
  }

  #markAll() {
    for (const id of this.drawn.keys()) {
      const place = this.#place(id);
      this.#mark(id, place.node, Number(id.split(":")[0]));
    }
  }

  showStep(step) {
    this.step = step;
    this.#markAll();
  }

  /** Highlight the constituent with this span in both trees; null: none. */
  highlight(key) {
    this.lit = key;
    if (!this.layouts) return;
    this.#markAll();
    const [start, end] = key?.split("-").map(Number) ?? [0, 0];
    for (const [id, group] of this.drawn) {
      const { node } = this.#place(id);
      const isInside = id.startsWith("0:") && node.start >= start && node.end <= end;
      for (const each of [group, this.edges.get(id)]) each?.classList.toggle("inside", isInside);
    }
    const found = this.layouts.map(({ places }) => places.get(key)).filter(Boolean);
    this.band.toggleAttribute("hidden", !found.length);
    if (!found.length) return;
    const top = Math.min(0, ...found.map(({ y }) => y));
    const bottom = Math.max(TOKEN_ROW, ...found.map(({ y }) => y));
    const attributes = {
      x: found[0].from - 6,
      y: top - 4,
      width: found[0].to - found[0].from + 12,
      height: bottom - top + 6,
    };
    for (const [name, value] of Object.entries(attributes)) this.band.setAttribute(name, value);
  }

  /** Collapse or expand a constituent. Two trees collapse together, so both must contain it. */
  toggle(key) {
    const node = this.#trees.map(({ bySpan }) => bySpan.get(key));
    if (node.some((each) => !each?.children)) return false;
    if (this.collapsed.has(key)) expand(node[0], this.#trees, this.collapsed);
    else this.collapsed.add(key);
    this.#updateInPlace(key);
    this.on.collapsed();
    return true;
  }

  canToggle(key) {
    return this.#trees.every(({ bySpan }) => bySpan.get(key)?.children);
  }

  setAll(isCollapsed) {
    this.collapsed.clear();
    if (isCollapsed) {
      for (const child of this.parts[0].tree.root.children ?? [])
        if (this.canToggle(child.key)) this.collapsed.add(child.key);
    }
    this.update();
    this.fit(false);
  }

  /** Lay out again, with a constituent staying at its position in the view. */
  #updateInPlace(key) {
    const before = this.layouts[0].places.get(key);
    this.update();
    const now = this.layouts[0].places.get(key);
    if (this.camera.isMoved) this.camera.shift((before.x - now.x) * this.camera.transform.k, 0);
    else this.fit(false);
  }

  #listen() {
    const found = ({ target }) => target.closest?.("[data-span]");
    this.svg.addEventListener("pointerover", (event) => {
      const group = found(event);
      this.on.point(group?.dataset.span ?? null, this.parts[group?.dataset.part ?? 0]);
    });
    this.svg.addEventListener("pointerleave", () => this.on.point(null));
    let before = null; // the node chosen before pointerdown, which itself chooses a node
    this.svg.addEventListener("pointerdown", () => {
      before = this.chosen;
    });
    this.svg.addEventListener("click", (event) => {
      const group = found(event);
      if (!group) return;
      const { span, part } = group.dataset;
      const id = `${part}:${span}`;
      const isChosen = before === id;
      const isCollapsed = this.collapsed.has(span);
      this.focus(id);
      if (isCollapsed || isChosen) this.toggle(span);
    });
    this.svg.addEventListener("focusin", (event) => {
      const group = found(event);
      if (!group) return;
      const { span, part } = group.dataset;
      this.chosen = `${part}:${span}`;
      this.on.choose(span, this.parts[part]);
    });
    this.svg.addEventListener("keydown", (event) => walk(event, this));
  }

  /** Expand the constituents that hide a constituent, and bring it into view. */
  reveal(key, part) {
    const [start, end] = key.split("-").map(Number);
    for (const other of [...this.collapsed]) {
      const [from, to] = other.split("-").map(Number);
      if (from <= start && to >= end && other !== key) this.collapsed.delete(other);
    }
    this.update();
    this.focus(`${part}:${key}`);
  }

  /** A separate drawing of the trees in their natural size, without what is collapsed. */
  picture() {
    const { left, top, right, bottom } = this.bounds;
    const drawing = drawn("svg", {
      class: "tree",
      viewBox: [left, top, right - left, bottom - top].join(" "),
      width: right - left,
      height: bottom - top,
    });
    this.layouts.forEach(({ places }, part) => {
      const sign = TreeView.sign(part);
      const all = [...places.values()].filter(({ node }) => part === 0 || node.children);
      drawing.append(
        ...all.filter(({ node }) => node.children).map((place) => drawBelow(this.parts[part], place, part, sign)),
        ...all.map((place) => drawNode(this.parts[part], place, part)),
      );
    });
    return drawing;
  }

  /** Focus a node by its id, and bring it into view. */
  focus(id) {
    const place = this.#place(id);
    if (!place) return;
    this.drawn.get(this.current)?.setAttribute("tabindex", -1);
    this.current = id;
    this.camera.reveal(place, TOKEN_ROW);
    this.#render();
    const group = this.drawn.get(id);
    group.setAttribute("tabindex", 0);
    group.focus({ preventScroll: true });
  }
}
