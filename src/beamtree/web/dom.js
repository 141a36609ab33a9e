"use strict";
// Elements, numbers as people read them, and files to download. Text enters the page as text nodes and attributes only.

const SVG = "http://www.w3.org/2000/svg";
// What the style sheet gives a drawing, which must be written into it when it leaves the page.
const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family",
  "font-size", "font-weight", "text-anchor"];

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const drawn = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const probability = (value) => value.toFixed(3);
const plural = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;
const within = (value, least, most) => Math.min(most, Math.max(least, value));
const spanKey = (start, end) => `${start}-${end}`;

const measure = (() => {
  const context = document.createElement("canvas").getContext("2d");
  return (text, font) => {
    context.font = font;
    return context.measureText(text).width;
  };
})();

/** The words of a span; the middle of a long one is left out. */
function words(tokens, start, end, most = 12) {
  const chosen = tokens.slice(start, end);
  if (chosen.length <= most) return chosen.join(" ");
  const half = most / 2;
  return `${chosen.slice(0, half).join(" ")} … ${chosen.slice(-half).join(" ")}`;
}

function save(name, content, kind) {
  const address = URL.createObjectURL(new Blob([content], { type: kind }));
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // not at once: some browsers start late
}

/** A drawing as a file of its own: with the colours and fonts that it has on the page, and the page's background. */
function svgText(drawing) {
  const copy = drawing.cloneNode(true);
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const name of DRAWN) copies[index].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex"]) copies[index].removeAttribute(name);
  });
  for (const area of copy.querySelectorAll("[data-area]")) area.remove(); // only there to be pointed at
  const [, , width, height] = drawing.getAttribute("viewBox").split(" ");
  const background = getComputedStyle(document.body).backgroundColor;
  copy.prepend(drawn("rect", { width, height, fill: background }));
  fill(copy, { xmlns: SVG, width, height }, []);
  return new XMLSerializer().serializeToString(copy);
}

const fileName = (...parts) => parts.join("-").replace(/[^\w.-]+/g, "-").replace(/^[-.]+/, "").slice(-100);
