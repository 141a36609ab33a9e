"""Baselines: trees that do not depend on the words of a sentence.

    left("a b c d".split())                 # (((a b) c) d)
    right("a b c d".split())                # (a (b (c d)))
    balanced("a b c d".split())             # ((a b) (c d))
    uniform("a b c d".split(), seed=0)      # each of the five trees has the same probability
    easy_first("a b c d".split(), seed=0)   # random neighbours are merged until one node is left

The two random baselines differ: `easy_first` samples a merge order, and a bushy tree has more merge orders than a
chain. It has the distribution of `random-tree-grc`, which is also that of splitting a sentence at a random position,
then each part again.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from beamtree.trees.tree import Tree

Seed = int | np.random.Generator


def left(leaves: Sequence[str]) -> Tree:
    """Build a left-branching tree.

    Args:
        leaves: the tokens.

    Returns:
        The tree, such as `(((a b) c) d)`.

    Examples:
        >>> from beamtree.trees import baselines
        >>> baselines.left("a b c d".split())
        Tree.parse('(((a b) c) d)')
    """
    return _by_times(range(len(leaves) - 1), leaves)


def right(leaves: Sequence[str]) -> Tree:
    """Build a right-branching tree.

    Args:
        leaves: the tokens.

    Returns:
        The tree, such as `(a (b (c d)))`.

    Examples:
        >>> from beamtree.trees import baselines
        >>> baselines.right("a b c d".split())
        Tree.parse('(a (b (c d)))')
    """
    return _by_times(range(len(leaves) - 1, 0, -1), leaves)


def balanced(leaves: Sequence[str]) -> Tree:
    """Build a balanced tree: merge neighbours in pairs, then the pairs in pairs, as `balanced-tree-grc` does.

    Args:
        leaves: the tokens.

    Returns:
        The tree, such as `((a b) (c d))`.

    Examples:
        >>> from beamtree.trees import baselines
        >>> baselines.balanced("a b c d e".split())
        Tree.parse('(((a b) (c d)) e)')
    """
    # Leaves i and i+1 are merged in round r, where 2^r is the largest power of two that divides i+1; 2^r is the time.
    return _by_times([after & -after for after in range(1, len(leaves))], leaves)


def uniform(leaves: Sequence[str], seed: Seed) -> Tree:
    """Sample a tree uniformly from all binary trees.

    Args:
        leaves: the tokens.
        seed: an integer, or a NumPy generator.

    Returns:
        The tree.

    Examples:
        >>> from beamtree.trees import baselines
        >>> len(baselines.uniform("a b c d".split(), seed=0))
        4
    """
    size = len(leaves)
    if not size:
        raise ValueError("a tree needs at least one leaf, got none")
    # By the cycle lemma, exactly one rotation of `size` shifts and `size` − 1 reduces never empties the parser's stack:
    # the one that starts after the last position at which the running sum is lowest.
    steps = np.repeat([1, -1], [size, size - 1])
    np.random.default_rng(seed).shuffle(steps)
    sums = np.cumsum(steps)
    lowest = 2 * size - 2 - int(sums[::-1].argmin())
    steps = np.roll(steps, -(lowest + 1))
    shifts = np.flatnonzero(steps == 1)
    reduces = np.diff(shifts, append=2 * size - 1) - 1
    return Tree(tuple(leaves), tuple(reduces.tolist()))


def easy_first(leaves: Sequence[str], seed: Seed) -> Tree:
    """Sample a tree by merging random neighbours, all with the same probability, until one node is left.

    Args:
        leaves: the tokens.
        seed: an integer, or a NumPy generator.

    Returns:
        The tree.

    Examples:
        >>> from beamtree.trees import baselines
        >>> len(baselines.easy_first("a b c d".split(), seed=0))
        4
    """
    return _by_times(np.random.default_rng(seed).permutation(max(len(leaves) - 1, 0)).tolist(), leaves)


BASELINES: dict[str, Callable[[Sequence[str], Seed], Tree]] = {
    "left": lambda leaves, seed: left(leaves),
    "right": lambda leaves, seed: right(leaves),
    "balanced": lambda leaves, seed: balanced(leaves),
    "random, uniform": uniform,
    "random, easy-first": easy_first,
}


def _by_times(times: Iterable[int], leaves: Sequence[str]) -> Tree:
    """Build the tree in which leaves i and i+1 are joined by a merge at the i-th time; earlier merges are lower."""
    reduces = [0] * len(leaves)
    waiting: list[int] = []  # times of merges whose right child is not complete, latest first
    for position, time in enumerate(times):
        while waiting and waiting[-1] < time:
            waiting.pop()
            reduces[position] += 1
        waiting.append(time)
    if waiting:
        reduces[-1] += len(waiting)
    return Tree(tuple(leaves), tuple(reduces))
