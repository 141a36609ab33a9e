// The beams of each side as a strip of small trees with their probabilities; one of them is the large tree.

import { bar, element, probability } from "./dom.js";
import { collapseTo, layOut } from "./layout.js";
import { drawThumbnail } from "./marks.js";

const THUMBNAIL = { width: 96, height: 40 };
const MOST_SHOWN = { leaves: 120, levels: 40 }; // of a small tree

/** The strip of one side. `onChoose` is called with the beam's index. */
export class BeamStrip {
  constructor(side, name, onChoose) {
    this.side = side;
    const best = side.beams[0].bySpan;
    this.buttons = side.beams.map((beam, index) => {
      const collapsed = collapseTo(beam, MOST_SHOWN);
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

  /** Mark the beams that have a constituent. */
  light(key) {
    const held = key && key.split("-")[1] - key.split("-")[0] > 1 ? this.side.holders(key) : [];
    this.buttons.forEach((each, index) => each.classList.toggle("holds", held.includes(index + 1)));
  }
}
