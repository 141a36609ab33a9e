"""The heads around an encoder: shapes, parameters, losses, and that they learn."""

import pytest
import torch
from torch.nn import functional as F

import beamtree
from beamtree.data import Sample, Split, Vocabulary
from beamtree.models.heads import Embedding, PairClassifier, TextClassifier
from beamtree.nn.encoders.beam_tree import BeamTree


def text_model(classes=3, dim=8, **settings):
    torch.manual_seed(0)
    return TextClassifier(beamtree.encoder("bt-grc", dim=dim, beam_size=2), 12, classes, **settings)


def batch(rows=4, width=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 12, (rows, width), generator=generator), torch.arange(width - rows + 1, width + 1)


def test_the_papers_model_has_the_papers_number_of_parameters():
    model = TextClassifier(beamtree.encoder("bt-grc", dim=128), vocabulary_size=18, classes=10)
    assert sum(weight.numel() for weight in model.parameters()) == 431_499


def test_three_classes_have_three_logits_and_two_have_one():
    tokens, lengths = batch()
    for classes, width in ((3, 3), (2, 1)):
        model = text_model(classes)
        out = model(tokens, lengths)
        assert out.logits.shape == (4, width)
        probabilities = model.probabilities(out.logits)
        assert probabilities.shape == (4, classes)
        torch.testing.assert_close(probabilities.sum(1), torch.ones(4))
        assert torch.equal(model.predictions(out.logits), probabilities.argmax(1))
        labels = torch.tensor([0, 1, 1, 0])
        expected = F.nll_loss(probabilities.log(), labels)
        torch.testing.assert_close(model.loss(out.logits, labels), expected)


def test_the_beams_come_along():
    tokens, lengths = batch()
    trees = text_model()(tokens, lengths).encoding.beams.trees()
    assert [len(beams[0]) for beams in trees] == lengths.tolist()


def test_padding_and_batch_mates_change_nothing():
    model = text_model().eval()
    tokens, lengths = batch()
    together = model(F.pad(tokens, (0, 3)), lengths).logits
    alone = torch.cat([model(t[None, :n], n[None]).logits for t, n in zip(tokens, lengths, strict=True)])
    torch.testing.assert_close(together, alone)


def test_a_pair_is_read_as_the_paper_says():
    torch.manual_seed(0)
    model = PairClassifier(beamtree.encoder("bt-grc", dim=8, beam_size=2), 12, 3).eval()
    tokens, lengths = batch()
    second, second_lengths = tokens.flip(0), lengths.flip(0)
    p = model.encode(tokens, lengths).state
    h = model.encode(second, second_lengths).state
    expected = model.head(torch.cat((p, h, p * h, (p - h).abs()), dim=1))
    out = model(tokens, lengths, second, second_lengths)
    torch.testing.assert_close(out.logits, expected)
    assert out.encoding.state.shape == (8, 8)


def test_pretrained_vectors_stay_and_unknown_words_learn():
    vectors = torch.randn(12, 8)
    embedding = Embedding(12, 8, vectors)
    tokens = torch.tensor([[3, Vocabulary.UNK, Vocabulary.PAD]])
    found = embedding(tokens)
    assert torch.equal(found[0, 0], vectors[3])
    assert torch.equal(found[0, 1], embedding.unknown)
    assert not found[0, 2].any()
    assert [name for name, weight in embedding.named_parameters() if weight.requires_grad] == ["unknown"]
    found.sum().backward()
    assert torch.equal(embedding.unknown.grad, torch.ones(8))


def test_dropout_is_where_it_was_asked_for():
    model = text_model(dropout=0.3, dropout_in=0.6)
    assert (model.dropout_in.p, model.head.dropout.p) == (0.6, 0.3)
    assert text_model(dropout=0.3).dropout_in.p == 0.3


def test_it_memorises_a_few_samples():
    model = text_model(classes=4, dim=16)
    tokens, lengths = batch()
    labels = torch.arange(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(model(tokens, lengths).logits, labels).backward()
        optimizer.step()
    assert torch.equal(model.eval().predictions(model(tokens, lengths).logits), labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 1}, "classes is 1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout_in": -0.1}, "dropout_in is -0.1"),
        ({"pretrained": torch.zeros(12, 7)}, r"of shape \(12, 7\): it must be \(12, 8\)"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        text_model(**settings)


def left_branching(tokens):
    return beamtree.Tree.from_actions([0] * (len(tokens) - 1), tokens)


class ByTrees(BeamTree):
    """A stand-in for an encoder that needs trees: it records those that it receives."""

    needs_trees = True

    def forward(self, x, lengths, generator=None, trees=None):
        self.given = trees
        return super().forward(x, lengths, generator)


@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_an_encoder_that_needs_trees_is_given_those_of_the_batch(pairs):
    texts = [("a", "b", "c"), ("d", "e", "f", "g")]
    samples = [Sample(text, "0", text[::-1] if pairs else None) for text in texts]
    split = Split.from_samples(samples, ("0", "1", "2"), gold=left_branching)
    vocabulary = Vocabulary("abcdefg")
    model = (PairClassifier if pairs else TextClassifier)(ByTrees(4, beam_size=1), len(vocabulary), 3)
    model.read(split.batches(vocabulary, trees=True)[[1, 0]])
    first = [texts[1], texts[0]]
    expected = [*first, *(text[::-1] for text in first)] if pairs else first
    assert list(model.encoder.given) == [left_branching(text) for text in expected]
    assert split.batches(vocabulary)[[0]].trees is None


def test_without_gold_trees_none_can_be_given():
    split = Split.from_samples([Sample(("a", "b"), "x")], ("x", "y"))
    with pytest.raises(ValueError, match="no gold trees"):
        split.batches(Vocabulary(["a", "b"]), trees=True)[[0]]
