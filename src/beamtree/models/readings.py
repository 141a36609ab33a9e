"""Convert the tensors of a batch to predictions, parses, constituents, and labels of constituents."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from beamtree.data.split import ConstituentLabels
from beamtree.data.tokenizers import Token
from beamtree.models.heads import Model, TextClassifier
from beamtree.nn.beams import Beams
from beamtree.nn.encoders.base import Encoder
from beamtree.trees.parses import Node, Parse, Parses
from beamtree.trees.tree import Span


class Prediction(NamedTuple):
    """The label of a text, or of a pair of texts.

    Attributes:
        label: the most probable label.
        probabilities: probabilities of all labels.
        unknown: words that are not in the vocabulary; all are encoded as one unknown word.

    Examples:
        >>> prediction = beamtree.load("listops-bt-grc").predict(["[MAX 2 9 ]"])[0]
        >>> prediction.label, prediction.probabilities["9"] > 0.99, prediction.unknown
        ('9', True, ())
    """

    label: str
    probabilities: dict[str, float]
    unknown: tuple[str, ...] = ()


class Constituent(NamedTuple):
    """A constituent of a text in at least one of its trees.

    Attributes:
        start: first token.
        end: the position after its last token.
        text: the constituent as it is written in the text.
        probability: sum of the probabilities of all beams that contain it.
        vector: its state (D,) in the most probable of these beams.

    Examples:
        >>> constituents = beamtree.load("listops-bt-grc").encode(["[MAX 2 9 ]"], spans=True)[0]
        >>> constituents[0].text, constituents[0].vector.shape
        ('[MAX', torch.Size([128]))
    """

    start: int
    end: int
    text: str
    probability: float
    vector: Float[Tensor, "D"]


class Reading(NamedTuple):
    """Label, trees and vectors of a text, or of a pair of texts.

    Attributes:
        prediction: the label and the probabilities.
        parses: the trees of the text, or of each side of a pair; empty if the encoder builds no trees.
        vectors: the vector of the text, or of each side of a pair, (sides, D).

    Examples:
        >>> reading = beamtree.load("listops-bt-grc")(["[MAX 2 9 ]"])[0]
        >>> reading.prediction.label, len(reading.parses), reading.vectors.shape
        ('9', 1, torch.Size([1, 128]))
    """

    prediction: Prediction
    parses: tuple[Parses, ...]
    vectors: Float[Tensor, "sides D"]


class LabelledTree(NamedTuple):
    """The parses of a text, and the label of each constituent of the most probable one.

    Attributes:
        parses: the trees, most probable first.
        labels: the label of each constituent by its span; None for models of pairs.

    Examples:
        >>> found = beamtree.load("listops-bt-grc").label_tokens([["[MAX", "2", "9", "]"]])[0]
        >>> found.labels[0, 4]
        '9'
    """

    parses: Parses
    labels: dict[Span, str] | None


class Tokenized(NamedTuple):
    """A text and its tokens. The text is None if only the tokens are known; these then have no offsets."""

    text: str | None
    tokens: list[Token]

    @classmethod
    def from_words(cls, words: Sequence[str]) -> "Tokenized":
        return cls(None, [Token(word, 0, 0) for word in words])

    @property
    def words(self) -> list[str]:
        """The tokens as in the vocabulary."""
        return [token.text for token in self.tokens]

    @property
    def leaves(self) -> list[str]:
        """The tokens as written in the text: "The" for the token "the"."""
        if self.text is None:
            return self.words
        written = (self.text[token.start : token.end] for token in self.tokens)
        # A tokenizer may replace more than the case: then the token itself is shown.
        return [
            token.text if token.text.lower() != original.lower() else original
            for token, original in zip(self.tokens, written, strict=True)
        ]

    @property
    def offsets(self) -> list[tuple[int, int]] | None:
        return None if self.text is None else [(token.start, token.end) for token in self.tokens]


def make_parses(beams: Beams, texts: Sequence[Tokenized]) -> list[Parses]:
    """Create the parses of each text, with the offsets of its tokens."""
    found = beams.parses([text.leaves for text in texts])
    return [Parses(parses, text.offsets) for parses, text in zip(found, texts, strict=True)]


def label_nodes(
    parses: Sequence[Parses],
    texts: Sequence[Tokenized],
    beams: Beams,
    model: Model,
    labels: Sequence[str],
    values: ConstituentLabels | None,
) -> list[Parses]:
    """Add the nodes to parses: label, probabilities and merge score of every constituent.

    Args:
        parses: the parses of each text.
        texts: the texts.
        beams: their beams.
        model: the classifier.
        labels: the names of the classes.
        values: the rule by which the task assigns labels to the constituents of a text; None if it has none.

    Returns:
        The parses with their nodes.
    """
    nodes = NodeReader(beams, model, labels)
    spans = beams.chart.spans.tolist()
    result = []
    for row, (found, text) in enumerate(zip(parses, texts, strict=True)):
        expected = {} if values is None else values(text.words)
        labelled = []
        for parse in found:
            read = partial(nodes.read, expected, row, _beam_of(parse, spans[row]))
            leaves = [read(place, (place, place + 1)) for place in range(len(text.tokens))]
            merged = [read(nodes.leaves + step, span) for step, span in enumerate(parse.merges)]
            labelled.append(parse._replace(nodes=(*leaves, *merged)))
        result.append(Parses(labelled, found.offsets))
    return result


def label_best(parses: Sequence[Parses], beams: Beams, model: Model, labels: Sequence[str]) -> list[LabelledTree]:
    """Label the constituents of the most probable tree of each text. `labels` are the names of the classes."""
    if not isinstance(model, TextClassifier):
        return [LabelledTree(found, None) for found in parses]
    all_spans = beams.chart.spans.tolist()
    best = [_beam_of(found[0], spans) for found, spans in zip(parses, all_spans, strict=True)]
    rows = torch.arange(len(best), device=beams.lengths.device)
    states, spans, mask = (field[rows, best] for field in beams.nodes)  # (B, 2N−1, …)
    predictions = model.predictions(model.head(states.flatten(0, 1))).view_as(mask)
    result = []
    for found, exists, nodes, classes in zip(parses, mask, spans, predictions, strict=True):
        pairs = zip(nodes[exists].tolist(), classes[exists].tolist(), strict=True)
        result.append(LabelledTree(found, {(start, end): labels[label] for (start, end), label in pairs}))
    return result


class NodeReader:
    """Labels and scores of the nodes of a batch. The nodes of a beam are its leaves, then its merges."""

    def __init__(self, beams: Beams, model: Model, labels: Sequence[str]) -> None:
        self.labels, self.leaves = labels, beams.chart.nodes.shape[2] + 1
        self.probabilities: list[list[list[list[float]]]] | None = None  # [B][K][2N−1][C]
        if isinstance(model, TextClassifier):  # a classifier of pairs needs two states
            nodes = beams.nodes
            logits = model.head(nodes.states.flatten(0, 2))
            self.probabilities = model.probabilities(logits).view(*nodes.mask.shape, -1).tolist()
        scored = model.encoder.merge_scores(beams) if isinstance(model.encoder, Encoder) else None
        self.scores = None if scored is None else torch.stack((scored.scores, scored.log_probs.exp()), -1).tolist()

    def read(self, expected: Mapping[Span, str], row: int, beam: int, place: int, span: Span) -> Node:
        """Return the node at this place of a beam."""
        probabilities: dict[str, float] = {}
        if self.probabilities is not None:
            probabilities = dict(zip(self.labels, self.probabilities[row][beam][place], strict=True))
        score = step_probability = None
        if self.scores is not None and place >= self.leaves:
            score, step_probability = self.scores[row][beam][place - self.leaves]
        label = max(probabilities, key=probabilities.__getitem__) if probabilities else None
        return Node(*span, label, probabilities, score, step_probability, expected.get(span))


def make_constituents(beams: Beams, texts: Sequence[Tokenized]) -> list[list[Constituent]]:
    """Collect all constituents of each text, sorted by length and position."""
    nodes = beams.nodes
    states, spans, mask = nodes.states.cpu(), nodes.spans.tolist(), nodes.mask.tolist()
    probabilities = beams.log_probs.exp().tolist()
    result = []
    for row, (text, tokens) in enumerate(texts):
        assert text is not None
        found: dict[Span, Constituent] = {}
        for beam, probability in enumerate(probabilities[row]):
            for node, (start, end) in enumerate(spans[row][beam]):
                if not mask[row][beam][node]:
                    continue
                known = found.get((start, end))
                if known is None:
                    words = text[tokens[start].start : tokens[end - 1].end]
                    found[start, end] = Constituent(start, end, words, min(probability, 1.0), states[row, beam, node])
                else:
                    found[start, end] = known._replace(probability=min(known.probability + probability, 1.0))
        result.append(sorted(found.values(), key=lambda each: (each.end - each.start, each.start)))
    return result


def _beam_of(parse: Parse, spans: Sequence[Sequence[Sequence[int]]]) -> int:
    """The index of the best beam with these merges; beams are sorted, best first."""
    merges = [list(span) for span in parse.merges]
    return next(beam for beam, merged in enumerate(spans) if merged[: len(merges)] == merges)
