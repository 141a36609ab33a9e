"""Binary trees over a sequence of tokens, as a beam builds them, or as gold trees.

A tree is stored flat, as its leaves and, for each leaf, the number of constituents that end after it: the reduces of a
shift-reduce parser after it shifts that leaf. These counts determine the tree, so trees are equal if their tuples are.
No operation is recursive, so a chain of 50,000 leaves is no problem.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

T = TypeVar("T")
Span = tuple[int, int]  # the leaves [start, end)

_TOKEN = re.compile(r"[()]|[^\s()]+")

# Larger trees have a short repr, which does not fill a traceback or a list.
_REPR_LEAVES = 20


@dataclass(frozen=True, slots=True, repr=False)
class Tree:
    """An immutable binary tree; create one with `parse`, `from_actions` or `from_spans`.

    Trees are equal if their leaves and their shapes are. `len(tree)` is the number of leaves, and `str(tree)` returns
    brackets that `parse` reads.

    Attributes:
        leaves: the tokens.
        reduces: for each leaf, the number of constituents that end after it.

    Examples:
        >>> tree = beamtree.Tree.parse("((a b) c)")
        >>> tree.leaves, tree.spans(leaves=False), tree.actions()
        (('a', 'b', 'c'), [(0, 2), (0, 3)], [0, 0])
        >>> tree == beamtree.Tree.from_spans([(0, 2), (0, 3)], ["a", "b", "c"])
        True
    """

    leaves: tuple[str, ...]
    reduces: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.leaves:
            raise ValueError("a tree needs at least one leaf, got none")
        for position, leaf in enumerate(self.leaves):
            if not isinstance(leaf, str) or leaf.split() != [leaf]:
                raise ValueError(f"leaf {position} is {leaf!r}: a leaf must be a non-empty string without whitespace")
        depths = self._depths()
        if len(depths) != len(self.leaves) or min(self.reduces) < 0 or min(depths) < 1 or depths[-1] != 1:
            raise ValueError(
                f"the shape given for {len(self.leaves)} leaves is not one binary tree over them: "
                "use Tree.parse, Tree.from_actions, Tree.from_spans or with_leaves"
            )

    @classmethod
    def parse(cls, text: str) -> "Tree":
        """Read a tree in brackets, such as "((a b) c)".

        Args:
            text: the brackets, each around two constituents. Whitespace around brackets is ignored, and -LRB- and -RRB-
                are read as ( and ).

        Returns:
            The tree.

        Raises:
            ValueError: if the text is not one binary tree; the message says where.
        """
        leaves: list[str] = []
        reduces: list[int] = []
        opened: list[int] = []  # position of each open bracket
        held: list[int] = []  # number of constituents in each of them so far
        for match in _TOKEN.finditer(text):
            token, position = match.group(), match.start()
            if token == ")" and not opened:
                raise ValueError(f"unbalanced brackets: the ')' at character {position} closes no '('")
            if leaves and not opened:
                raise ValueError(
                    f"the tree is complete before {token!r} at character {position}: "
                    "give one tree, with a bracket around every two constituents, as in '((a b) c)'"
                )
            if token == "(":
                opened.append(position)
                held.append(0)
                continue
            if token == ")":
                start, count = opened.pop(), held.pop()
                if count != 2:
                    raise ValueError(
                        f"the bracket from character {start} to {position} holds {count} "
                        f"constituent{'' if count == 1 else 's'}: it must hold exactly two, as in '((a b) c)'"
                    )
                reduces[-1] += 1
            else:
                leaves.append(token.replace("-LRB-", "(").replace("-RRB-", ")"))
                reduces.append(0)
            if held:
                held[-1] += 1
        if opened:
            raise ValueError(f"unbalanced brackets: the '(' at character {opened[-1]} is never closed")
        if not leaves:
            raise ValueError(f"the text {text!r} is empty: it must be a tree such as '((a b) c)'")
        return cls(tuple(leaves), tuple(reduces))

    @classmethod
    def from_actions(cls, actions: Sequence[int], leaves: Sequence[str] | None = None) -> "Tree":
        """Build a tree by merging neighbours.

        Args:
            actions: action j replaces elements j and j+1 of the current sequence by their parent. The merges may be in
                any order, as in a beam.
            leaves: one more than there are actions; by default "0", "1", ….

        Returns:
            The tree.

        Raises:
            ValueError: if an action is out of range, or the number of leaves is wrong.
        """
        size = len(actions) + 1
        if leaves is None:
            leaves = [str(position) for position in range(size)]
        elif len(leaves) != size:
            raise ValueError(f"{size - 1} actions build a tree of {size} leaves, got {len(leaves)} leaves")
        reduces = [0] * size
        ends = list(range(size))  # the last leaf of each element of the current sequence
        for step, action in enumerate(actions):
            if not 0 <= action < len(ends) - 1:
                raise ValueError(
                    f"action {action} at step {step} is out of range: "
                    f"with {len(ends)} elements left it must be from 0 to {len(ends) - 2}"
                )
            reduces[ends[action + 1]] += 1
            del ends[action]
        return cls(tuple(leaves), tuple(reduces))

    @classmethod
    def from_spans(cls, spans: Iterable[Span], leaves: Sequence[str]) -> "Tree":
        """Build a tree from its spans.

        Args:
            spans: (start, end) of the constituents, half-open, in any order. Repeated and single-leaf ones are ignored.
            leaves: the tokens.

        Returns:
            The tree.

        Raises:
            ValueError: if the spans are not those of one binary tree over the leaves.
        """
        size = len(leaves)
        distinct = {(start, end) for start, end in spans}
        for start, end in distinct:
            if not 0 <= start < end <= size:
                raise ValueError(
                    f"span ({start}, {end}) is out of range for {size} leaves: "
                    f"a span (start, end) needs 0 <= start < end <= {size}"
                )
        reduces = [0] * size
        starts: list[int] = []  # of the constituents built so far, left to right
        shifted = 0
        # Sorted by end, then from the shortest to the longest: children come before their parents.
        for start, end in sorted(distinct, key=lambda span: (span[1], -span[0])):
            if end - start == 1:
                continue
            starts.extend(range(shifted, end))
            shifted = end
            if starts[-2:-1] != [start]:
                raise ValueError(
                    f"span ({start}, {end}) does not join two neighbouring constituents: "
                    "a span is missing inside it, or another one crosses it"
                )
            starts.pop()
            reduces[end - 1] += 1
        remaining = len(starts) + size - shifted
        if remaining > 1:
            raise ValueError(
                f"the spans leave {remaining} separate constituents: a binary tree over {size} leaves "
                f"has {size - 1} spans of two or more leaves, the last of them (0, {size})"
            )
        return cls(tuple(leaves), tuple(reduces))

    @classmethod
    def from_nltk(cls, tree: Any) -> "Tree":
        """Convert an `nltk.Tree`.

        Args:
            tree: a tree whose constituents have two children each. Labels, and nodes with one child, such as parts of
                speech, are dropped.

        Returns:
            The tree.

        Raises:
            ValueError: if a node has more than two children.
        """
        spans: list[Span] = []
        leaves: list[str] = []
        starts: list[int] = []
        # Without recursion: a node is visited before its children, and once more, as None, after them.
        todo: list[Any] = [tree]
        while todo:
            node = todo.pop()
            if node is None:
                spans.append((starts.pop(), len(leaves)))
            elif isinstance(node, str):
                leaves.append(node)
            else:
                children = list(node)
                if not 1 <= len(children) <= 2:
                    raise ValueError(
                        f"a node has {len(children)} children: binarise the tree first, "
                        "for example with its method chomsky_normal_form()"
                    )
                starts.append(len(leaves))
                todo += [None, *reversed(children)]
        return cls.from_spans(spans, leaves)

    def to_nltk(self, label: str = "") -> Any:
        """Convert to an `nltk.Tree`. Requires nltk, an optional package.

        Args:
            label: the label of every node.

        Returns:
            The `nltk.Tree`. A single leaf becomes a node with one child.

        Raises:
            ValueError: if nltk is not installed.
        """
        try:
            from nltk import Tree as NltkTree  # type: ignore[import-untyped]
        except ImportError:
            raise ValueError("to_nltk needs nltk, which is not installed: pip install nltk") from None
        if self.is_leaf:
            return NltkTree(label, list(self.leaves))
        return self._fold(list[Any](self.leaves), lambda left, right: NltkTree(label, [left, right]))[-1]

    def with_leaves(self, leaves: Sequence[str]) -> "Tree":
        """Copy the tree with other leaves.

        Args:
            leaves: as many as the tree has.

        Returns:
            A tree of the same shape.

        Raises:
            ValueError: if the number of leaves differs.
        """
        if len(leaves) != len(self):
            raise ValueError(f"a tree of {len(self)} leaves needs as many new leaves, got {len(leaves)}")
        return Tree(tuple(leaves), self.reduces)

    def __len__(self) -> int:
        """The number of leaves."""
        return len(self.leaves)

    def __str__(self) -> str:
        """Brackets that `parse` reads, unless a leaf contains an escape such as -LRB-."""
        opens = Counter(start for start, _ in self.spans(leaves=False))
        escaped = (leaf.replace("(", "-LRB-").replace(")", "-RRB-") for leaf in self.leaves)
        return " ".join(
            "(" * opens[position] + leaf + ")" * closes
            for position, (leaf, closes) in enumerate(zip(escaped, self.reduces, strict=True))
        )

    def __repr__(self) -> str:
        if len(self) > _REPR_LEAVES:
            return f"<Tree of {len(self)} leaves, height {self.height}>"
        return f"Tree.parse({str(self)!r})"

    def _repr_svg_(self) -> str:
        from beamtree.trees.drawing import draw_tree  # imported here to avoid a circular import

        return draw_tree(self)._repr_svg_()

    def _repr_html_(self) -> str:
        """HTML for notebooks, in which large drawings scroll."""
        from beamtree.trees.drawing import draw_tree

        return draw_tree(self)._repr_html_()

    def spans(self, leaves: bool = True) -> list[Span]:
        """List the spans of the constituents.

        Args:
            leaves: whether to include single leaves.

        Returns:
            Half-open (start, end) of the leaves, left to right, then of their parents, children first.
        """
        units = [(position, position + 1) for position in range(len(self))]
        parents = self._fold(units, lambda left, right: (left[0], right[1]))
        return units + parents if leaves else parents

    def heights(self, leaves: bool = True) -> list[int]:
        """List the heights of the constituents.

        Args:
            leaves: whether to include single leaves, whose height is 0.

        Returns:
            The heights, in the order of `spans`.
        """
        units = [0] * len(self)
        parents = self._fold(units, lambda left, right: 1 + max(left, right))
        return units + parents if leaves else parents

    @property
    def height(self) -> int:
        """The height of the root; 0 for a leaf."""
        return self.heights()[-1]

    def actions(self) -> list[int]:
        """List the merges that build the tree.

        Returns:
            Actions as `from_actions` takes them, in the order of `spans`.
        """
        # A merge at the top of a stack of d elements merges elements d-2 and d-1 of the sequence.
        return [
            depth - 1 + later
            for depth, count in zip(self._depths(), self.reduces, strict=True)
            for later in reversed(range(count))
        ]

    @property
    def is_leaf(self) -> bool:
        """Whether the tree is a single leaf."""
        return len(self) == 1

    @property
    def left(self) -> "Tree | None":
        """The root's left subtree; None for a leaf."""
        if self.is_leaf:
            return None
        split = self._split()
        return Tree(self.leaves[:split], self.reduces[:split])

    @property
    def right(self) -> "Tree | None":
        """The root's right subtree; None for a leaf."""
        if self.is_leaf:
            return None
        split = self._split()
        # The root also ends after the last leaf, and is not part of the subtree.
        return Tree(self.leaves[split:], (*self.reduces[split:-1], self.reduces[-1] - 1))

    def _split(self) -> int:
        """The first leaf of the root's right subtree: the one after the last with a single constituent on the stack."""
        depths = self._depths()
        return max(end for end in range(1, len(self)) if depths[end - 1] == 1)

    def _depths(self) -> list[int]:
        """The number of constituents on the parser's stack after each leaf and its reduces."""
        return list(accumulate(1 - count for count in self.reduces))

    def _fold(self, units: Iterable[T], merge: Callable[[T, T], T]) -> list[T]:
        """Compute the value of every parent, children first, from the leaves' values and a function of two children."""
        stack: list[T] = []
        parents: list[T] = []
        for unit, count in zip(units, self.reduces, strict=True):
            stack.append(unit)
            for _ in range(count):
                right = stack.pop()
                stack[-1] = merge(stack[-1], right)
                parents.append(stack[-1])
        return parents
