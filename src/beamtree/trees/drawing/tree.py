"""Drawings of trees: one, or the trees of several beams side by side."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from beamtree.trees.drawing.drawing import Drawing
from beamtree.trees.drawing.layout import Orientation, PlacedNode, TreeLayout, is_horizontal, place_nodes
from beamtree.trees.drawing.marks import Mark, MarkedTree, node_marks, node_styles, node_title
from beamtree.trees.drawing.metrics import LINE_HEIGHT, clip, text_width
from beamtree.trees.drawing.scene import PAGE_WIDTH, Dot, Line, Scene, Shape, Text, below, beside, text_scene
from beamtree.trees.parses import Node, Parse, span_probabilities
from beamtree.trees.tree import Span, Tree
from beamtree.utils.checks import check_integer
from beamtree.utils.palette import Theme

LEAF_SPACE = 14.0  # between leaves in vertical orientation
WORD_SPACE = 6.0  # between the lines and the words below or beside them
DOT_RADIUS, LABEL_RADIUS, LEAF_RADIUS = 3.0, 4.5, 3.0
_STEP = 26.0  # between the heights of a parent and its highest child
_MAX_HEIGHT = 320.0  # of a tree whose nodes have no texts: steps are smaller in high trees,
_MIN_STEP = 1.0  # but not below this
_TEXT_SPACE = 3.0  # around the text of a node
_TEXT_STEP = 8.0  # minimum length of a line between two texts


def draw_tree(
    tree: Tree,
    nodes: Sequence[Node] = (),
    *,
    probabilities: Mapping[Span, float] | None = None,
    orientation: Orientation = "auto",
    theme: Theme | None = None,
) -> Drawing:
    """Draw one tree.

    Args:
        tree: the tree.
        nodes: the constituents of its parse with their labels; see `Parse.nodes`.
        probabilities: probabilities of its constituents over all beams. Dots without a label are darker for higher
            probabilities.
        orientation: "vertical" has the root above the leaves, "horizontal" on their left, one leaf per line; "auto" is
            horizontal if the leaves do not fit on a page.
        theme: "paper" or "dark"; None is "paper" in files, and follows the colour scheme of the reader in notebooks.

    Returns:
        The drawing.

    Examples:
        >>> from beamtree.trees.drawing import draw_tree
        >>> drawing = draw_tree(beamtree.Tree.parse("((a b) c)"))
        >>> drawing.svg().startswith("<svg")
        True
    """
    scene = tree_scene(tree, nodes, probabilities, orientation)
    return Drawing(scene, f"a tree over {len(tree)} leaves", theme)


def draw_beams(
    parses: Sequence[Parse],
    top: int | None = 5,
    *,
    orientation: Orientation = "auto",
    theme: Theme | None = None,
    headings: bool = True,
) -> Drawing:
    """Draw the most probable trees of a text side by side, with the labels of `Parse.nodes`.

    Args:
        parses: the trees, most probable first, as `Pretrained.parse` returns them.
        top: number of trees; None draws all.
        orientation: as for `draw_tree`.
        theme: as for `draw_tree`.
        headings: whether to add the probability of each tree, a legend of the labels' colours, and how many trees are
            left out.

    Returns:
        The drawing.

    Raises:
        ValueError: if there are no parses.

    Examples:
        >>> from beamtree.trees.drawing import draw_beams
        >>> parses = beamtree.load("listops-bt-grc").parse("[MAX 2 [MIN 4 7 ] ]", labels=True)
        >>> draw_beams(parses, top=2).save("beams.svg")  # doctest: +SKIP
    """
    if top is not None:
        check_integer("top", top, at_least=1)
    if not parses:
        raise ValueError("there are no parses to draw: give those of a text, as model.parse(text) returns them")
    probabilities = span_probabilities(parses)
    scenes = [tree_scene(parse.tree, parse.nodes, probabilities, orientation) for parse in parses[:top]]
    if headings:
        scenes = [
            below([text_scene(f"tree {number}, probability {parse.probability:.3f}"), scene], space=WORD_SPACE)
            for number, (parse, scene) in enumerate(zip(parses, scenes, strict=False), start=1)
        ]
    # Horizontal trees are always side by side, since they are compared line by line.
    leaves_width = sum(_leaf_widths(parses[0].tree))
    shown = [beside(scenes, inf if is_horizontal(orientation, leaves_width <= PAGE_WIDTH) else PAGE_WIDTH)]
    if headings:
        others = parses[len(scenes) :]
        if others:
            rest = f"not drawn: {len(others)} more, probability {sum(other.probability for other in others):.3f}"
            shown.append(text_scene(rest, "faint"))
        shown += _legend(parses[0].nodes)
    about = f"the {len(scenes)} most probable trees over {len(parses[0].tree)} leaves"
    return Drawing(below(shown, space=LINE_HEIGHT), about, theme)


def tree_scene(
    tree: Tree, nodes: Sequence[Node], probabilities: Mapping[Span, float] | None, orientation: Orientation
) -> Scene:
    """The scene of one tree."""
    marks = node_marks(tree, nodes, probabilities)
    widths = _leaf_widths(tree)
    horizontal = is_horizontal(orientation, sum(widths) <= PAGE_WIDTH)
    texts = {span: text_width(mark.text) + 2 * _TEXT_SPACE for span, mark in marks.items() if mark.text}
    if horizontal:
        layout = place_nodes(tree, [LINE_HEIGHT] * len(tree))
        boxes = {span: (LINE_HEIGHT, width) for span, width in texts.items()}
    else:
        layout = place_nodes(tree, widths, texts)
        boxes = {span: (width, LINE_HEIGHT) for span, width in texts.items()}
    painter = _TreePainter(tree, layout, marks, boxes, horizontal)
    by_span = {node.span: node for node in nodes}
    shapes: list[Shape] = []
    for node in layout.nodes:
        known = None if probabilities is None or node.height == 0 else probabilities.get(node.span, 0.0)
        shapes += painter.shapes(node, node_title(node.span, tree.leaves, by_span.get(node.span), known))
    depth = painter.words + (max(text_width(clip(leaf)) for leaf in tree.leaves) if horizontal else LINE_HEIGHT)
    size = (depth, layout.size) if horizontal else (layout.size, depth)
    return Scene(*size, tuple(shapes), tree=MarkedTree(tree, marks, horizontal))


class _TreePainter:
    """Converts the nodes of a tree to shapes. Positions are computed as (place along the leaves, depth from the root).

    `boxes` has the extents of the nodes' texts along both axes. Lines end before them.
    """

    def __init__(
        self,
        tree: Tree,
        layout: TreeLayout,
        marks: Mapping[Span, Mark],
        boxes: Mapping[Span, tuple[float, float]],
        horizontal: bool,
    ) -> None:
        self.tree, self.layout, self.marks, self.boxes, self.horizontal = tree, layout, marks, boxes, horizontal
        self.step = _STEP
        if boxes:
            self.step = max(_STEP, max(depth for _, depth in boxes.values()) + _TEXT_STEP)
        elif layout.height:
            self.step = max(_MIN_STEP, min(_STEP, _MAX_HEIGHT / layout.height))
        self.root_depth = max(LABEL_RADIUS, self.box(layout.nodes[-1])[1] / 2)
        leaf_radius = LEAF_RADIUS if any((i, i + 1) in marks for i in range(len(tree))) else 0.0
        self.words = self.root_depth + self.step * layout.height + leaf_radius + WORD_SPACE  # their depth

    def shapes(self, node: PlacedNode, title: str) -> Iterator[Shape]:
        place, depth, mark = node.place, self.depth(node), self.marks.get(node.span)
        if node.height:
            half = self.box(node)[0] / 2
            for child, side in ((self.layout.nodes[node.left], -half), (self.layout.nodes[node.right], half)):
                end = self.depth(child) - self.box(child)[1] / 2
                corners = ((place + side, depth), (child.place, depth), (child.place, end))
                yield Line(tuple(self.at(*corner) for corner in corners))
        if mark is not None and mark.text:
            yield Text(*self.at(place, depth), mark.text, mark.style, centred=True, title=title)
        elif mark is not None:
            radius = LEAF_RADIUS if not node.height else LABEL_RADIUS if mark.sign else DOT_RADIUS
            outline = "wrong" if mark.is_wrong else "faint"
            yield Dot(*self.at(place, depth), radius, mark.style, outline, title)
        if not node.height:
            word = clip(self.tree.leaves[node.start])
            depth = self.words if self.horizontal else self.words + LINE_HEIGHT / 2
            yield Text(*self.at(place, depth), word, centred=not self.horizontal, title=title)

    def box(self, node: PlacedNode) -> tuple[float, float]:
        return self.boxes.get(node.span, (0.0, 0.0))

    def depth(self, node: PlacedNode) -> float:
        return self.root_depth + self.step * (self.layout.height - node.height)

    def at(self, place: float, depth: float) -> tuple[float, float]:
        return (depth, place) if self.horizontal else (place, depth)


def _leaf_widths(tree: Tree) -> list[float]:
    """The widths of the leaves, including the space between them."""
    return [text_width(clip(leaf)) + LEAF_SPACE for leaf in tree.leaves]


def _legend(nodes: Sequence[Node]) -> list[Scene]:
    """The labels beside their colours, if they have colours."""
    shapes: list[Shape] = []
    x = 0.0
    for label, style in node_styles(nodes).items():
        if style is not None:
            shapes.append(Dot(x + LABEL_RADIUS, LINE_HEIGHT / 2, LABEL_RADIUS, style))
            shapes.append(Text(x + 2 * LABEL_RADIUS + WORD_SPACE, LINE_HEIGHT / 2, label, "faint"))
            x += 2 * LABEL_RADIUS + WORD_SPACE + text_width(label) + LEAF_SPACE
    return [Scene(x - LEAF_SPACE, LINE_HEIGHT, tuple(shapes))] if shapes else []
