"""Vectors of texts and constituents, scikit-learn's names, offsets of characters, and one pass for all of it."""

import numpy as np
import pytest
import torch

from beamtree import Tree
from beamtree.data import TASKS, Vocabulary
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained, load
from beamtree.runs import recipes
from beamtree.trees.parses import Parses, span_probabilities

EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "5", "[MED  1 2 3 ]"]


def listops(encoder="bt-grc", **changes):
    settings = recipes.load("listops", encoder, 0, {"model.dim": 8, **changes})
    config = make_config(settings.to_dict(), TASKS["listops"].labels, pair=False, closed_vocabulary=True)
    vocabulary = Vocabulary(TASKS["listops"].words, closed=True)
    torch.manual_seed(0)
    return Pretrained(config, vocabulary, build(config, len(vocabulary))).eval()


def pairs():
    settings = recipes.load("logic", "bt-grc", 0, {"model.dim": 8})
    config = make_config(settings.to_dict(), TASKS["logic"].labels, pair=True, closed_vocabulary=True)
    vocabulary = Vocabulary(TASKS["logic"].words, closed=True)
    torch.manual_seed(0)
    return Pretrained(config, vocabulary, build(config, len(vocabulary))).eval()


def test_a_vector_is_the_encoders_state():
    model = listops()
    vectors = model.encode(EXPRESSIONS)
    assert vectors.shape == (3, 8)
    for text, vector in zip(EXPRESSIONS, vectors, strict=True):
        ids = torch.tensor([model.vocabulary.ids(text.split())])
        with torch.inference_mode():
            expected = model.model.encode(ids, torch.tensor([ids.shape[1]])).state[0]
        torch.testing.assert_close(vector, expected)
    assert model.encode([]).shape == (0, 8)


def test_constituents_are_those_of_all_beams():
    model = listops()
    for text, parses, found in zip(
        EXPRESSIONS, model.parse_all(EXPRESSIONS), model.encode(EXPRESSIONS, spans=True), strict=True
    ):
        tokens = text.split()
        single, longer = found[: len(tokens)], found[len(tokens) :]
        assert [each.text for each in single] == tokens
        assert [(each.start, each.end) for each in single] == [(n, n + 1) for n in range(len(tokens))]
        probabilities = {(each.start, each.end): each.probability for each in longer}
        assert probabilities == pytest.approx(span_probabilities(parses))
        assert all(each.text.split() == tokens[each.start : each.end] for each in longer)
        assert all(each.vector.shape == (8,) for each in found)
    (alone,) = model.encode(["5"], spans=True)
    torch.testing.assert_close(alone[0].vector, model.encode(["5"])[0])


def test_the_vector_of_the_whole_text_is_that_of_its_root_where_there_is_one_beam():
    model = listops(**{"encoder.options.beam_size": 1})
    (constituents,) = model.encode(EXPRESSIONS[:1], spans=True)
    torch.testing.assert_close(constituents[-1].vector, model.encode(EXPRESSIONS[:1])[0])


def test_an_encoder_without_trees_has_vectors_alone():
    model = listops("lstm")
    assert model.encode(EXPRESSIONS).shape == (3, 8)
    with pytest.raises(ValueError, match="lstm builds no trees"):
        model.encode(EXPRESSIONS, spans=True)


def test_probabilities_as_scikit_learn_has_them():
    model = listops()
    found = model.predict_proba(EXPRESSIONS)
    assert found.shape == (3, 10)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    assert model.classes_.tolist() == list(model.labels)
    labels = [prediction.label for prediction in model.predict(EXPRESSIONS)]
    assert model.classes_[found.argmax(1)].tolist() == labels
    assert model.predict_proba([]).shape == (0, 10)


@pytest.mark.parametrize("make", [listops, pairs])
def test_one_pass_has_what_the_others_have(make):
    model = make()
    texts = EXPRESSIONS if make is listops else [("( a ( or b ) )", "( not a )"), ("c", "( d ( and e ) )")]
    passes = []
    model.model.encoder.register_forward_hook(lambda *arguments: passes.append(1))
    readings = model(texts)
    assert len(passes) == 1
    assert [reading.prediction.label for reading in readings] == [each.label for each in model.predict(texts)]
    for text, reading in zip(texts, readings, strict=True):
        sides = [text] if isinstance(text, str) else list(text)
        for side, parses, vector in zip(sides, reading.parses, reading.vectors, strict=True):
            assert [parse.tree for parse in parses] == [parse.tree for parse in model.parse(side)]
            torch.testing.assert_close(vector, model.encode([side])[0], rtol=1e-4, atol=1e-5)


def test_offsets_are_of_the_text_that_was_given():
    text = "  [MAX 2\t9   [MIN 4 7 ] ]"
    parses = listops().parse(text)
    assert [text[start:end] for start, end in parses.offsets] == text.split()
    start, end = parses.characters((3, 7))
    assert text[start:end] == "[MIN 4 7 ]"


def test_english_words_keep_their_place_and_case():
    model = load("sst5-bt-grc")
    text = "It ISN'T bad,   is it?"
    parses = model.parse(text)
    shown = [text[start:end] for start, end in parses.offsets]
    assert shown == ["It", "IS", "N'T", "bad", ",", "is", "it", "?"]
    assert list(parses[0].tree.leaves) == shown
    assert model.parse_tokens([[word.lower() for word in shown]])[0][0].merges == parses[0].merges


def test_parses_of_tokens_have_no_offsets():
    parses = listops().parse_tokens([["[MAX", "2", "]"]])[0]
    assert parses.offsets is None
    with pytest.raises(ValueError, match="the parses have no offsets"):
        parses.characters((0, 1))
    assert Parses([]) == []
    assert isinstance(parses[0].tree, Tree)
