// Drawing of nodes: the label in a circle of its colour, wrong values in red, collapsed subtrees as triangles.

import { drawn, isRightToLeft } from "./dom.js";
import { isWrong } from "./documents.js";
import { RADIUS, edge, round } from "./layout.js";

export const TOKEN_ROW = 30; // height of the row of tokens
const DOT = 5; // radius of a node without a label

/** The CSS classes of a node. */
function classesOf(side, { node, isCollapsed }) {
  const classes = ["constituent"];
  if (!node.children) classes.push("token");
  if (isCollapsed) classes.push("collapsed");
  if (side.isJudged && node.expected == null) classes.push("partial");
  if (isWrong(node)) classes.push("wrong");
  return classes.join(" ");
}

/** Draw the edges below a constituent or, if it is collapsed, a triangle above its tokens. */
export function drawBelow(side, place, part, sign) {
  const { node, isCollapsed } = place;
  const known = { "data-span": node.key, "data-part": part };
  if (!isCollapsed) return drawn("path", { class: "edge", d: edge(place, sign), ...known });
  const row = (sign > 0 ? 0 : TOKEN_ROW) - place.y; // start of the row of tokens, relative to the node
  const [left, right] = [place.from - place.x + 4, place.to - place.x - 4];
  const group = drawn(
    "g",
    { class: "below collapsed", transform: `translate(${round(place.x)} ${round(place.y)})`, ...known },
    drawn("path", { class: "roof", d: `M0 0L${round(left)} ${round(row)}H${round(right)}Z` }),
    drawn(
      "text",
      { class: "count", y: round(row + (sign > 0 ? -5 : 11)), "text-anchor": "middle" },
      String(node.end - node.start),
    ),
  );
  if (part === 0) drawTokens(group, side, place);
  return group;
}

/** Draw a merged constituent: a circle with its label, or a dot. */
function drawMerged(group, side, { node }) {
  if (node.label == null) {
    group.append(drawn("circle", { class: "target", r: RADIUS }), drawn("circle", { class: "dot", r: DOT }));
  } else {
    const partial = side.isJudged && node.expected == null;
    const style = side.style(node.label);
    const circle = drawn("circle", { class: "mark", r: partial ? RADIUS - 3 : RADIUS });
    const label = drawn("text", { class: "sign", y: 4.5, "text-anchor": "middle" }, side.sign(node.label));
    if (style) {
      circle.style.setProperty("--color", `var(--${style})`);
      label.style.setProperty("--on-color", `var(--on-${style})`);
      group.classList.add("styled");
    }
    group.append(circle, label);
    if (isWrong(node)) {
      const text = `≠ ${node.expected}`;
      group.prepend(
        drawn("rect", {
          class: "target",
          x: -RADIUS,
          y: -RADIUS - 6,
          width: 2 * RADIUS + 4 + 8 * text.length,
          height: 2 * RADIUS + 6,
        }),
      );
      group.append(drawn("text", { class: "expected", x: RADIUS + 4, y: -5 }, text));
    }
  }
}

/** Draw a token, or the tokens of a collapsed constituent, in the row of leaves. */
function drawTokens(group, side, place) {
  const { node, text } = place;
  const row = 2 - place.y;
  group.append(
    drawn("rect", {
      class: "target",
      x: round(place.from - place.x),
      y: row,
      rx: 4,
      width: round(place.to - place.from),
      height: TOKEN_ROW,
    }),
  );
  group.append(
    drawn(
      "text",
      { class: "leaf", y: row + 19, "text-anchor": "middle", direction: isRightToLeft(text) ? "rtl" : null },
      text,
    ),
  );
  const style = !node.children && node.label != null && side.style(node.label);
  if (style) {
    const line = drawn("rect", {
      class: "underline",
      x: round(place.from - place.x),
      y: row + TOKEN_ROW - 5,
      height: 3,
      rx: 1.5,
      width: round(place.to - place.from),
    });
    line.style.setProperty("--color", `var(--${style})`);
    group.append(line);
  }
}

/** Draw a node as a tree item at its position. */
export function drawNode(side, place, part) {
  const { node } = place;
  const group = drawn("g", {
    class: classesOf(side, place),
    "data-span": node.key,
    "data-part": part,
    role: "treeitem",
    tabindex: -1,
    transform: `translate(${round(place.x)} ${round(place.y)})`,
    "aria-level": place.depth + 1,
    "aria-label": side.describe(node),
    "aria-expanded": node.children ? String(!place.isCollapsed) : null,
  });
  if (node.children) drawMerged(group, side, place);
  else drawTokens(group, side, place);
  return group;
}

/** Draw a thumbnail of a tree; edges below nodes with `isMarked(node)` have another style. */
export function drawThumbnail({ places, width, height }, room, isMarked) {
  const [plain, marked] = [[], []];
  const [across, down] = [room.width / Math.max(width, 1), room.height / Math.max(height, 1)];
  for (const place of places.values()) {
    if (!place.children) continue;
    const [left, right] = place.children;
    const point = ({ x, y }) => `${round(x * across)} ${round(room.height + y * down)}`;
    const top = round(room.height + place.y * down);
    (isMarked(place.node) ? marked : plain).push(
      `M${point(left)}V${top}H${round(right.x * across)}V${round(room.height + right.y * down)}`,
    );
  }
  return drawn(
    "svg",
    {
      class: "thumbnail",
      viewBox: `-2 -2 ${room.width + 4} ${room.height + 4}`,
      width: room.width + 4,
      height: room.height + 4,
      "aria-hidden": "true",
    },
    drawn("path", { class: "plain", d: plain.join("") }),
    drawn("path", { class: "marked", d: marked.join("") }),
  );
}
