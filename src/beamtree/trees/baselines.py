"""Trees that know nothing of their sentence, for comparison.

    left("a b c d".split())                 # (((a b) c) d)
    right("a b c d".split())                # (a (b (c d)))
    balanced("a b c d".split())             # ((a b) (c d))
    uniform("a b c d".split(), seed=0)      # each of the five trees with the same probability
    easy_first("a b c d".split(), seed=0)   # any two neighbours are joined, until one is left

The two random ones differ: `easy_first` draws an order of merges, and a bushy tree has more orders than a chain. It has
the distribution of `random-tree-grc`, and also that of cutting a sentence in two at a random place, then each half.
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
        The tree, as `(((a b) c) d)`.

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
        The tree, as `(a (b (c d)))`.

    Examples:
        >>> from beamtree.trees import baselines
        >>> baselines.right("a b c d".split())
        Tree.parse('(a (b (c d)))')
    """
    return _by_times(range(len(leaves) - 1, 0, -1), leaves)


def balanced(leaves: Sequence[str]) -> Tree:
    """Build a balanced tree: join neighbours in pairs, then the pairs in pairs, as `balanced-tree-grc` does.

    Args:
        leaves: the tokens.

    Returns:
        The tree, as `((a b) (c d))`.

    Examples:
        >>> from beamtree.trees import baselines
        >>> baselines.balanced("a b c d e".split())
        Tree.parse('(((a b) (c d)) e)')
    """
    # Neighbours i and i+1 meet in the round that is the number of times i+1 can be halved: this is 2 to that power.
    return _by_times([after & -after for after in range(1, len(leaves))], leaves)


def uniform(leaves: Sequence[str], seed: Seed) -> Tree:
    """Draw a tree: every binary tree has the same probability.

    Args:
        leaves: the tokens.
        seed: a number, or a generator of NumPy.

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
    # A shuffled circle of `size` shifts and `size` − 1 reduces can be opened in exactly one place so that the parser's
    # stack is never empty after the first (the cycle lemma): behind the last place where the running sum is lowest.
    steps = np.repeat([1, -1], [size, size - 1])
    np.random.default_rng(seed).shuffle(steps)
    sums = np.cumsum(steps)
    lowest = 2 * size - 2 - int(sums[::-1].argmin())
    steps = np.roll(steps, -(lowest + 1))
    shifts = np.flatnonzero(steps == 1)
    reduces = np.diff(shifts, append=2 * size - 1) - 1
    return Tree(tuple(leaves), tuple(reduces.tolist()))


def easy_first(leaves: Sequence[str], seed: Seed) -> Tree:
    """Draw a tree by joining any two neighbours, all with the same probability, until one is left.

    Args:
        leaves: the tokens.
        seed: a number, or a generator of NumPy.

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
    """The tree in which neighbours are joined at these times, one for each two: the earliest are the lowest."""
    reduces = [0] * len(leaves)
    waiting: list[int] = []  # the times of joins that wait for their right part, the latest first
    for position, time in enumerate(times):
        while waiting and waiting[-1] < time:
            waiting.pop()
            reduces[position] += 1
        waiting.append(time)
    if waiting:
        reduces[-1] += len(waiting)
    return Tree(tuple(leaves), tuple(reduces))
