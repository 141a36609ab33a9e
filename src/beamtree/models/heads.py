"""Classifiers of texts and of pairs of texts: embeddings, an encoder and a head.

    model = TextClassifier(encoder("bt-grc", dim=128), vocabulary_size=len(vocabulary), classes=10, dropout=0.1)
    out = model.read(batch)                           # or model(tokens, lengths)
    model.loss(out.logits, batch.labels).backward()
    model.probabilities(out.logits), out.encoding.beams.trees()

As in the paper, there is no projection between embeddings and encoder, so word vectors have the width of states, and
two classes share one logit.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.data.batching import Batch
from beamtree.data.vocabulary import Vocabulary
from beamtree.nn.beams import Encoding
from beamtree.trees import Tree
from beamtree.utils.checks import check_integer, check_rate


class Embedding(nn.Module):
    """Word vectors: learned, or `pretrained` and frozen with one learned vector for all unknown words."""

    def __init__(self, size: int, dim: int, pretrained: Float[Tensor, "V D"] | None = None) -> None:
        super().__init__()
        check_integer("size", size, at_least=1)
        if pretrained is not None and pretrained.shape != (size, dim):
            raise ValueError(f"pretrained is of shape {tuple(pretrained.shape)}: it must be {(size, dim)}")
        self.words = nn.Embedding(size, dim, padding_idx=Vocabulary.PAD)
        self.unknown = None
        if pretrained is not None:
            with torch.no_grad():
                self.words.weight.copy_(pretrained)
                self.words.weight[Vocabulary.PAD] = 0
            self.words.weight.requires_grad_(False)
            self.unknown = nn.Parameter(torch.randn(dim))

    def forward(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        vectors = self.words(tokens)
        if self.unknown is None:
            return vectors
        return torch.where((tokens == Vocabulary.UNK).unsqueeze(-1), self.unknown, vectors)


class Head(nn.Module):
    """dropout → GELU(Linear) → dropout → Linear, from features to logits. Two classes share one logit."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        check_integer("classes", classes, at_least=2)
        self.classes = classes
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(features, hidden)
        self.output = nn.Linear(hidden, 1 if classes == 2 else classes)

    def forward(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B L"]:
        return self.output(self.dropout(F.gelu(self.hidden(self.dropout(features)))))


class Output(NamedTuple):
    """The output of a classifier for a batch.

    Attributes:
        logits: (B, L), where L is the number of classes, or 1 if there are two.
        encoding: the encodings, with their beams; for pairs those of all first sides, then those of all second ones.

    Examples:
        >>> from beamtree.models.heads import TextClassifier
        >>> model = TextClassifier(beamtree.encoder("bt-grc", dim=8), vocabulary_size=20, classes=3)
        >>> model(torch.tensor([[3, 4, 5]]), torch.tensor([3])).logits.shape
        torch.Size([1, 3])
    """

    logits: Float[Tensor, "B L"]
    encoding: Encoding


class Model(nn.Module):
    """Base class of the classifiers."""

    features: ClassVar[int]  # width of the head's input, in multiples of the encoder's width

    def __init__(
        self,
        encoder: nn.Module,
        vocabulary_size: int,
        classes: int,
        dropout: float = 0.0,
        dropout_in: float | None = None,
        hidden: int | None = None,
        pretrained: Float[Tensor, "V D"] | None = None,
    ) -> None:
        """Create the model around an encoder.

        Args:
            encoder: an encoder, as `beamtree.encoder` returns it.
            vocabulary_size: number of token ids.
            classes: number of classes, at least 2.
            dropout: dropout rate on the encoding and inside the classifier.
            dropout_in: dropout rate on the word vectors; by default the same.
            hidden: width of the classifier's hidden layer; by default that of the encoder.
            pretrained: word vectors (V, D), which stay frozen; see `beamtree.data.vectors`.
        """
        super().__init__()
        check_rate("dropout", dropout)
        dropout_in = dropout if dropout_in is None else dropout_in
        check_rate("dropout_in", dropout_in)
        dim = int(encoder.dim)  # type: ignore[arg-type]
        self.embedding = Embedding(vocabulary_size, dim, pretrained)
        self.dropout_in = nn.Dropout(dropout_in)
        self.encoder = encoder
        self.head = Head(self.features * dim, dim if hidden is None else hidden, classes, dropout)

    @property
    def needs_trees(self) -> bool:
        """Whether the encoder requires trees as input."""
        return bool(getattr(self.encoder, "needs_trees", False))

    def encode(
        self, tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B"], trees: Sequence[Tree] | None = None
    ) -> Encoding:
        """Embed and encode texts.

        Args:
            tokens: token ids (B, N), right padded.
            lengths: lengths of the texts (B,).
            trees: gold trees, for encoders that require them.

        Returns:
            The encodings, with their beams.
        """
        given = {"trees": trees} if self.needs_trees else {}
        found: Encoding = self.encoder(self.dropout_in(self.embedding(tokens)), lengths, **given)
        return found

    def read(self, batch: Batch) -> Output:
        """Apply the model to a batch of data.

        Args:
            batch: samples of `beamtree.data`.

        Returns:
            Logits and encodings.
        """
        sides = (batch.tokens, batch.lengths, batch.second_tokens, batch.second_lengths)
        given = {"trees": batch.trees} if self.needs_trees else {}
        output: Output = self(*(side for side in sides if side is not None), **given)
        return output

    def loss(self, logits: Float[Tensor, "B L"], labels: Int[Tensor, "B"]) -> Float[Tensor, ""]:
        """Compute the cross-entropy.

        Args:
            logits: (B, L).
            labels: indices of the correct classes, (B,).

        Returns:
            The mean over the samples.
        """
        if self.head.classes == 2:
            return F.binary_cross_entropy_with_logits(logits.squeeze(1), labels.to(logits.dtype))
        return F.cross_entropy(logits, labels)

    def probabilities(self, logits: Float[Tensor, "B L"]) -> Float[Tensor, "B C"]:
        """Convert logits to probabilities.

        Args:
            logits: (B, L).

        Returns:
            Probabilities of all classes, (B, C), also if two classes share one logit.
        """
        if self.head.classes == 2:
            return torch.cat((-logits, logits), dim=1).sigmoid()
        return logits.softmax(1)

    def predictions(self, logits: Float[Tensor, "B L"]) -> Int[Tensor, "B"]:
        """Select the most probable classes.

        Args:
            logits: (B, L).

        Returns:
            Their indices, (B,).
        """
        return (logits.squeeze(1) > 0).long() if self.head.classes == 2 else logits.argmax(1)


class TextClassifier(Model):
    """A model that classifies texts.

    Examples:
        >>> from beamtree.models.heads import TextClassifier
        >>> model = TextClassifier(beamtree.encoder("bt-grc", dim=8), vocabulary_size=20, classes=3)
        >>> out = model(torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([3, 2]))
        >>> model.loss(out.logits, torch.tensor([0, 2])).backward()
        >>> model.probabilities(out.logits).shape
        torch.Size([2, 3])
    """

    features = 1

    def forward(
        self, tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B"], trees: Sequence[Tree] | None = None
    ) -> Output:
        """Classify texts.

        Args:
            tokens: token ids (B, N), right padded.
            lengths: lengths of the texts (B,).
            trees: gold trees, for encoders that require them.

        Returns:
            Logits and encodings.
        """
        encoding = self.encode(tokens, lengths, trees)
        return Output(self.head(encoding.state), encoding)


class PairClassifier(Model):
    """A model that classifies pairs of texts p and h: one encoder for both, then [p; h; p ⊙ h; |p − h|].

    Examples:
        >>> from beamtree.models.heads import PairClassifier
        >>> model = PairClassifier(beamtree.encoder("bt-grc", dim=8), vocabulary_size=20, classes=3)
        >>> first, second = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 7, 0]])
        >>> model(first, torch.tensor([3]), second, torch.tensor([2])).logits.shape
        torch.Size([1, 3])
    """

    features = 4

    def forward(
        self,
        tokens: Int[Tensor, "B N"],
        lengths: Int[Tensor, "B"],
        second_tokens: Int[Tensor, "B N"],
        second_lengths: Int[Tensor, "B"],
        trees: Sequence[Tree] | None = None,
    ) -> Output:
        """Classify pairs. Both sides are padded to one width, as in `beamtree.data.Batch`.

        Args:
            tokens: token ids of the first texts, (B, N).
            lengths: their lengths, (B,).
            second_tokens: token ids of the second texts, (B, N).
            second_lengths: their lengths, (B,).
            trees: gold trees of all first texts, then of all second ones, for encoders that require them.

        Returns:
            Logits, and the encodings of both sides as one batch of 2B.
        """
        both = self.encode(torch.cat((tokens, second_tokens)), torch.cat((lengths, second_lengths)), trees)
        p, h = both.state.chunk(2)  # (B, D) each
        features = torch.cat((p, h, p * h, (p - h).abs()), dim=1)  # (B, 4D)
        return Output(self.head(features), both)
