// The beams of each side as a strip of thumbnails with their probabilities. The chosen beam is drawn as the large tree.

import { bar, element, probability } from "./dom.js";
import { collapseTo, layOut } from "./layout.js";
import { drawThumbnail } from "./marks.js";

const THUMBNAIL = { width: 96, height: 40 };
const MAX_SHOWN = { leaves: 120, levels: 40 }; // in a thumbnail

/** The strip of one side. `onChoose` is called with the index of a beam. */
export class BeamStrip {
  constructor(side, name, onChoose) {
    this.side = side;
    const best = side.beams[0].bySpan;
    this.buttons = side.beams.map((beam, index) => {
      const collapsed = collapseTo(beam, MAX_SHOWN);
      const picture = drawThumbnail(
        layOut(side, beam, collapsed, THUMBNAIL.height),
        THUMBNAIL,
        ({ key }) => !best.has(key),
      );
      const made = element(
        "button",
        { type: "button", class: "beam" },
        picture,
        element(
          "span",
          { class: "caption" },
          element("span", {}, `Beam ${index + 1}`),
          element("span", { class: "unseen" }, "probability"),
          element("span", { class: "number" }, probability(beam.probability)),
        ),
        bar(beam.probability),
      );
      made.addEventListener("click", () => onChoose(index));
      return made;
    });
    this.root = element(
      "div",
      { class: "strip", role: "group", "aria-label": name || "Beams" },
      ...(name ? [element("span", { class: "strip-name" }, name)] : []),
      ...this.buttons,
    );
    if (side.beams.length > 1)
      this.root.append(
        element("span", { class: "strip-note" }, element("span", { class: "swatch line" }), "not in beam 1"),
      );
    this.update();
  }

  update() {
    this.buttons.forEach((each, index) => each.setAttribute("aria-pressed", index === this.side.chosen));
  }

  /** Highlight the beams that contain a constituent. */
  highlight(key) {
    const held = key && key.split("-")[1] - key.split("-")[0] > 1 ? this.side.holders(key) : [];
    this.buttons.forEach((each, index) => each.classList.toggle("holds", held.includes(index + 1)));
  }
}
