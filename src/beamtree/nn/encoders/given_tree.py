"""Composition by fixed trees: gold, balanced, random.

Baselines of Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023, after Shi et al., *On Tree-Based Neural
Sentence Modeling*, EMNLP 2018.

The state of a leaf is h_i = LN(x_i W + b), the state of a constituent is R(left child, right child), and the encoding
is the state of the root. The encoders differ in where the tree comes from:

    balanced   each round merges neighbours in pairs; an odd element at the end waits for the next round
    random     merges a pair of neighbours chosen uniformly at random until one is left; a new tree for each call, at
               inference too
    gold       given by the user
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Encoding
from beamtree.nn.cells import function_of, make_cell
from beamtree.nn.encoders.base import Cost, Encoder, Lengths, average, in_full, node_dropout
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.forest import TREES, TreeRequest
from beamtree.nn.engine.merges import Merges, from_times, from_trees
from beamtree.trees import Tree
from beamtree.utils.checks import check_deviation, check_rate


class GivenTree(Encoder):
    """Base class of the encoders that compose along fixed trees.

    A subclass provides the trees.
    """

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
        state_noise: float = 0.0,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            dropout: dropout rate inside the cell.
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", "lstm", or your own module, which maps two states to one.
            state_noise: standard deviation of the noise that is added to each composed state during training; only for
                the cell "grc".
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_deviation("state_noise", state_noise)
        check_engine(engine)
        self.engine = engine
        self.cell = make_cell(cell, dim, dropout, state_noise=state_noise)
        self.leaf = self.cell.leaf()

    def compose(
        self,
        x: Float[Tensor, "B N D"],
        lengths: Int[Tensor, "B"],
        merges: Merges,
        generator: torch.Generator | None,
    ) -> Encoding:
        """The encoding along these trees. `lengths` must be on the CPU."""
        leaves = in_full(self.leaf(x))  # (B, N, D)
        dropout = node_dropout(self.cell, leaves, generator)
        request = TreeRequest(leaves, lengths, merges, function_of(self.cell), dropout)
        chart = self._engine(TREES, request)(request)
        return average(chart, chart.scores, lengths.to(x.device), self.dim)

    def extra_repr(self) -> str:
        return f"engine={self.engine!r}"


class BalancedTree(GivenTree):
    """Balanced trees, independent of the words: `balanced-tree-grc`.

    Examples:
        >>> encoder = beamtree.BalancedTree(dim=8)
        >>> print(encoder(torch.randn(1, 4, 8)).beams.trees([["a", "b", "c", "d"]])[0][0])
        ((a b) (c d))
    """

    paper = "Shi et al. 2018"
    cost = Cost("N−1", "⌈log₂ N⌉", "N·D")
    OFFICIAL: ClassVar[dict[str, str]] = {
        theirs.replace("treecell_layer", "tree_cell"): ours for theirs, ours in GivenTree.OFFICIAL.items()
    }

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        B, N, _ = x.shape
        # The first round merges the leaves 0 and 1, 2 and 3, …; the second merges across 1 and 2, 5 and 6, …. The round
        # that merges across i and i+1 is the number of times that 2 divides i+1, for samples of any length.
        after = torch.arange(1, N)
        rounds = (after & -after).expand(B, -1)  # 2 to that power
        lengths = lengths.cpu()
        return self.compose(x, lengths, from_times(rounds, lengths), generator)


class RandomTree(GivenTree):
    """Random trees, drawn anew for each call: `random-tree-grc`.

    The distribution is uniform over merge orders, so bushy trees are more probable than chains. With the same
    `generator` or seed and the same shape of x, the trees are the same.

    Examples:
        >>> encoder = beamtree.RandomTree(dim=8)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).state.shape
        torch.Size([2, 8])
    """

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        B, N, _ = x.shape
        # Merging a random pair repeatedly is equivalent to merging all pairs in the order of random times. In float64
        # ties do not occur in practice.
        times = torch.rand(B, N - 1, dtype=torch.float64, device=x.device, generator=generator).cpu()
        lengths = lengths.cpu()
        return self.compose(x, lengths, from_times(times, lengths), generator)


class GoldTree(GivenTree):
    """Trees given by the user: `gold-tree-grc`.

    The root is always composed; the published code omits it for all but the longest samples of a batch.

    Examples:
        >>> encoder = beamtree.GoldTree(dim=8)
        >>> x = torch.randn(2, 3, 8)
        >>> encoder(x, lengths=[3, 2], trees=["(a (b c))", "(d e)"]).state.shape
        torch.Size([2, 8])
    """

    needs_trees = True

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        lengths: Lengths = None,
        generator: torch.Generator | None = None,
        trees: Sequence[Tree | str] | None = None,
    ) -> Encoding:
        """Encode a batch of sequences along their trees.

        Args:
            x: input vectors (B, N, D), right padded.
            lengths: length of each sample, in any form that `Encoder.forward` takes.
            generator: source of dropout; by default PyTorch's global generator.
            trees: one tree per sample, as a `Tree` or as brackets for `Tree.parse`, with one leaf per vector. Required.

        Returns:
            The encodings (B, D), with one beam for each sample.

        Raises:
            ValueError: if there is not exactly one tree of the right size for each sample.
        """
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


def _checked(trees: Iterable[Tree | str] | None, lengths: list[int]) -> list[Tree]:
    """Validate that there is one tree of the right size for each sample, and parse brackets."""
    if trees is None or isinstance(trees, (str, Tree)) or not isinstance(trees, Iterable):
        given = "no trees" if trees is None else "one tree" if isinstance(trees, (str, Tree)) else repr(trees)
        raise ValueError(f"got {given}: gold-tree-grc needs trees=[…], a Tree or brackets for each of its samples")
    trees = list(trees)
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
