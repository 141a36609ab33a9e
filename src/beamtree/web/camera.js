// Zoom and pan of a drawing by mouse, wheel, touch and buttons.

import { d3 } from "./vendor/d3.js";
import { isPhone, isStill, within } from "./dom.js";

export const LARGEST = 1.5; // initial scale of a short text
export const READABLE = 0.7; // minimum initial scale of a long text
const SMALLEST = 0.12; // minimum scale when fitting: a smaller drawing would look like a line
const ZOOM_IN = 4;

export class Camera {
  /** Transforms the group `world` in `svg`. `onMove` is called after each change; one finger pans if `isLarge()`. */
  constructor(svg, world, { onMove, isLarge }) {
    this.svg = svg;
    this.isMoved = false; // by the user: then resizing does not fit it again
    this.wasFitted = false;
    this.zoom = d3
      .zoom()
      .filter((event) => mayZoom(event, isLarge))
      .on("zoom", ({ transform, sourceEvent }) => {
        if (sourceEvent) this.isMoved = true;
        world.setAttribute("transform", transform);
        onMove();
      });
    this.selection = d3.select(svg);
    this.selection.call(this.zoom).on("dblclick.zoom", null);
  }

  get transform() {
    return this.svg.__zoom ?? d3.zoomIdentity;
  }

  /** Set the bounds of the drawing, {left, top, right, bottom}, and the size of the view, {width, height}. */
  setScene(bounds, size) {
    this.bounds = bounds;
    this.size = size;
    const { left, top, right, bottom } = bounds;
    const [across, down] = [size.width / 2, size.height / 2];
    this.zoom
      .translateExtent([
        [left - across, top - down],
        [right + across, bottom + down],
      ])
      .scaleExtent([Math.min(this.#fitScale(), 0.5) / 1.2, ZOOM_IN])
      .extent([
        [0, 0],
        [size.width, size.height],
      ]);
  }

  #fitScale() {
    const { left, top, right, bottom } = this.bounds;
    const { width, height } = this.size;
    return within(Math.min(width / (right - left), height / (bottom - top)), SMALLEST, LARGEST);
  }

  /**
   * Fit the drawing to the view. With `whole` false, it stays readable and may be larger than the view. Then the view
   * shows its left end (with `fromRight`, its right end) and the tokens at the bottom (with `inMiddle`, in the centre).
   */
  fit({ whole = true, isQuick = false, fromRight = false, inMiddle = false }) {
    if (!this.bounds) return;
    const { left, top, right, bottom } = this.bounds;
    const fitting = this.#fitScale();
    const scale = whole ? fitting : Math.max(fitting, READABLE);
    const height = (bottom - top) * scale;
    const slack = this.size.width - (right - left) * scale;
    const x = slack >= 0 ? slack / 2 : fromRight ? slack : 0;
    const start = inMiddle ? this.size.height / 2 : this.size.height - bottom * scale;
    const isAllSeen = slack >= -1 && height <= this.size.height + 1;
    const y = isAllSeen ? (this.size.height - height) / 2 - top * scale : start;
    if (isQuick) this.wasFitted = false;
    this.#zoomTo(this.zoom.transform, d3.zoomIdentity.translate(x - left * scale, y).scale(scale));
    this.isMoved = false;
  }

  zoomBy(factor) {
    this.isMoved = true;
    this.#zoomTo(this.zoom.scaleBy, factor);
  }

  #zoomTo(how, wanted) {
    if (isStill() || !this.wasFitted) this.selection.call(how, wanted);
    else this.selection.transition().duration(200).call(how, wanted);
    this.wasFitted = true;
  }

  /** Centre the view on a point of the drawing. */
  centre(x, y) {
    this.isMoved = true;
    this.selection.call(this.zoom.translateTo, x, y);
  }

  /** Pan by pixels. */
  shift(x, y) {
    const { transform } = this;
    this.selection.call(
      this.zoom.transform,
      d3.zoomIdentity.translate(transform.x + x, transform.y + y).scale(transform.k),
    );
  }

  /** Pan to bring a point of the drawing into view, with `below` units of the drawing below it. */
  reveal({ x, y }, below) {
    const { x: left, y: top, k } = this.transform;
    const [across, down] = [x * k + left, y * k + top];
    const border = 24;
    const dx = within(across, border, this.size.width - border) - across;
    const dy = within(down, border, this.size.height - border - below * k) - down;
    if (!dx && !dy) return;
    this.isMoved = true;
    this.shift(dx, dy);
  }

  /** The visible part of the drawing, extended by `room` pixels on each side. */
  view(room) {
    const { x, y, k } = this.transform;
    return {
      left: (-x - room) / k,
      right: (this.size.width - x + room) / k,
      top: (-y - room) / k,
      bottom: (this.size.height - y + room) / k,
    };
  }
}

/** Which events zoom or pan. On a phone, one finger scrolls the page unless the drawing is larger than the view. */
function mayZoom(event, isLarge) {
  if (event.type === "wheel") return !isPhone() || event.ctrlKey;
  if (event.type === "touchstart") return event.touches.length > 1 || isLarge();
  return !event.button && !event.ctrlKey;
}
