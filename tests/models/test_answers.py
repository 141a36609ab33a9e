"""Answers: the label and the parses of a text, and the JSON document."""

import json

import pytest
import torch

import beamtree
from beamtree.data import TASKS, Vocabulary
from beamtree.models.answers import answers, as_json, span_probabilities
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained
from beamtree.runs import recipes
from beamtree.runs.settings import Settings
from beamtree.trees import Tree
from beamtree.trees.parses import Parse

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"
WITHOUT_TREES = ("recurrent-grc", "ndr", "lstm", "transformer")


def make(task="listops", words=None, encoder=None, **changes):
    """A small untrained model."""
    torch.manual_seed(0)
    settings = Settings.change(recipes.load("listops"), {"model.dim": 8, "data.task": task, **changes})
    if encoder is not None:
        settings = Settings.change(settings, {"encoder.name": encoder, "encoder.options": {}})
    vocabulary = Vocabulary(words or TASKS[task].words, closed=words is None)
    config = make_config(settings.to_dict(), TASKS[task].labels, task == "logic", closed_vocabulary=words is None)
    return Pretrained(config, vocabulary, build(config, len(vocabulary)).eval())


def test_an_answer_is_what_the_model_predicts_and_parses():
    model = make()
    texts = ["5", EXPRESSION, "[SM 1 2 3 ]"]
    for text, answer in zip(texts, answers(model, texts), strict=True):
        (said,), parses = model.predict([text]), model.parse(text)
        assert (answer.text, answer.label, answer.unknown) == (text, said.label, ())
        assert answer.probabilities == pytest.approx(said.probabilities, abs=1e-6)
        (side,) = answer.sides
        assert (side.text, side.tokens) == (text, tuple(text.split()))
        assert [parse.tree for parse in side.parses] == [parse.tree for parse in parses]


@pytest.mark.parametrize(
    ("task", "texts"), [("listops", [EXPRESSION, "5"]), ("logic", ["( not a )\tb", "a\t( not b )"])]
)
def test_an_answer_takes_one_pass_of_the_encoder(task, texts):
    model, passes = make(task), []
    model.model.encoder.register_forward_hook(lambda module, given, output: passes.append(len(given[0])))
    found = list(answers(model, texts))
    assert sum(passes) == len(texts) * (2 if task == "logic" else 1)
    assert [answer.text for answer in found] == texts


def test_sides_alone_keep_their_places_among_pairs():
    model = make("logic")
    texts = ["a", "( not a )\tb", "( not b )", "b\ta"]
    for text, answer in zip(texts, answers(model, texts), strict=True):
        (single,) = answers(model, [text])
        assert answer.label == single.label
        assert [side.parses[0].tree for side in answer.sides] == [side.parses[0].tree for side in single.sides]
        assert [" ".join(side.tokens) for side in answer.sides] == text.split("\t")


def test_a_pair_has_two_sides_and_one_side_alone_has_no_label():
    model = make("logic")
    both, alone = answers(model, ["( not a )\tb", "( not b )"])
    assert both.text == "( not a )\tb"
    assert both.label == model.predict([("( not a )", "b")])[0].label
    assert [(side.text, side.tokens) for side in both.sides] == [("( not a )", ("(", "not", "a", ")")), ("b", ("b",))]
    assert (alone.label, alone.probabilities) == (None, {})
    assert [side.text for side in alone.sides] == ["( not b )"]


def test_a_pair_with_three_sides_is_refused():
    with pytest.raises(ValueError, match=r"'a\\tb\\ta' has 2 tabs: the model takes pairs of texts"):
        list(answers(make("logic"), ["a\tb\ta"]))


def test_words_that_the_model_does_not_know_are_named():
    (answer,) = answers(make("sst5", ["a", "film"]), ["a dull dull film"])
    assert answer.unknown == ("dull",)


@pytest.mark.parametrize("encoder", [name for name in beamtree.encoders() if name not in WITHOUT_TREES])
def test_merges_are_the_constituents_of_the_tree_each_after_its_children(encoder):
    model = make(encoder=encoder)
    for parse in model.parse(EXPRESSION):
        assert sorted(parse.merges) == sorted(parse.tree.spans(leaves=False))
        made = {(position, position + 1) for position in range(len(parse.tree))}
        for start, end in parse.merges:
            assert any({(start, middle), (middle, end)} <= made for middle in range(start + 1, end))
            made.add((start, end))


