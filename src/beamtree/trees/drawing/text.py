"""Trees in text: drawn with signs, and in the brackets of the Penn Treebank.

>>> print(text_tree(Tree.parse("((a b) (c d))")))
┬─┬─ a
│ └─ b
└─┬─ c
  └─ d
>>> penn_tree(Tree.parse("((a b) c)"))
'(X (X (X a) (X b)) (X c))'
"""

from collections import Counter

from beamtree.trees import Tree

_UNICODE = ("┬─", "└─", "──", "│ ")  # a constituent, its right child, a way to a leaf, a rail that passes by
_ASCII = ("+-", "`-", "--", "| ")


def text_tree(tree: Tree, ascii: bool = False) -> str:
    """The tree in lines, the root on the left: a line for each leaf, all leaves in one column.

    A constituent stands as many steps from the leaves as it is high. Its own line is that of its first leaf; a rail
    leads down from it to the first leaf of its right child. Nothing recurses, so that depth costs only width.

    ascii: with signs that every terminal and log shows.
    """
    if tree.is_leaf:
        return tree.leaves[0]
    fork, turn, way, rail = _ASCII if ascii else _UNICODE
    opened, ended = _heights(tree)
    height = ended[0]
    rails = ["  "] * height  # what passes by in each column: a constituent whose right child is still to come
    lines = []
    for leaf, heights, end in zip(tree.leaves, opened, ended, strict=True):
        begin = height - end  # the column of the constituent whose right child this line begins
        cells = [turn, *[way] * (end - 1)]
        for each in heights:
            cells[end - each] = fork
        lines.append("".join((*rails[:begin], *cells, " ", leaf)))
        rails[begin] = "  "
        for each in heights:
            rails[height - each] = rail
    return "\n".join(lines)


def penn_tree(tree: Tree) -> str:
    """The tree in the brackets of the Penn Treebank, all of whose labels are X; -LRB- and -RRB- stand for ( and )."""
    opens = Counter(start for start, _ in tree.spans(leaves=False))
    escaped = (leaf.replace("(", "-LRB-").replace(")", "-RRB-") for leaf in tree.leaves)
    return " ".join(
        "(X " * opens[position] + f"(X {leaf})" + ")" * closes
        for position, (leaf, closes) in enumerate(zip(escaped, tree.reduces, strict=True))
    )


def _heights(tree: Tree) -> tuple[list[list[int]], list[int]]:
    """For each leaf, the heights of the constituents that begin with it, and of the one whose right child does.

    No right child begins with the first leaf: the height of the whole tree stands in.
    """
    opened: list[list[int]] = [[] for _ in tree.leaves]
    ended = [0] * len(tree)
    stack: list[tuple[int, int]] = []  # the first leaf and the height of each constituent so far
    for position, count in enumerate(tree.reduces):
        stack.append((position, 0))
        for _ in range(count):
            middle, right = stack.pop()
            start, left = stack.pop()
            height = 1 + max(left, right)
            opened[start].append(height)
            ended[middle] = height
            stack.append((start, height))
    ended[0] = stack[0][1]
    return opened, ended
