"""Gold trees: of formal languages, whose brackets are tokens, and of brackets in a column of your own data."""

from collections.abc import Container, Sequence

from beamtree.trees import Tree
from beamtree.trees.bracketing import Bracketing

_QUOTES = ('"', "``", "''")


def left_branching(tokens: Sequence[str], opening: Container[str], closing: str) -> Tree:
    """The tree whose constituents are the bracketed lists, left-branching inside each; brackets must be balanced."""
    reduces: list[int] = []
    nesting = 0
    for token in tokens:
        if token in opening:
            nesting += 1
            reduces.append(0)
        elif token == closing:
            nesting -= 1
            reduces.append(2 if nesting else 1)  # the bracket with its list, and the list with the one around it
        else:
            reduces.append(1 if nesting else 0)
    return Tree(tuple(tokens), tuple(reduces))


def from_brackets(text: str) -> Tree:
    """The binary tree of "((a b) c)"; a bracket with more than two constituents is binarised, left-branching."""
    try:
        return Bracketing.parse(text).binarised()
    except ValueError as error:
        raise ValueError(f"the tree: {error}") from None


def over_tokens(tree: Tree, tokens: Sequence[str], lower: bool = False) -> Tree:
    """The tree over the tokens of a text, which must be its leaves; the form of quotation marks may differ.

    lower: whether the tokens are in lower case, which the leaves need not be.
    """
    for place, (leaf, token) in enumerate(zip(tree.leaves, tokens, strict=False)):
        if not _is_same(leaf, token, lower):
            raise ValueError(f"leaf {place} of the tree is {leaf!r} and token {place} of the text {token!r}: {_REMEDY}")
    if len(tree) != len(tokens):
        raise ValueError(f"the tree has {len(tree)} leaves and the text {len(tokens)} tokens: {_REMEDY}")
    return tree.with_leaves(tokens)


def _is_same(leaf: str, token: str, lower: bool) -> bool:
    return leaf == token or (lower and leaf.lower() == token) or (leaf in _QUOTES and token in _QUOTES)


_REMEDY = 'the leaves must be the tokens; leave the text out to take them from the tree, or choose tokenizer="spaces"'
