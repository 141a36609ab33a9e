"use strict";
// A beam as a tree: its constituents from its merges, where they stand, and the drawing.

const LEAF_FONT = '14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
const LEAF_GAP = 14;
const MARGIN = 16;
const TALLEST = 520; // pixels for all levels of a tree: a chain of 200 words has as many levels

/** Constituents in the order in which the beam made them: span, where its right child begins, height, and parent. */
function constituents(beam, size) {
  const ends = Array.from({ length: size }, (_, start) => start + 1); // of the element that begins at each leaf
  const made = new Map();
  const found = beam.merges.map(([start, end], order) => {
    const middle = ends[start];
    const children = [spanKey(start, middle), spanKey(middle, end)];
    const height = 1 + Math.max(...children.map((key) => made.get(key)?.height ?? 0));
    const node = { start, end, middle, order, height, parent: null };
    for (const key of children) if (made.has(key)) made.get(key).parent = node;
    ends[start] = end;
    made.set(spanKey(start, end), node);
    return node;
  });
  return found;
}

/** Where each leaf and each constituent stands. Leaves stand in a row, a constituent as high above it as it is deep. */
function layOut(tokens, nodes) {
  const places = new Map();
  let x = MARGIN;
  tokens.forEach((token, position) => {
    const width = measure(token, LEAF_FONT);
    places.set(spanKey(position, position + 1), { x: x + width / 2, width });
    x += width + LEAF_GAP;
  });
  const height = nodes.reduce((most, node) => Math.max(most, node.height), 0);
  const level = height ? within(TALLEST / height, 3, 34) : 0;
  const bottom = MARGIN + height * level + 10;
  for (let position = 0; position < tokens.length; position++) {
    places.get(spanKey(position, position + 1)).y = bottom;
  }
  for (const { start, middle, end, height } of nodes) {
    const left = places.get(spanKey(start, middle));
    const right = places.get(spanKey(middle, end));
    places.set(spanKey(start, end), { x: (left.x + right.x) / 2, y: bottom - height * level - 6 });
  }
  return { places, level, width: Math.max(x - LEAF_GAP + MARGIN, 60), height: bottom + 24 };
}

/** The tree of a beam; each constituent is an element that can be pointed at and reached by the keyboard. */
function drawTree(side, beam, label, describe) {
  const { tokens } = side;
  const nodes = constituents(beam, tokens.length);
  const { places, level, width, height } = layOut(tokens, nodes);
  const drawing = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "tree", role: "tree",
    "aria-label": label });
  const leaves = tokens.map((token, position) => {
    const { x, y } = places.get(spanKey(position, position + 1));
    return drawn("text", { x, y: y + 14, class: "leaf", "data-leaf": position, "text-anchor": "middle" }, token);
  });
  const deepest = nodes.at(-1)?.height ?? 0;
  const groups = nodes.map((node) => {
    const { start, middle, end } = node;
    const own = places.get(spanKey(start, end));
    const left = places.get(spanKey(start, middle));
    const right = places.get(spanKey(middle, end));
    const area = { x: left.x - 5, y: own.y - Math.min(level, 14) / 2, width: right.x - left.x + 10,
      height: Math.min(level, 14) };
    return drawn("g", { class: "constituent", "data-span": spanKey(start, end), "data-order": node.order,
      role: "treeitem", tabindex: -1, "aria-level": deepest - node.height + 1, "aria-label": describe(start, end) },
    drawn("path", { d: `M${left.x} ${left.y}V${own.y}H${right.x}V${right.y}` }),
    drawn("circle", { cx: own.x, cy: own.y, r: within(level / 4, 1.5, 5) }),
    drawn("rect", { ...area, "data-area": true, class: "area" }));
  });
  // The later ones first: what lies under them can still be pointed at.
  drawing.append(...[...groups].reverse(), ...leaves);
  if (!groups.length) fill(leaves[0], { role: "treeitem", tabindex: 0, "aria-label": `only token: ${tokens[0]}` }, []);
  groups.at(-1)?.setAttribute("tabindex", 0);
  drawing.addEventListener("keydown", (event) => walkTree(event, nodes, groups));
  return drawing;
}

/** Arrow keys in a tree: up to the parent, down to the first child that is no leaf, sideways to the sibling. */
function walkTree(event, nodes, groups) {
  const node = nodes[groups.indexOf(event.target)];
  if (!node) return;
  const children = nodes.filter((other) => other.parent === node).sort((a, b) => a.start - b.start);
  const siblings = nodes.filter((other) => other !== node && node.parent && other.parent === node.parent);
  const chosen = {
    ArrowUp: node.parent,
    ArrowDown: children[0],
    ArrowLeft: siblings.find((other) => other.start < node.start),
    ArrowRight: siblings.find((other) => other.start > node.start),
    Home: nodes[0],
    End: nodes.at(-1),
  };
  if (!(event.key in chosen)) return;
  event.preventDefault();
  event.stopPropagation(); // or the merges would be stepped through
  if (chosen[event.key]) moveFocus(groups, groups[chosen[event.key].order]);
}

/** Focus one of several elements of which Tab reaches one: from now on this. */
function moveFocus(all, chosen) {
  for (const each of all) each.setAttribute("tabindex", -1);
  chosen.setAttribute("tabindex", 0);
  chosen.focus();
  chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** Show the first `step` merges of a tree, the others in the background. In a whole tree none is the newest. */
function showStep(drawing, step) {
  const groups = drawing.querySelectorAll(".constituent");
  for (const group of groups) {
    const order = Number(group.dataset.order);
    group.classList.toggle("pending", order >= step);
    group.classList.toggle("newest", order === step - 1 && step < groups.length);
  }
}
