"""Gold trees: from formal languages, whose brackets are tokens, and from bracketings in a column of your own data."""

from collections.abc import Container, Sequence

from beamtree.trees import Tree
from beamtree.trees.bracketing import Bracketing

_QUOTES = ('"', "``", "''")


def left_branching(tokens: Sequence[str], opening: Container[str], closing: str) -> Tree:
    """Build the tree whose constituents are the bracketed lists, left-branching in each. Brackets must be balanced."""
    reduces: list[int] = []
    nesting = 0
    for token in tokens:
        if token in opening:
            nesting += 1
            reduces.append(0)
        elif token == closing:
            nesting -= 1
            reduces.append(2 if nesting else 1)  # complete the list, and attach it to the enclosing one
        else:
            reduces.append(1 if nesting else 0)
    return Tree(tuple(tokens), tuple(reduces))


def from_brackets(text: str) -> Tree:
    """Parse "((a b) c)" to a binary tree; a bracket with more than two constituents is binarised, left-branching."""
    try:
        return Bracketing.parse(text).binarised()
    except ValueError as error:
        raise ValueError(f"the tree: {error}") from None


def over_tokens(tree: Tree, tokens: Sequence[str], lower: bool = False) -> Tree:
    """Replace the leaves of a tree by the tokens of its text. Only the form of quotation marks may differ.

    If `lower` is set, the tokens are in lower case and the leaves need not be.
    """
    for index, (leaf, token) in enumerate(zip(tree.leaves, tokens, strict=False)):
        if not _is_same(leaf, token, lower):
            raise ValueError(
                f"leaf {index} of the tree is {leaf!r}, but token {index} of the text is {token!r}: {_REMEDY}"
            )
    if len(tree) != len(tokens):
        raise ValueError(f"the tree has {len(tree)} leaves and the text {len(tokens)} tokens: {_REMEDY}")
    return tree.with_leaves(tokens)


def _is_same(leaf: str, token: str, lower: bool) -> bool:
    return leaf == token or (lower and leaf.lower() == token) or (leaf in _QUOTES and token in _QUOTES)


_REMEDY = 'the leaves must be the tokens; omit the text to use the leaves, or choose tokenizer="spaces"'
