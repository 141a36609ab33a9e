"""What an encoder returns: the encoding, and the beams it was computed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.engine.chart import Chart
from beamtree.trees import Tree
from beamtree.trees.parses import Parse, Parses


class Nodes(NamedTuple):
    """Every constituent of every beam: first the N leaves, then the N−1 merged nodes in merge order.

    Attributes:
        states: their states (B, K, 2N−1, D), with gradients.
        spans: the words each of them covers, [start, end), (B, K, 2N−1, 2).
        mask: False for padding and for beams that do not exist, (B, K, 2N−1).

    Examples:
        >>> encoder = beamtree.encoder("bt-grc", dim=8, beam_size=3)
        >>> nodes = encoder(torch.randn(2, 5, 8), lengths=[5, 3]).beams.nodes
        >>> nodes.states.shape, nodes.spans.shape
        (torch.Size([2, 3, 9, 8]), torch.Size([2, 3, 9, 2]))
        >>> nodes.mask[1, 0].sum()  # three leaves and two merged nodes
        tensor(5)
    """

    states: Float[Tensor, "B K 2N-1 D"]
    spans: Int[Tensor, "B K 2N-1 2"]
    mask: Bool[Tensor, "B K 2N-1"]


@dataclass(frozen=True, eq=False, repr=False)
class Beams:
    """The trees that were found, best first.

    While OneSoft trains, its last beam is a mixture. The reported tree of this beam, and of those that descend from it,
    follows the mixed merge of largest weight.

    Attributes:
        log_probs: log-probabilities of the beams, (B, K), normalised over the beams; −inf for beams that do not exist.
        chart: all states that the engine kept, and the beams as references into them, in the same order of beams.
        lengths: lengths of the samples, (B,).
        dim: width D of the encodings.

    Examples:
        >>> encoder = beamtree.encoder("gold-tree-grc", dim=8)
        >>> beams = encoder(torch.randn(1, 3, 8), trees=["(a (b c))"]).beams
        >>> beams
        Beams(1 of each of 1 samples, of up to 3 leaves)
        >>> beams.trees([["a", "b", "c"]])
        [[Tree.parse('(a (b c))')]]
    """

    log_probs: Float[Tensor, "B K"]
    chart: Chart
    lengths: Int[Tensor, "B"]
    dim: int

    def trees(self, tokens: Sequence[Sequence[str]] | None = None) -> list[list[Tree]]:
        """Convert the beams to trees.

        Args:
            tokens: the tokens of each sample, for the leaves; by default the positions 0, 1, ….

        Returns:
            For each sample the trees of its beams, best first.

        Raises:
            ValueError: if the number of tokens is not the length of the sample.
        """
        lengths = self._checked_lengths(tokens)
        found = self.log_probs.detach().isfinite().tolist()
        actions = self.chart.actions.tolist()
        return [
            [
                Tree.from_actions(beam[: length - 1], None if tokens is None else tokens[sample])
                for beam, exists in zip(actions[sample], found[sample], strict=True)
                if exists
            ]
            for sample, length in enumerate(lengths)
        ]

    def parses(self, tokens: Sequence[Sequence[str]] | None = None) -> list[Parses]:
        """Combine the beams of each sample that found the same tree in different merge orders.

        Args:
            tokens: the tokens of each sample, for the leaves; by default the positions 0, 1, ….

        Returns:
            For each sample its distinct trees, most probable first. The probability of a tree is the sum over its
            beams, and its merges are those of the best of them.
        """
        result = []
        spans, probabilities = self.chart.spans.tolist(), self.log_probs.detach().exp().tolist()
        for sample, trees in enumerate(self.trees(tokens)):
            total: dict[Tree, float] = {}
            merges: dict[Tree, tuple[tuple[int, int], ...]] = {}
            # Not strict: beams that do not exist come last and have no tree.
            for tree, probability, made in zip(trees, probabilities[sample], spans[sample], strict=False):
                total[tree] = total.get(tree, 0.0) + probability
                merges.setdefault(tree, tuple((start, end) for start, end in made[: len(tree) - 1]))
            # Rounding may lift the sum over all beams above 1.
            found = (Parse(tree, min(probability, 1.0), merges[tree]) for tree, probability in total.items())
            result.append(Parses(sorted(found, key=lambda parse: -parse.probability)))
        return result

    def best_trees(self, tokens: Sequence[Sequence[str]] | None = None) -> list[Tree]:
        """Return the most probable tree of each sample: the first of its `parses`, at a fraction of their cost.

        Args:
            tokens: the tokens of each sample, for the leaves; by default the positions 0, 1, ….

        Returns:
            A tree for each sample.

        Raises:
            ValueError: if the number of tokens is not the length of the sample.
        """
        lengths = self._checked_lengths(tokens)
        probabilities = self.log_probs.detach().double().exp().nan_to_num(0)  # (B, K)
        shapes = self._reduces()  # (B, K, N)
        same = (shapes.unsqueeze(1) == shapes.unsqueeze(2)).all(-1)  # (B, K, K)
        totals = (same * probabilities.unsqueeze(1)).sum(-1)  # (B, K), of the tree of each beam
        best = totals.sort(dim=1, descending=True, stable=True).indices[:, 0]
        found = shapes[torch.arange(len(best), device=best.device), best].tolist()
        leaves = [[str(place) for place in range(length)] for length in lengths] if tokens is None else tokens
        return [
            Tree(tuple(words), tuple(reduces[:length]))
            for words, reduces, length in zip(leaves, found, lengths, strict=True)
        ]

    def _reduces(self) -> Int[Tensor, "B K N"]:
        """The shapes of the trees, as in `Tree.reduces`; zeros behind the end of a sample."""
        B, K, M, _ = self.chart.spans.shape
        exists = torch.arange(M, device=self.lengths.device) < self.lengths.unsqueeze(1) - 1  # (B, M)
        ends = (self.chart.spans[..., 1] - 1).clamp(min=0)  # (B, K, M), the last leaf of each constituent
        counts = exists.to(ends.dtype).unsqueeze(1).expand(-1, K, -1)
        return ends.new_zeros(B, K, M + 1).scatter_add_(2, ends, counts)

    def _checked_lengths(self, tokens: Sequence[Sequence[str]] | None) -> list[int]:
        lengths: list[int] = self.lengths.tolist()
        if tokens is not None and [len(sentence) for sentence in tokens] != lengths:
            raise ValueError(f"tokens of lengths {[len(t) for t in tokens]} for inputs of lengths {lengths}")
        return lengths

    def distinct(self, tokens: Sequence[Sequence[str]] | None = None) -> list[list[tuple[Tree, float]]]:
        """List the distinct trees of each sample with their probabilities, as in `parses`.

        Args:
            tokens: the tokens of each sample, for the leaves; by default the positions 0, 1, ….

        Returns:
            For each sample pairs (tree, probability), most probable first.
        """
        return [[(parse.tree, parse.probability) for parse in parses] for parses in self.parses(tokens)]

    def __repr__(self) -> str:
        B, K = self.log_probs.shape
        return f"Beams({K} of each of {B} samples, of up to {self.chart.nodes.shape[2] + 1} leaves)"

    @property
    def nodes(self) -> Nodes:
        """States and spans of all constituents, for span-level losses and probes."""
        found: Nodes | None = vars(self).get("_nodes")
        wants_gradient = torch.is_grad_enabled() and self.chart.store.requires_grad
        if found is None or (wants_gradient and not found.states.requires_grad):  # they were read under `no_grad`
            found = vars(self)["_nodes"] = self._gather_nodes()
        return found

    def _gather_nodes(self) -> Nodes:
        B, K, M = self.chart.nodes.shape
        N = M + 1
        device = self.lengths.device
        position = torch.arange(N, device=device)
        leaf_rows = torch.arange(B * N, device=device).view(B, 1, N).expand(B, K, N)
        leaf_spans = torch.stack((position, position + 1), dim=-1).expand(B, K, N, 2)
        length = self.lengths.view(B, 1, 1)
        mask = torch.cat((position < length, position[:M] < length - 1), dim=-1).expand(B, K, N + M)
        mask = mask & self.log_probs.detach().isfinite().unsqueeze(-1)
        rows = torch.cat((leaf_rows, self.chart.nodes), dim=-1) * mask  # (B, K, 2N−1); row 0 where masked
        states = self.chart.store[:, : self.dim].index_select(0, rows.flatten()).view(B, K, N + M, self.dim)
        spans = torch.cat((leaf_spans, self.chart.spans), dim=2)
        absent = ~mask.unsqueeze(-1)
        return Nodes(states.masked_fill(absent, 0), spans.masked_fill(absent, 0), mask)


@dataclass(frozen=True, eq=False, repr=False)
class Encoding:
    """The result of an encoder.

    Attributes:
        state: the encodings, (B, D).
        beams: the beams they were computed from; None if the encoder builds no trees.

    Examples:
        >>> beamtree.encoder("bt-grc", dim=8)(torch.randn(2, 4, 8))
        Encoding(state=(2, 8) of torch.float32, beams=Beams(5 of each of 2 samples, of up to 4 leaves))
    """

    state: Float[Tensor, "B D"]
    beams: Beams | None = None

    def __repr__(self) -> str:
        return f"Encoding(state={tuple(self.state.shape)} of {self.state.dtype}, beams={self.beams!r})"