def test_merges_are_in_the_order_of_the_best_beam_that_reached_the_tree():
    model = make(**{"encoder.options.beam_size": 8})
    tokens = ["[SM", "1", "2", "3", "4", "]"]
    ids = torch.tensor([model.vocabulary.ids(tokens)])
    beams = model.model.encode(ids, torch.tensor([len(tokens)])).beams
    trees = beams.trees([tokens])[0]
    assert len(set(trees)) < len(trees)  # some beams found the same tree
    for parse in model.parse(" ".join(tokens)):
        best = beams.chart.spans[0, trees.index(parse.tree)].tolist()
        assert [list(span) for span in parse.merges] == best


def test_a_constituent_is_as_probable_as_the_trees_that_hold_it():
    parses = [
        Parse(Tree.parse("((a b) c)"), 0.75, ((0, 2), (0, 3))),
        Parse(Tree.parse("(a (b c))"), 0.25, ((1, 3), (0, 3))),
    ]
    assert list(span_probabilities(parses).items()) == [((0, 2), 0.75), ((1, 3), 0.25), ((0, 3), 1.0)]


def test_probabilities_never_exceed_one():
    parses = [Parse(Tree.parse("(a b)"), 0.1, ((0, 2),))] * 10 + [Parse(Tree.parse("(a b)"), 1e-9, ((0, 2),))]
    assert span_probabilities(parses) == {(0, 2): 1.0}


def test_the_document_has_the_beams_asked_for_and_the_chart_of_all():
    (answer,) = answers(make(), [EXPRESSION])
    document = as_json(answer, "name", top=2)
    assert json.loads(json.dumps(document)) == document
    assert list(document) == ["model", "text", "label", "probabilities", "unknown", "labels", "label_styles", "sides"]
    assert (document["model"], document["text"], document["label"]) == ("name", EXPRESSION, answer.label)
    (side,), parses = document["sides"], answer.sides[0].parses
    assert list(side) == ["text", "tokens", "offsets", "beams", "chart"]
    assert [EXPRESSION[start:end] for start, end in side["offsets"]] == side["tokens"]
    assert len(parses) > len(side["beams"]) == 2
    for beam, parse in zip(side["beams"], parses, strict=False):
        assert Tree.parse(beam["tree"]) == parse.tree
        assert beam["probability"] == parse.probability
        spans = [(each["start"], each["end"]) for each in beam["constituents"]]
        assert spans == [*((place, place + 1) for place in range(len(parse.tree))), *parse.merges]
        assert {each["label"] for each in beam["constituents"]} == {None}
    assert {(start, end): p for start, end, p in side["chart"]} == span_probabilities(parses)
    assert len(as_json(answer, "name")["sides"][0]["beams"]) == len(parses)


def test_a_document_has_at_least_one_beam():
    (answer,) = answers(make(), ["5"])
    with pytest.raises(ValueError, match="top is 0"):
        as_json(answer, "name", top=0)
    assert as_json(answer, "name")["sides"] == [
        {
            **{"text": "5", "tokens": ["5"], "offsets": [[0, 1]]},
            **{"beams": [{"probability": 1.0, "tree": "5", "constituents": [dict(ONLY_SPAN)]}], "chart": []},
        }
    ]


def test_a_document_has_the_labels_of_constituents_if_they_are_asked_for():
    model = make()
    (answer,) = answers(model, [EXPRESSION], labels=True)
    document = as_json(answer, "name")
    assert document["labels"] == list(model.labels)
    assert document["label_styles"] == [None] * 10
    for beam, parse in zip(document["sides"][0]["beams"], answer.sides[0].parses, strict=True):
        for found, node in zip(beam["constituents"], parse.nodes, strict=True):
            assert found["label"] == node.label
            assert found["probabilities"] == pytest.approx(list(node.probabilities.values()), abs=1e-4)
            assert (found["score"], found["expected"]) == (node.score, node.expected)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


ONLY_SPAN = {
    **{"start": 0, "end": 1, "label": None, "probabilities": None},
    **{"score": None, "step_probability": None, "expected": None},
}
