"""Composition by fixed trees: gold, balanced, random (baselines of Ray Chowdhury & Caragea, *Beam Tree Recursive
Cells*, ICML 2023, after Shi et al., *On Tree-Based Neural Sentence Modeling*, EMNLP 2018).

The states of a tree's leaves are h_i = LN(x_i W + b), that of a constituent is R(left child, right child), and the
encoding is that of the root. What differs is where the tree comes from:

    balanced   neighbours are joined in pairs, then the pairs in pairs; at each round an odd one out at the end waits
    random     any two neighbours are joined, all with the same probability, until one is left: a new tree each time,
               at inference too
    gold       from the user
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Encoding
from beamtree.nn.cells import function_of, make_cell
from beamtree.nn.encoders.base import Cost, Encoder, average, in_full, node_dropout
from beamtree.nn.engine.dispatch import check_engine, select
from beamtree.nn.engine.forest import TREES, TreeRequest
from beamtree.nn.engine.merges import Merges, from_times, from_trees
from beamtree.trees import Tree
from beamtree.utils.checks import check_rate


class GivenTree(Encoder):
    """An encoder that composes by trees given beforehand. A subclass says which."""

    paper = "Ray Chowdhury & Caragea 2023"
    cost = Cost("N−1", "tree height", "N·D")
    # Module names of the published code → ours.
    OFFICIAL: ClassVar[dict[str, str]] = {
        "word_linear": "leaf.0",
        "LN": "leaf.1",
        "treecell_layer.wcell1": "cell.expand",
        "treecell_layer.wcell2": "cell.gates",
        "treecell_layer.LN2": "cell.norm",
    }

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        engine: str = "auto",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
    ) -> None:
        """
        dim: width D of inputs and encodings.
        dropout: inside the cell.
        engine: "auto", or one of "reference", "torch" and "triton" (see `beamtree.nn.engine`).
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        cell: R, "grc", "lstm", or a module of your own that maps two states to one.
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_engine(engine)
        self.engine = engine
        self.cell = make_cell(cell, dim, dropout)
        self.leaf = self.cell.leaf()

    def compose(
        self,
        x: Float[Tensor, "B N D"],
        lengths: Int[Tensor, "B"],
        merges: Merges,
        generator: torch.Generator | None,
    ) -> Encoding:
        """The encoding by these trees; `lengths` on the host."""
        leaves = in_full(self.leaf(x))  # (B, N, D)
        dropout = node_dropout(self.cell, leaves, generator)
        request = TreeRequest(leaves, lengths, merges, function_of(self.cell), dropout)
        chart = select(TREES, request, self.engine)(request)
        return average(chart, chart.scores, lengths.to(x.device), self.dim)

    def extra_repr(self) -> str:
        return f"engine={self.engine!r}"


class BalancedTree(GivenTree):
    """Balanced trees, whatever the words: `balanced-tree-grc`."""

    paper = "Shi et al. 2018"
    cost = Cost("N−1", "⌈log₂ N⌉", "N·D")
    OFFICIAL: ClassVar[dict[str, str]] = {
        theirs.replace("treecell_layer", "tree_cell"): ours for theirs, ours in GivenTree.OFFICIAL.items()
    }

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        B, N, _ = x.shape
        # In the first round the leaves 0 and 1, 2 and 3, … are joined, in the second 1 and 2, 5 and 6, …: the round of
        # i and i+1 is the number of times that i+1 can be halved, however long the sample.
        after = torch.arange(1, N)
        rounds = (after & -after).expand(B, -1)  # 2 to that power
        lengths = lengths.cpu()
        return self.compose(x, lengths, from_times(rounds, lengths), generator)


class RandomTree(GivenTree):
    """Random trees, new ones each time: `random-tree-grc`.

    Uniform over the orders of merges, which makes bushy trees more probable than chains; under the same `generator` or
    seed, and for the same shape of x, the trees are the same.
    """

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        B, N, _ = x.shape
        # To pick any two neighbours again and again is to have them all wait for a random time. In float64 no two
        # times are equal.
        times = torch.rand(B, N - 1, dtype=torch.float64, device=x.device, generator=generator).cpu()
        lengths = lengths.cpu()
        return self.compose(x, lengths, from_times(times, lengths), generator)


class GoldTree(GivenTree):
    """Trees that the user gives: `gold-tree-grc`.

    The root is always composed; the published code leaves it out for all but the longest samples of a batch.

    >>> x, lengths = torch.randn(2, 3, 8), torch.tensor([3, 2])
    >>> GoldTree(dim=8)(x, lengths, trees=["(a (b c))", "(d e)"]).state.shape
    torch.Size([2, 8])
    """

    needs_trees = True

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        lengths: Int[Tensor, "B"],
        generator: torch.Generator | None = None,
        trees: Sequence[Tree | str] | None = None,
    ) -> Encoding:
        """`trees`: for each sample its tree, or brackets as `Tree.parse` reads them, over as many leaves as it has."""
        return self._call(self.encode_by, x, lengths, generator, trees)

    def encode_by(
        self,
        x: Float[Tensor, "B N D"],
        lengths: Int[Tensor, "B"],
        generator: torch.Generator | None,
        trees: Sequence[Tree | str] | None,
    ) -> Encoding:
        lengths = lengths.cpu()
        return self.compose(x, lengths, from_trees(_checked(trees, lengths.tolist()), x.shape[1]), generator)


def _checked(trees: Sequence[Tree | str] | None, lengths: list[int]) -> list[Tree]:
    """The trees, if there is one of the right size for each sample."""
    if trees is None or isinstance(trees, (str, Tree)):
        given = "no trees" if trees is None else "one tree"
        raise ValueError(f"got {given}: gold-tree-grc needs trees=[…], a Tree or brackets for each of its samples")
    if len(trees) != len(lengths):
        raise ValueError(f"got {len(trees)} trees for {len(lengths)} samples: each sample needs one")
    checked = []
    for sample, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        if isinstance(tree, str):
            try:
                tree = Tree.parse(tree)
            except ValueError as error:
                raise ValueError(f"trees[{sample}]: {error}") from None
        if not isinstance(tree, Tree):
            raise ValueError(f"trees[{sample}] is of type {type(tree).__name__}: it must be a Tree, or brackets")
        if len(tree) != length:
            raise ValueError(f"trees[{sample}] has {len(tree)} leaves and its sample {length}: they must be as many")
        checked.append(tree)
    return checked
