"""What an encoder returns: the encoding, and the beams it was computed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.engine.chart import Chart
from beamtree.trees import Tree
from beamtree.trees.parses import Parse, Parses


class Nodes(NamedTuple):
    """Every constituent of every beam: first the N leaves, then the N−1 merged nodes in merge order."""

    states: Float[Tensor, "B K 2N-1 D"]  # with gradients
    spans: Int[Tensor, "B K 2N-1 2"]  # [start, end)
    mask: Bool[Tensor, "B K 2N-1"]  # False for padding and for beams that do not exist


@dataclass(frozen=True, eq=False, repr=False)
class Beams:
    """The trees that were found, best first.

    While OneSoft trains, its last beam is a mixture. The reported tree of this beam, and of those that descend from it,
    follows the mixed merge of largest weight.
    """

    log_probs: Float[Tensor, "B K"]  # normalised over the beams; −inf for beams that do not exist
    chart: Chart  # in the same order of beams
    lengths: Int[Tensor, "B"]
    dim: int

    def trees(self, tokens: Sequence[Sequence[str]] | None = None) -> list[list[Tree]]:
        """The trees of each sample, best first, with the tokens as leaves, or positions 0, 1, … by default."""
        lengths = self.lengths.tolist()
        if tokens is not None and [len(sentence) for sentence in tokens] != lengths:
            raise ValueError(f"tokens of lengths {[len(t) for t in tokens]} for inputs of lengths {lengths}")
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
        """The distinct trees of each sample, most probable first. Beams that found the same tree in different merge
        orders are combined: their probabilities are summed, and the merges are those of the best beam."""
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

    def distinct(self, tokens: Sequence[Sequence[str]] | None = None) -> list[list[tuple[Tree, float]]]:
        """The distinct trees of each sample with their probabilities, as in `parses`."""
        return [[(parse.tree, parse.probability) for parse in parses] for parses in self.parses(tokens)]

    def __repr__(self) -> str:
        B, K = self.log_probs.shape
        return f"Beams({K} of each of {B} samples, of up to {self.chart.nodes.shape[2] + 1} leaves)"

    @cached_property
    def nodes(self) -> Nodes:
        """States and spans of all constituents, for span-level losses and probes."""
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
        return Nodes(states * mask.unsqueeze(-1), spans * mask.unsqueeze(-1), mask)


@dataclass(frozen=True, eq=False, repr=False)
class Encoding:
    """The result of an encoder: `state` (B, D), and the beams, or None if the model builds no trees."""

    state: Float[Tensor, "B D"]
    beams: Beams | None = None

    def __repr__(self) -> str:
        return f"Encoding(state={tuple(self.state.shape)} of {self.state.dtype}, beams={self.beams!r})"
