// The layout of a tree: leaves in a row, in reading order, spaced by the width of their tokens.

import { d3 } from "./vendor/d3.js";
import { MONO, measure, shortened, within } from "./dom.js";

export const LEAF_FONT = `15px ${MONO}`;
export const RADIUS = 12; // of a node with a label
const LEAF_GAP = 16;
const NARROWEST = 22; // minimum width of a leaf: labels of constituents above must fit side by side
const WIDEST = 170; // a wider token is truncated
const LEVELS = [30, 56]; // minimum and maximum pixels between two levels

const MAX_TOKENS = 60; // of a tree that is initially expanded completely
const AT_FIRST = { leaves: [36, 28, 22, 17, 13, 10], levels: 11 }; // of a longer tree: the first that fits
const ON_EXPANDING = { leaves: 14, levels: 6 };

/** The constituents that are initially collapsed, so that the tree of a long text is readable and fits if possible. */
export function collapsedAtFirst(sides, room) {
  const trees = sides.map((side) => side.tree);
  let collapsed = new Set();
  if (trees[0].size <= MAX_TOKENS) return collapsed;
  for (const leaves of AT_FIRST.leaves) {
    collapsed = new Set();
    collapseBelow(trees[0].root, trees, collapsed, { leaves, levels: Math.ceil(AT_FIRST.levels / trees.length) });
    if (layOut(sides[0], trees[0], collapsed, 0).width <= room) break;
  }
  return collapsed;
}

/** The constituents to collapse so that a tree has at most `most.leaves` leaves and `most.levels` levels. */
export function collapseTo(tree, most) {
  const collapsed = new Set();
  if (tree.size > most.leaves) collapseBelow(tree.root, [tree], collapsed, most);
  return collapsed;
}

/** Expand a collapsed constituent; large constituents inside it stay collapsed. */
export function expand(node, trees, collapsed) {
  collapsed.delete(node.key);
  const inside = [...collapsed].some((key) => isInside(key, node));
  if (!inside && node.end - node.start > ON_EXPANDING.leaves) collapseBelow(node, trees, collapsed, ON_EXPANDING);
}

function isInside(key, { start, end }) {
  const [from, to] = key.split("-").map(Number);
  return from >= start && to <= end;
}

/** Collapse constituents below a node to stay within the limits `most`. The longest constituents are expanded first. */
function collapseBelow(top, [, other], collapsed, most) {
  const canCollapse = (node) => node !== top && (!other || other.bySpan.has(node.key)); // two trees collapse together
  let leaves = 1;
  const waiting = [{ node: top, level: 0 }];
  while (waiting.length) {
    waiting.sort((a, b) => b.node.end - b.node.start - (a.node.end - a.node.start));
    const { node, level } = waiting.shift();
    if (canCollapse(node) && (leaves >= most.leaves || level >= most.levels)) {
      collapsed.add(node.key);
      continue;
    }
    leaves += 1;
    for (const child of node.children) if (child.children) waiting.push({ node: child, level: level + 1 });
  }
}

/** The text in the row of leaves: a token, or the first and last token of a collapsed subtree. */
function leafText(side, node) {
  if (!node.children) return shortened(side.tokens[node.start], WIDEST, LEAF_FONT);
  const [first, last] = [node.start, node.end - 1].map((index) => shortened(side.tokens[index], 54, LEAF_FONT));
  return `${first} … ${last}`;
}

/**
 * Compute the positions of the nodes of a tree. `height`: available height in pixels. `sign`: 1 for a tree above its
 * leaves, −1 for a tree below them. The row of leaves is at y = 0, and the first leaf starts at x = 0.
 */
export function layOut(side, tree, collapsed, height, sign = 1) {
  // The tokens of a collapsed constituent are also in the row of leaves, as its only child, {words: the constituent}.
  const root = d3.hierarchy(tree.root, (node) => (collapsed.has(node.key) ? [{ words: node }] : node.children));
  for (const leaf of root.leaves()) {
    leaf.text = leafText(side, leaf.data.words ?? leaf.data);
    leaf.width = Math.max(measure(leaf.text, LEAF_FONT) + (leaf.data.words ? 14 : 0), NARROWEST);
  }
  d3
    .cluster()
    .nodeSize([1, 1])
    .separation((a, b) => (a.width + b.width) / 2 + LEAF_GAP)(root);
  const leaves = root.leaves();
  const left = leaves[0].x - leaves[0].width / 2;
  const width = leaves.at(-1).x + leaves.at(-1).width / 2 - left;
  const rows = leaves[0].y; // d3.cluster's y grows from the root, 0, to the leaves
  const level = within(height / Math.max(rows, 1), ...LEVELS);
  const places = new Map();
  root.eachAfter((node) => {
    if (node.data.words) return;
    const isCollapsed = collapsed.has(node.data.key);
    const leaf = isCollapsed ? node.children[0] : node;
    const x = side.rightToLeft ? width - (node.x - left) : node.x - left;
    const y = -sign * (rows - node.y) * level;
    const children = !isCollapsed && node.children ? node.children.map((child) => places.get(child.data.key)) : null;
    const from = children ? Math.min(...children.map((child) => child.from)) : x - leaf.width / 2;
    const to = children ? Math.max(...children.map((child) => child.to)) : x + leaf.width / 2;
    places.set(node.data.key, {
      node: node.data,
      x,
      y,
      from,
      to,
      children,
      depth: node.depth,
      text: leaf.text ?? null,
      isCollapsed,
    });
  });
  return { places, width, height: rows * level, level };
}

/** The path from a constituent to its two children, with rounded corners. */
export function edge({ x, y, children }, sign = 1) {
  const [left, right] = [...children].sort((a, b) => a.x - b.x);
  const corner = Math.min(7, Math.abs(x - left.x), Math.abs(right.x - x));
  const turn = sign * corner;
  const [low, high] = [left.y, right.y].map((end) => (sign > 0 ? Math.max(end, y + turn) : Math.min(end, y + turn)));
  return (
    `M${round(left.x)} ${round(low)}V${round(y + turn)}q0 ${-turn} ${corner} ${-turn}` +
    `H${round(right.x - corner)}q${corner} 0 ${corner} ${turn}V${round(high)}`
  );
}

export const round = (value) => Math.round(value * 10) / 10;
