// The comparison of two trees, and the legend of colours and line styles.

import { element, plural } from "./dom.js";

/** The number of constituents that the chosen trees of two sides share. */
export function shareOf(one, two) {
  const shared = one.tree.merges.filter(({ key }) => two.tree.bySpan.has(key)).length;
  return { shared, all: one.tree.merges.length };
}

function entry(kind, text, style = null, sign = "") {
  const swatch = element("span", { class: `swatch ${kind}`, "aria-hidden": "true" }, sign);
  if (style) {
    swatch.style.setProperty("--color", `var(--${style})`);
    swatch.style.setProperty("--on-color", `var(--on-${style})`);
  }
  return element("li", {}, swatch, text);
}

/** The legend of the trees in the frames. */
export function legendOf(frames, { isCollapsed }) {
  const entries = [];
  const sides = frames.flatMap(({ parts }) => parts);
  const pairs = frames.filter(({ parts }) => parts.length > 1);
  if (pairs.length) {
    const counts = pairs.map(({ parts }) => shareOf(...parts));
    const shared = counts.map((each) => `${each.shared} of ${each.all}`).join(" and ");
    entries.push(
      entry("shared", `in both trees (${shared})`),
      entry("only", `in one tree only (${counts.map((each) => each.all - each.shared).join(" and ")})`),
    );
  }
  const styled = sides.find((side) => side.content.label_styles?.some(Boolean) && side.tree.root.label != null);
  if (styled) {
    styled.content.labels.forEach((label, index) => {
      const style = styled.content.label_styles[index];
      if (style) entries.push(entry("color", label, style, styled.sign(label)));
    });
  }
  if (sides.some(({ isJudged }) => isJudged)) {
    entries.push(
      entry("value", "value of a list", null, "7"),
      entry("partial", "value of a part of a list", null, "7"),
    );
    const wrong = sides.some((side) =>
      side.tree.nodes.some((node) => node.expected != null && node.label !== node.expected),
    );
    if (wrong) entries.push(entry("wrong", "wrong ≠ expected", null, "7"));
  }
  if (isCollapsed) entries.push(entry("roof", "collapsed, with its number of tokens: click to expand", null, "△"));
  return entries;
}

/** The legend of a chart, which is a skyline for a long text. */
export const chartLegend = (isSkyline) =>
  isSkyline
    ? [
        entry("bar-made", "in the chosen tree"),
        entry("bar-other", "in other beams only"),
        element(
          "li",
          {},
          "bars span their tokens; higher bars have more tokens (left axis), paler bars are less probable",
        ),
      ]
    : [entry("cell-made", "in the chosen tree"), element("li", {}, "darker cells are more probable over all beams")];

/** The comparison as text for the status line. */
export function sharedInWords(frames) {
  const counts = frames.filter(({ parts }) => parts.length > 1).map(({ parts }) => shareOf(...parts));
  if (!counts.length) return "";
  const shares = counts.map(({ shared, all }) => `${shared} of ${plural(all, "constituent")}`);
  return ` The chosen trees share ${shares.join(" and ")}.`;
}
