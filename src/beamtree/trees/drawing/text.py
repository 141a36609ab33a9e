"""Trees as text, for terminals and logs, and in the brackets of the Penn Treebank.

>>> print(text_tree(Tree.parse("((a b) (c d))")))
┬─┬─ a
│ └─ b
└─┬─ c
  └─ d
>>> print(text_tree(Tree.parse("((a b) (c d))"), orientation="vertical"))
 ┌──┴──┐
┌┴─┐  ┌┴─┐
a  b  c  d
>>> penn_tree(Tree.parse("((a b) c)"))
'(X (X (X a) (X b)) (X c))'
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from beamtree.trees.drawing.layout import Orientation, PlacedNode, TreeLayout, is_horizontal, place_nodes
from beamtree.trees.drawing.marks import Mark, node_marks
from beamtree.trees.drawing.metrics import clean
from beamtree.trees.parses import Node, Parse
from beamtree.trees.tree import Span, Tree
from beamtree.utils.palette import color, text_on

WIDTH = 80  # columns
_SPACE = 4  # columns between trees
_LINES = "bright_black"  # style of the lines


class Characters(NamedTuple):
    """The characters that lines are drawn with."""

    fork: str  # horizontal orientation: from a constituent to its children
    turn: str  # to a right child
    top_left: str  # vertical orientation
    top_right: str
    middle: str
    dash: str  # both orientations
    bar: str


_UNICODE = Characters("┬", "└", "┌", "┐", "┴", "─", "│")
_ASCII = Characters("+", "`", "+", "+", "+", "-", "|")
_ASCII_SIGNS = str.maketrans({"−": "-", "≠": "!="})


def text_tree(
    tree: Tree,
    nodes: Sequence[Node] = (),
    *,
    orientation: Orientation = "horizontal",
    width: int = WIDTH,
    ascii: bool = False,
) -> str:
    """Draw a tree with line-drawing characters.

    Args:
        tree: the tree.
        nodes: the constituents of its parse with their labels; see `Parse.nodes`.
        orientation: "horizontal" has a line for each leaf and the root on the left; there, a constituent is on the line
            of its first leaf. "vertical" has the root above the leaves. "auto" is vertical if the drawing fits into
            `width`.
        width: number of columns.
        ascii: whether to draw lines with ASCII characters only.

    Returns:
        The lines of the drawing.

    Examples:
        >>> from beamtree.trees.drawing import text_tree
        >>> print(text_tree(beamtree.Tree.parse("((a b) (c d))")))
        ┬─┬─ a
        │ └─ b
        └─┬─ c
          └─ d
    """
    return rich_tree(tree, nodes, orientation=orientation, width=width, ascii=ascii).plain


def rich_tree(
    tree: Tree,
    nodes: Sequence[Node] = (),
    *,
    orientation: Orientation = "auto",
    width: int = WIDTH,
    ascii: bool = False,
) -> Text:
    """Draw a tree as `text_tree` does, with colours.

    Args:
        tree: the tree.
        nodes: the constituents of its parse with their labels; see `Parse.nodes`.
        orientation: as for `text_tree`.
        width: number of columns.
        ascii: whether to draw lines with ASCII characters only.

    Returns:
        A text to be printed by a `rich.console.Console`.

    Examples:
        >>> from beamtree.trees.drawing import rich_tree
        >>> print(rich_tree(beamtree.Tree.parse("(a b)"), orientation="horizontal"))
        ┬─ a
        └─ b
    """
    marks = node_marks(tree, nodes)
    labels = {
        span: (mark.text or mark.sign).translate(_ASCII_SIGNS if ascii else {})
        for span, mark in marks.items()
        if mark.text or mark.sign
    }
    # A label needs a space and at least one column of line on both sides.
    distances = {span: cell_len(label) + 4.0 for span, label in labels.items()}
    layout = place_nodes(tree, [_cells(leaf) + 2.0 for leaf in tree.leaves], distances, whole=True)
    painter = _TextPainter(tree, layout, marks, labels, _ASCII if ascii else _UNICODE)
    rows = painter.horizontal() if is_horizontal(orientation, layout.size - 2 <= width) else painter.vertical()
    return Text("\n").join(rows)


def rich_beams(
    parses: Sequence[Parse],
    top: int | None = 5,
    *,
    orientation: Orientation = "auto",
    width: int = WIDTH,
    ascii: bool = False,
    headings: bool = True,
) -> Text:
    """Draw the most probable trees of a text, side by side as far as they fit into the width.

    Args:
        parses: the trees, most probable first.
        top: number of trees; None draws all.
        orientation: as for `text_tree`.
        width: number of columns.
        ascii: whether to draw lines with ASCII characters only.
        headings: whether to print the probability of each tree above it.

    Returns:
        A text to be printed by a `rich.console.Console`.

    Examples:
        >>> from beamtree.trees.drawing import rich_beams
        >>> parses = beamtree.load("listops-bt-grc").parse("[MAX 2 9 ]")
        >>> rich_beams(parses, top=1).plain.splitlines()[0]
        'tree 1, probability 0.839'
    """
    blocks = []
    for number, parse in enumerate(parses[:top], start=1):
        tree = rich_tree(parse.tree, parse.nodes, orientation=orientation, width=width, ascii=ascii)
        heading = f"tree {number}, probability {parse.probability:.3f}\n" if headings else ""
        blocks.append(list(Text.assemble((heading, "bold"), tree).split("\n")))
    rows: list[list[list[Text]]] = []
    for block in blocks:
        if rows and sum(_block_width(each) + _SPACE for each in rows[-1]) + _block_width(block) <= width:
            rows[-1].append(block)
        else:
            rows.append([block])
    return Text("\n\n").join(Text("\n").join(_side_by_side(row)) for row in rows)


def penn_tree(tree: Tree) -> str:
    """Write a tree in the brackets of the Penn Treebank.

    Args:
        tree: the tree.

    Returns:
        One line, with X as every label, and -LRB- and -RRB- for ( and ).

    Examples:
        >>> from beamtree.trees.drawing import penn_tree
        >>> penn_tree(beamtree.Tree.parse("((a b) c)"))
        '(X (X (X a) (X b)) (X c))'
    """
    opens = Counter(start for start, _ in tree.spans(leaves=False))
    escaped = (leaf.replace("(", "-LRB-").replace(")", "-RRB-") for leaf in tree.leaves)
    return " ".join(
        "(X " * opens[position] + f"(X {leaf})" + ")" * closes
        for position, (leaf, closes) in enumerate(zip(escaped, tree.reduces, strict=True))
    )


class _TextPainter:
    """The rows of a drawing. Nothing is recursive, so a tree can be of any depth."""

    def __init__(
        self,
        tree: Tree,
        layout: TreeLayout,
        marks: Mapping[Span, Mark],
        labels: Mapping[Span, str],
        characters: Characters,
    ) -> None:
        self.tree, self.layout, self.marks, self.labels, self.characters = tree, layout, marks, labels, characters
        self.constituents = layout.nodes[len(tree) :]

    def horizontal(self) -> list[Text]:
        """One row for each leaf. The distance of a constituent from the leaves is its height in steps.

        Before its fork there is space for the widest label of its height.
        """
        fork, turn, *_, dash, bar = self.characters
        height = self.layout.height
        room = [0] * (height + 1)
        starting: list[list[PlacedNode]] = [[] for _ in self.tree.leaves]  # constituents by their first leaf
        ending = [height] + [0] * (len(self.tree) - 1)  # height of the parent whose right child begins with each leaf
        for node in self.constituents:
            starting[node.start].append(node)
            ending[self.layout.nodes[node.right].start] = node.height
            if node.span in self.labels:
                room[node.height] = max(room[node.height], cell_len(self.labels[node.span]) + 2)
        blanks = [" " * (room[at] + 2) for at in range(height, 0, -1)]
        through = [dash * (room[at] + 2) for at in range(height, 0, -1)]
        passing = blanks.copy()  # for each height: the line of a constituent whose right child comes later
        rows = []
        for position, (nodes, end) in enumerate(zip(starting, ending, strict=True)):
            first = height - end
            cells = [*passing[:first], *through[first:]]
            if end:
                cells[first] = " " * room[end] + turn + dash
            for node in nodes:
                label = f" {self.labels[node.span]} " if node.span in self.labels else ""
                before = dash * (room[node.height] - cell_len(label))
                cells[height - node.height] = before + label + fork + dash
            passing[first : first + 1] = blanks[first : first + 1]
            row = Text.assemble(("".join(cells), _LINES), " " if cells else "", self.leaf(position))
            for node in nodes:
                passing[height - node.height] = " " * room[node.height] + bar + " "
                if node.span in self.labels:
                    after = sum(map(len, cells[: height - node.height + 1])) - 2  # the fork and a dash
                    row.stylize(_style(self.marks[node.span]), after - len(self.labels[node.span]) - 2, after)
            rows.append(row)
        return rows

    def vertical(self) -> list[Text]:
        """One row for each height; the leaves are in the last one."""
        pieces: list[list[tuple[int, Text]]] = [[] for _ in range(self.layout.height + 1)]  # of each row, by column
        for node in self.constituents:
            children = [self.layout.nodes[index] for index in (node.left, node.right)]
            pieces[node.height].append((round(children[0].place), self.bracket(node, *children)))
            for child in children:
                for between in range(child.height + 1, node.height):
                    pieces[between].append((round(child.place), Text(self.characters.bar, _LINES)))
        for leaf in self.layout.nodes[: len(self.tree)]:
            column = round(leaf.place) - _cells(self.tree.leaves[leaf.start]) // 2
            pieces[0].append((column, self.leaf(leaf.start)))
        return [_line(row) for row in reversed(pieces)]

    def bracket(self, node: PlacedNode, left: PlacedNode, right: PlacedNode) -> Text:
        """The line over the children of a constituent, with its label in the middle."""
        label = f" {self.labels[node.span]} " if node.span in self.labels else self.characters.middle
        start = round(node.place) - cell_len(label) // 2
        before = self.characters.dash * (start - round(left.place) - 1)
        after = self.characters.dash * (round(right.place) - start - cell_len(label))
        style = _style(self.marks[node.span]) if node.span in self.labels else _LINES
        _, _, top_left, top_right, *_ = self.characters
        return Text.assemble((top_left + before, _LINES), (label, style), (after + top_right, _LINES))

    def leaf(self, position: int) -> Text:
        mark = self.marks.get((position, position + 1))
        return Text(clean(self.tree.leaves[position]), "" if mark is None else _style(mark))


def _style(mark: Mark) -> str:
    """The style of a label, whose background has the colour of the palette, so it is legible on any terminal.

    The middle of a scale, neutral, has no background.
    """
    if mark.text:
        return "bold red" if mark.is_wrong else "bold default"
    if mark.style == "sentiment-3":
        return "default"
    background = color(mark.style)
    return f"{'bold ' if mark.is_wrong else ''}{text_on(background)} on {background}"


def _cells(leaf: str) -> int:
    return max(1, cell_len(clean(leaf)))  # a combining character alone has no width


def _line(pieces: Iterable[tuple[int, Text]]) -> Text:
    """One line from pieces and their columns; the first column of the layout is empty."""
    line, end = Text(), 1
    for column, piece in sorted(pieces, key=lambda each: each[0]):
        line.append(" " * (column - end)).append_text(piece)
        end = column + piece.cell_len
    return line


def _side_by_side(blocks: Sequence[Sequence[Text]]) -> list[Text]:
    """Blocks of lines from left to right."""
    lines = [Text() for _ in range(max(map(len, blocks)))]
    column = 0
    for block in blocks:
        for line, piece in zip(lines, block, strict=False):
            line.append(" " * (column - line.cell_len)).append_text(piece)
        column += _block_width(block) + _SPACE
    return lines


def _block_width(block: Sequence[Text]) -> int:
    return max(line.cell_len for line in block)
