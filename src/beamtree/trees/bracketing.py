"""Bracketings: brackets of any number of constituents, a gold standard that leaves the tree inside a list open.

A list of ListOps, `[MAX 2 9 0 ]`, is one constituent of five tokens; that its gold *tree* merges them from the left is
a convention. A `Bracketing` has only the spans of the lists, and `beamtree.trees.scores` compares trees with it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from beamtree.trees.tree import Span, Tree

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True, slots=True, repr=False)
class Bracketing:
    """Spans over leaves, which must not cross. They include the whole sequence, but no single leaves.

    Attributes:
        leaves: the tokens.
        spans: half-open (start, end), inner ones first. They may be given in any order.

    Examples:
        >>> from beamtree.trees import Bracketing
        >>> gold = Bracketing.parse("(a (b c d) e)")
        >>> gold.spans, str(gold.binarised())
        (((1, 4), (0, 5)), '((a ((b c) d)) e)')
    """

    leaves: tuple[str, ...]
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        size = len(self.leaves)
        if not size:
            raise ValueError("a bracketing needs at least one leaf, got none")
        found = {(start, end) for start, end in self.spans if (start, end) != (0, size)}
        open_ends: list[int] = []
        for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
            if not 0 <= start < end <= size:
                raise ValueError(
                    f"span ({start}, {end}) is out of range for {size} leaves: "
                    f"a span (start, end) needs 0 <= start < end <= {size}"
                )
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and open_ends[-1] < end:
                raise ValueError(f"span ({start}, {end}) crosses another one, which ends at {open_ends[-1]}")
            open_ends.append(end)
        whole = {(0, size)} if size > 1 else set()
        inner_first = sorted(found | whole, key=lambda span: (span[1], -span[0]))
        object.__setattr__(self, "spans", tuple(span for span in inner_first if span[1] - span[0] > 1))

    @classmethod
    def parse(cls, text: str) -> "Bracketing":
        """Read brackets such as "(a (b c d) e)".

        Args:
            text: brackets as for `Tree.parse`, except that each may contain any number of constituents.

        Returns:
            The bracketing.

        Raises:
            ValueError: if the brackets are unbalanced or empty; the message says where.
        """
        leaves: list[str] = []
        spans: list[Span] = []
        opened: list[tuple[int, int]] = []  # first leaf and character of each open bracket
        for match in _TOKEN.finditer(text):
            token, position = match.group(), match.start()
            if (leaves or spans) and not opened:
                raise ValueError(f"the brackets are complete before {token!r} at character {position}: give one tree")
            if token == "(":
                opened.append((len(leaves), position))
            elif token == ")":
                if not opened:
                    raise ValueError(f"unbalanced brackets: the ')' at character {position} closes no '('")
                start, character = opened.pop()
                if start == len(leaves):
                    raise ValueError(f"the bracket from character {character} to {position} is empty: fill it in")
                spans.append((start, len(leaves)))
            else:
                leaves.append(token.replace("-LRB-", "(").replace("-RRB-", ")"))
        if opened:
            raise ValueError(f"unbalanced brackets: the '(' at character {opened[-1][1]} is never closed")
        return cls(tuple(leaves), tuple(spans))

    @classmethod
    def from_tokens(cls, tokens: Sequence[str]) -> "Bracketing":
        """Read the lists of a formal language, whose brackets are tokens.

        Args:
            tokens: one that begins with "[" or "(" opens a list, and "]" or ")" closes it.

        Returns:
            The bracketing whose spans are the lists.

        Raises:
            ValueError: if the brackets are unbalanced.
        """
        spans: list[Span] = []
        opened: list[int] = []
        for position, token in enumerate(tokens):
            if token in ("]", ")"):
                if not opened:
                    raise ValueError(f"unbalanced brackets: the {token!r} at token {position} closes no list")
                spans.append((opened.pop(), position + 1))
            elif token.startswith(("[", "(")):
                opened.append(position)
        if opened:
            raise ValueError(f"unbalanced brackets: the {tokens[opened[-1]]!r} at token {opened[-1]} is never closed")
        return cls(tuple(tokens), tuple(spans))

    @classmethod
    def from_tree(cls, tree: Tree) -> "Bracketing":
        """Convert a binary tree to a bracketing.

        Args:
            tree: the tree.

        Returns:
            The bracketing with all its spans.
        """
        return cls(tree.leaves, tuple(tree.spans(leaves=False)))

    def __len__(self) -> int:
        """The number of leaves."""
        return len(self.leaves)

    def __repr__(self) -> str:
        return f"<Bracketing of {len(self)} leaves, {len(self.spans)} spans>"

    def binarised(self) -> Tree:
        """Convert to a binary tree.

        Returns:
            A tree that contains all spans, left-branching inside each.
        """
        reduces = [0] * len(self)
        parts: list[Span] = []  # constituents without a parent so far, left to right
        shifted = 0
        for start, end in self.spans:
            parts.extend(_units(shifted, end))
            shifted = end
            while parts[-1][0] > start:  # merge every part but the first with the part before it
                reduces[parts.pop()[1] - 1] += 1
            parts[-1] = (start, end)
        return Tree(self.leaves, tuple(reduces))


def _units(start: int, end: int) -> Iterable[Span]:
    return ((position, position + 1) for position in range(start, end))
