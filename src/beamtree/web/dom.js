// Helpers for elements, numbers and widths of text. Text is inserted only as text nodes and attributes.

const SVG = "http://www.w3.org/2000/svg";

export const MONO = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const drawn = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** Create a button with a click handler. Attributes with the value null are left out. */
export function button(text, onClick, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

export const probability = (value) => value.toFixed(3);
export const plural = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;
export const within = (value, least, most) => Math.min(most, Math.max(least, value));
export const spanKey = (start, end) => `${start}-${end}`;
export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const isPhone = () => matchMedia("(max-width: 760px)").matches;

const canvas = document.createElement("canvas").getContext("2d");

/** The width of a text in pixels. */
export function measure(text, font) {
  canvas.font = font;
  return canvas.measureText(text).width;
}

const segmenter = new Intl.Segmenter();

/** Truncate a text to at most `room` pixels, without splitting emoji and combined characters. */
export function shortened(text, room, font) {
  if (text.length < 2 || measure(text, font) <= room) return text;
  // 400 characters are always enough: a text of 10,000 letters need not be segmented completely.
  const letters = [...segmenter.segment(text.slice(0, 400))].map(({ segment }) => segment);
  let [least, most] = [1, letters.length];
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (measure(`${letters.slice(0, middle).join("")}…`, font) <= room) least = middle;
    else most = middle - 1;
  }
  return `${letters.slice(0, least).join("")}…`;
}

/** The tokens of a span as text; the middle of a long span is left out. */
export function words(tokens, start, end, most = 12) {
  const cut = (token) => (token.length > 60 ? `${token.slice(0, 40)}…` : token);
  if (end - start <= most) return tokens.slice(start, end).map(cut).join(" ");
  const half = Math.floor(most / 2);
  return `${tokens
    .slice(start, start + half)
    .map(cut)
    .join(" ")} … ${tokens
    .slice(end - half, end)
    .map(cut)
    .join(" ")}`;
}

/** Whether a text is written from right to left: decided by its first letter, as for dir="auto" in browsers. */
export function isRightToLeft(text) {
  const letter = /\p{L}/u.exec(text)?.[0];
  return (
    Boolean(letter) &&
    /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(letter)
  );
}

/** Focus one of several elements, and make it the only one that Tab reaches (roving tabindex). */
export function moveFocus(all, chosen) {
  for (const each of all) each.setAttribute("tabindex", -1);
  chosen.setAttribute("tabindex", 0);
  chosen.focus({ preventScroll: true });
}

/** A bar for a value between 0 and 1. */
export function bar(value, style = null) {
  const made = element("span", { class: "bar", "aria-hidden": "true" });
  made.style.setProperty("--part", value);
  if (style) made.style.setProperty("--color", `var(--${style})`);
  return made;
}
