// Keyboard control of a tree: arrow keys move between constituents in visual order, other keys zoom and collapse.

const FACTOR = 1.3; // zoom factor per key press

/** Handle a key: arrow keys move to the parent, first child, sibling or next leaf. `view`: the TreeView. */
export function walk(event, view) {
  const group = event.target.closest?.(".constituent");
  if (!group || event.ctrlKey || event.metaKey || event.altKey) return;
  const { span } = group.dataset;
  const part = Number(group.dataset.part);
  const { places } = view.layouts[part];
  const { node, children } = places.get(span);
  const forward = view.parts[part].rightToLeft ? -1 : 1;
  const leaves = () =>
    [...places.values()]
      .filter((place) => !place.children)
      .map((place) => place.node)
      .sort((a, b) => a.start - b.start);
  const sideways = (step) => {
    const sibling = node.parent?.children[step > 0 ? 1 : 0];
    if (sibling && sibling !== node) return sibling;
    return leaves().find((leaf) => (step > 0 ? leaf.start === node.end : leaf.end === node.start));
  };
  const up = () => node.parent;
  const down = () => (children ? node.children[0] : null);
  const isAbove = part === 0; // the other tree is below the tokens, with its root at the bottom
  const moves = {
    ArrowUp: isAbove ? up : down,
    ArrowDown: isAbove ? down : up,
    ArrowLeft: () => sideways(-forward),
    ArrowRight: () => sideways(forward),
    Home: () => view.parts[part].tree.root,
    End: () => leaves().at(-1),
  };
  const acts = {
    Enter: () => view.toggle(span),
    " ": () => view.toggle(span),
    "+": () => view.zoomBy(FACTOR),
    "=": () => view.zoomBy(FACTOR),
    "-": () => view.zoomBy(1 / FACTOR),
    0: () => view.fit(),
  };
  if (event.key in moves) {
    const next = moves[event.key]();
    // The tokens are drawn only once, with the tree above them.
    if (next) view.focus(`${next.children ? part : 0}:${next.key}`);
  } else if (event.key in acts) acts[event.key]();
  else return;
  event.preventDefault();
  event.stopPropagation(); // otherwise the player would also step through the merges
}
