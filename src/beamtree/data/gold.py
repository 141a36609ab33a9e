"""Gold trees of formal languages, whose brackets are tokens."""

from collections.abc import Container, Sequence

from beamtree.trees import Tree


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
