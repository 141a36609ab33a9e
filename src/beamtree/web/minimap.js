// A map of the whole tree, shown if the tree is larger than the view. Its frame marks the visible part and is draggable.

import { element, isPhone, within } from "./dom.js";

const MAP = { width: isPhone() ? 120 : 180, height: 64 };

export class Minimap {
  /** `onMove` is called with the x and y of the new centre of the view. */
  constructor(onMove) {
    this.canvas = element("canvas", {});
    this.frame = element("div", { class: "viewport" });
    this.root = element("div", { class: "minimap", "aria-hidden": "true", hidden: true }, this.canvas, this.frame);
    this.isShown = false;
    let dragging = false;
    const follow = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const { left, top } = this.bounds;
      onMove(left + (event.clientX - box.left) / this.scale.x, top + (event.clientY - box.top) / this.scale.y);
    };
    this.root.addEventListener("pointerdown", (event) => {
      dragging = true;
      this.root.setPointerCapture(event.pointerId);
      follow(event);
    });
    this.root.addEventListener("pointermove", (event) => {
      if (dragging) follow(event);
    });
    this.root.addEventListener("pointerup", () => {
      dragging = false;
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  draw(layouts, bounds) {
    this.layouts = layouts;
    this.bounds = bounds;
    const [width, height] = [bounds.right - bounds.left, bounds.bottom - bounds.top];
    // Long trees are flat, so the vertical scale may be larger than the horizontal one.
    this.scale = { x: MAP.width / width, y: Math.min(MAP.height / height, (8 * MAP.width) / width) };
    this.#paint();
  }

  #paint() {
    if (!this.layouts) return;
    const { left, top, bottom } = this.bounds;
    const [width, height] = [MAP.width, (bottom - top) * this.scale.y];
    const density = window.devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [width * density, height * density];
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(density, density);
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--tree");
    context.lineWidth = 0.8;
    const point = ({ x, y }) => [(x - left) * this.scale.x, (y - top) * this.scale.y];
    context.beginPath();
    for (const { places } of this.layouts) {
      for (const place of places.values()) {
        if (!place.children) continue;
        const [, own] = point(place);
        const [[ax, ay], [bx, by]] = place.children.map(point);
        context.moveTo(ax, ay);
        context.lineTo(ax, own);
        context.lineTo(bx, own);
        context.lineTo(bx, by);
      }
    }
    context.stroke();
  }

  /** Update the frame to the visible part of the tree. */
  move({ x, y, k }, size) {
    const { left, top, right, bottom } = this.bounds;
    this.isShown = (right - left) * k > size.width * 1.1 || (bottom - top) * k > size.height * 1.1;
    this.root.hidden = !this.isShown;
    if (!this.isShown) return;
    const [width, height] = [MAP.width, (bottom - top) * this.scale.y];
    const from = {
      x: within((-x / k - left) * this.scale.x, 0, width),
      y: within((-y / k - top) * this.scale.y, 0, height),
    };
    const to = {
      x: within(((size.width - x) / k - left) * this.scale.x, 0, width),
      y: within(((size.height - y) / k - top) * this.scale.y, 0, height),
    };
    this.frame.style.transform = `translate(${from.x}px, ${from.y}px)`;
    this.frame.style.width = `${Math.max(to.x - from.x, 3)}px`;
    this.frame.style.height = `${Math.max(to.y - from.y, 3)}px`;
  }
}
