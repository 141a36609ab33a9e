"""Pictures of trees.

>>> print(text_tree(Tree.parse("((a b) (c d))")))
┬─┬─ a
│ └─ b
└─┬─ c
  └─ d
"""

from beamtree.trees import Tree


def text_tree(tree: Tree) -> str:
    """The tree in lines, the root on the left: a line for each leaf, all leaves in one column.

    A constituent stands as many steps from the leaves as it is high. Its own line is that of its first leaf; a rail
    leads down from it to the first leaf of its right child. Nothing recurses, so that depth costs only width.
    """
    if tree.is_leaf:
        return tree.leaves[0]
    opened, ended = _heights(tree)
    height = ended[0]
    rails = ["  "] * height  # what passes by in each column: a constituent whose right child is still to come
    lines = []
    for leaf, heights, end in zip(tree.leaves, opened, ended, strict=True):
        begin = height - end  # the column of the constituent whose right child this line begins
        cells = ["└─", *["──"] * (end - 1)]
        for each in heights:
            cells[end - each] = "┬─"
        lines.append("".join((*rails[:begin], *cells, " ", leaf)))
        rails[begin] = "  "
        for each in heights:
            rails[height - each] = "│ "
    return "\n".join(lines)


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
