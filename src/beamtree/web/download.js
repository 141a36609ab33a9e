// Downloads: drawings (by the server or, without one, by the page itself), documents as JSON, constituents as CSV.

import { explain, fetchDrawing } from "./api.js";
import { button, byId, drawn, element } from "./dom.js";

// Properties from the style sheet, which are copied into an exported drawing.
const DRAWN = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
];

const fileName = (...parts) =>
  parts
    .join("-")
    .replace(/[^\w.-]+/g, "-")
    .replace(/^[-.]+/, "")
    .slice(-100);

function save(name, content, kind) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // not at once: some browsers start the download later
}

/** The SVG file of a drawing, with the colours, fonts and background of the page. */
function svgText(drawing) {
  const copy = drawing.cloneNode(true);
  const raw = [drawing, ...drawing.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  raw.forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const name of DRAWN) copies[index].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex", "role", "data-part"]) copies[index].removeAttribute(name);
  });
  for (const target of raw.map((each, index) => [each, copies[index]])) {
    if (target[0].classList.contains("target")) target[1].remove(); // invisible area for the pointer
  }
  const [left, top, width, height] = drawing.getAttribute("viewBox").split(" ");
  copy.prepend(
    drawn("rect", { x: left, y: top, width, height, fill: getComputedStyle(document.body).backgroundColor }),
  );
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

/** Render an SVG text as a PNG at twice its size. */
async function png(text, width, height) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = element("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  return new Promise((resolve) => {
    canvas.toBlob(resolve, "image/png");
  });
}

/** Save a drawing by the page itself as SVG or PNG. `picture()` creates the complete drawing. */
async function saveOwn(picture, name, format) {
  const drawing = picture();
  document.body.append(drawing); // computed styles are available only for elements in the document
  drawing.classList.add("picture");
  const text = svgText(drawing);
  drawing.remove();
  if (format === "svg") save(`${name}.svg`, text, "image/svg+xml");
  else
    save(`${name}.png`, await png(text, Number(drawing.getAttribute("width")), Number(drawing.getAttribute("height"))));
}

/** Save a drawing by the server. */
async function saveDrawn(asked, name, onError) {
  try {
    save(`${name}.${asked.format}`, await fetchDrawing(asked));
  } catch (error) {
    onError(explain(error));
  }
}

const cell = (value) => {
  const text = value == null ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

/** A CSV table with one row per constituent of each beam. */
function constituentsAsCsv(readings) {
  const heads = [
    "model",
    "side",
    "beam",
    "beam_probability",
    "merge",
    "start",
    "end",
    "text",
    "label",
    "label_probability",
    "expected",
    "probability",
    "score",
    "step_probability",
  ];
  const lines = readings.flatMap(({ model, content, sides }) =>
    sides.flatMap((side, place) =>
      side.beams.flatMap((beam, index) =>
        beam.nodes.map((node) => [
          model,
          place + 1,
          index + 1,
          beam.probability,
          node.children ? node.order + 1 : null,
          node.start,
          node.end,
          side.textOf(node.start, node.end),
          node.label,
          node.probabilities?.[content.labels.indexOf(node.label)],
          node.expected,
          side.probabilityOf(node.key),
          node.score,
          node.step_probability,
        ]),
      ),
    ),
  );
  return `${[heads, ...lines].map((line) => line.map(cell).join(",")).join("\n")}\n`;
}

const FORMATS = { svg: "SVG", png: "PNG", pdf: "PDF", tex: "TikZ", json: "JSON", csv: "CSV" };

/** The buttons for downloads and the link, and the tree in brackets. */
export class Downloads {
  /** `pictureOf(side)` creates a drawing in the page, for a page without a server. */
  constructor({ isOffline, pictureOf }) {
    this.isOffline = isOffline;
    this.pictureOf = pictureOf;
    const formats = isOffline ? ["svg", "png", "json", "csv"] : Object.keys(FORMATS);
    byId("downloads").replaceChildren(
      button("Copy link", copyLink, { class: "small", id: "copy" }),
      ...formats.map((format) =>
        button(FORMATS[format], () => this.#save(format), {
          class: "small",
          "aria-label": `Download ${FORMATS[format]}`,
        }),
      ),
    );
    byId("which").addEventListener("change", () => this.update());
  }

  /** Offer downloads of these answers. */
  show(readings) {
    this.readings = readings;
    this.trees = readings.flatMap((reading) => reading.sides.map((side, place) => ({ reading, side, place })));
    const nameOf = ({ reading, side }) => [reading.model, side.name].filter(Boolean).join(", ");
    byId("which").replaceChildren(
      ...this.trees.map((tree, index) => element("option", { value: index }, nameOf(tree))),
    );
    byId("which-field").hidden = this.trees.length < 2;
    this.update();
  }

  get #tree() {
    return this.trees[Number(byId("which").value)];
  }

  /** Called when another tree or beam was chosen. */
  update() {
    byId("brackets").querySelector("code").textContent = this.#tree.side.tree.brackets;
  }

  #save(format) {
    const { reading, side, place } = this.#tree;
    const name = fileName(reading.model);
    if (format === "json") return save(`${name}.json`, JSON.stringify(reading.content, null, 2), "application/json");
    if (format === "csv") return save(`${name}.csv`, constituentsAsCsv(this.readings), "text/csv");
    const file = fileName(reading.model, ...(side.name ? [`text-${place + 1}`] : []), `beam-${side.chosen + 1}`);
    if (this.isOffline) return saveOwn(() => this.pictureOf(side), file, format);
    const [text, second] = reading.content.sides.map((each) => each.text);
    const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "paper";
    const asked = {
      model: reading.model,
      text,
      ...(second && { second }),
      format,
      beam: side.chosen,
      side: place,
      theme,
    };
    return saveDrawn(asked, file, (message) => {
      byId("notice").textContent = message;
      byId("notice").hidden = false;
    });
  }
}

async function copyLink({ target }) {
  let messages = ["The link is copied.", "Copied"];
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    // The browser does not allow access to the clipboard.
    messages = ["The address of this page is the link: copy it from the address bar.", "See the address bar"];
  }
  [byId("result").textContent, target.textContent] = messages;
  setTimeout(() => {
    target.textContent = "Copy link";
  }, 2000);
}
