// The side panel: the answer for the whole text, and the details of one constituent.

import { bar, button, element, plural, probability, words } from "./dom.js";
import { isWrong } from "./documents.js";

const MAX_LABELS = 10;
const LEAST = 0.0005; // smaller probabilities would be shown as 0.000

/** A label in its colour. */
function pill(label, style) {
  const made = element("strong", { class: "pill" }, label);
  if (style) {
    made.classList.add("styled");
    made.style.setProperty("--color", `var(--${style})`);
    made.style.setProperty("--on-color", `var(--on-${style})`);
  }
  return made;
}

/** Labels and their probabilities as bars, the most probable first. Labels with probability 0.000 share one line. */
function labelBars(probabilities, predicted, styleOf, name) {
  const sorted = [...probabilities].sort((a, b) => b[1] - a[1]);
  const shown = sorted.slice(0, MAX_LABELS).filter(([label, value]) => label === predicted || value >= LEAST);
  const rows = shown.map(([label, value]) =>
    element(
      "li",
      { class: label === predicted ? "said" : null },
      element("span", { class: "name" }, label),
      bar(value, styleOf(label)),
      element("span", { class: "number" }, probability(value)),
    ),
  );
  const others = sorted.length - shown.length;
  if (others) {
    const rest = sorted.slice(-others).reduce((sum, [, value]) => sum + value, 0);
    rows.push(element("li", { class: "others" }, `${plural(others, "other")}: ${probability(rest)}`));
  }
  return element("ol", { class: "labels", "aria-label": name }, ...rows);
}

/** The answers of the models for the whole text. */
export function answerOf(readings) {
  return readings.map((reading) => {
    const {
      content: { label, probabilities, unknown },
      sides,
    } = reading;
    const parts = [];
    if (label === null) {
      parts.push(element("p", {}, "One side of a pair alone has trees but no label."));
    } else {
      const styleOf = (each) => sides[0].style(each);
      const line = element(
        "p",
        { class: reading.wrong ? "verdict wrong" : "verdict" },
        pill(label, styleOf(label)),
        element("span", { class: "number" }, probability(probabilities[label])),
      );
      if (reading.wrong !== null) {
        line.append(
          element(
            "span",
            { class: "judgement" },
            reading.wrong ? `✗ expected ${sides[0].beams[0].root.expected}` : "✓ as expected",
          ),
        );
      }
      parts.push(line, labelBars(Object.entries(probabilities), label, styleOf, "Labels and their probabilities"));
    }
    if (unknown.length) {
      parts.push(
        element(
          "p",
          { class: "unknown" },
          `Not in the vocabulary, all read as the unknown word: ${unknown
            .slice(0, 20)
            .map((word) => words([word], 0, 1))
            .join(", ")}` + (unknown.length > 20 ? ` and ${unknown.length - 20} more` : ""),
        ),
      );
    }
    return element(
      "section",
      { class: "answer", "aria-label": `Answer of ${reading.model}` },
      ...(readings.length > 1 ? [element("h2", {}, reading.model)] : []),
      ...parts,
    );
  });
}

const row = (name, ...value) => [element("dt", {}, name), element("dd", {}, ...value)];

/** The label and the figures of a constituent in the chosen tree of a side. */
function factsOf(side, key) {
  const node = side.tree.bySpan.get(key);
  const held = side.holders(key);
  const facts = [];
  if (node?.label != null) {
    facts.push(
      ...row(
        "Label",
        pill(node.label, side.style(node.label)),
        ...(isWrong(node) ? [element("span", { class: "judgement wrong" }, ` expected ${node.expected}`)] : []),
      ),
    );
  }
  const [start, end] = key.split("-").map(Number);
  if (end - start > 1) {
    const value = side.probabilityOf(key);
    facts.push(
      ...row("Over all beams", element("span", { class: "number" }, probability(value)), bar(value)),
      ...row("In beams", held.length ? `${held.join(", ")} of ${side.beams.length}` : "none of those shown"),
    );
    if (node) {
      facts.push(...row("Chosen at", `merge ${node.order + 1} of ${side.size - 1}`));
      if (node.score != null) {
        const score = node.score.toFixed(3).replace("-", "−");
        facts.push(...row("Score then", element("span", { class: "number" }, score)));
      }
      if (node.step_probability != null) {
        facts.push(
          ...row(
            "Probability then",
            element("span", { class: "number" }, probability(node.step_probability)),
            bar(node.step_probability),
          ),
        );
      }
    }
  }
  const parts = [element("dl", {}, ...facts)];
  if (node?.probabilities) {
    parts.push(
      labelBars(
        side.content.labels.map((label, index) => [label, node.probabilities[index]]),
        node.label,
        (label) => side.style(label),
        "Labels of this constituent",
      ),
    );
  }
  return parts;
}

/** The details of a constituent in each of the sides, which have the same tokens. */
export function detailsOf(key, sides, { canToggle, isCollapsed, onToggle }) {
  const [start, end] = key.split("-").map(Number);
  const [side] = sides;
  const whole = side.textOf(start, end);
  const parts = [
    element("p", { class: "text", dir: "auto" }, whole.length > 600 ? `${whole.slice(0, 600)}…` : whole),
    element("p", { class: "span" }, `span [${start}, ${end}) · ${plural(end - start, "token")}`),
  ];
  for (const each of sides) {
    if (sides.length > 1) parts.push(element("h3", {}, each.content.model));
    parts.push(...factsOf(each, key));
  }
  if (canToggle) parts.push(button(isCollapsed ? "Expand" : "Collapse", onToggle, { class: "small", id: "toggle" }));
  return parts;
}

/** The text while no constituent is chosen: how to choose one, and a list of wrong values. */
export function hintOf(readings, onChoose) {
  const parts = [element("p", { class: "hint" }, "Point at a constituent, or reach it with Tab and the arrow keys.")];
  for (const { model, sides } of readings) {
    for (const side of sides.filter(({ isJudged }) => isJudged)) {
      const judged = side.tree.merges.filter(({ expected }) => expected != null);
      const wrong = judged.filter(isWrong);
      const start = readings.length > 1 ? `${model}: ` : "";
      parts.push(
        element(
          "p",
          {},
          wrong.length
            ? `${start}${wrong.length} of ${plural(judged.length, "value")} ${wrong.length === 1 ? "is" : "are"} wrong:`
            : `${start}${judged.length === 1 ? "The value is" : `All ${judged.length} values are`} as expected.`,
        ),
      );
      if (wrong.length) {
        parts.push(
          element(
            "div",
            { class: "finds" },
            ...wrong
              .slice(0, 12)
              .map((node) =>
                button(
                  `${words(side.tokens, node.start, node.end, 4)}: ${node.label} ≠ ${node.expected}`,
                  () => onChoose(node.key, side),
                  { class: "small wrong" },
                ),
              ),
          ),
        );
      }
    }
  }
  return parts;
}
