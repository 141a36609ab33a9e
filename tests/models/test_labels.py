"""Labels of constituents: the predictions of the classifier for every node of every beam."""

import pytest
import torch

import beamtree
from beamtree.data import Vocabulary
from beamtree.data.tasks.listops import evaluate, gold_tree
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained
from beamtree.runs import recipes

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] [SM 3 5 8 ] 0 ]"
TREES = ("bt-grc", "bt-lstm", "ebt-grc", "gumbel-tree-grc", "balanced-tree-grc", "bsrp-grc")


def make(encoder="bt-grc", recipe="listops", words=None, dim=8):
    task = beamtree.data.TASKS[recipe]
    settings = recipes.load(recipe, encoder, changes={"model.dim": dim, "data.vectors": None})
    config = make_config(settings.to_dict(), task.labels, task.pair, closed_vocabulary=task.words is not None)
    vocabulary = Vocabulary(words or task.words, closed=config.closed_vocabulary)
    torch.manual_seed(0)
    return Pretrained(config, vocabulary, build(config, len(vocabulary))).eval()


@pytest.mark.parametrize("encoder", TREES)
def test_a_label_is_what_the_classifier_says_of_the_nodes_own_state(encoder):
    model = make(encoder, dim=64)
    tokens = EXPRESSION.split()
    ids, length = torch.tensor([model.vocabulary.ids(tokens)]), torch.tensor([len(tokens)])
    with torch.no_grad():
        beams = model.model.encode(ids, length).beams
        for parse in model.parse(EXPRESSION, labels=True):
            beam = beams.trees([tokens])[0].index(parse.tree)
            assert len(parse.nodes) == 2 * len(tokens) - 1
            assert [node.span for node in parse.nodes] == [tuple(each) for each in beams.nodes.spans[0, beam].tolist()]
            for node, state in zip(parse.nodes, beams.nodes.states[0, beam], strict=True):
                expected = model.model.probabilities(model.model.head(state.unsqueeze(0)))[0]
                torch.testing.assert_close(torch.tensor(list(node.probabilities.values())), expected)
                assert node.label == model.labels[int(expected.argmax())]


def test_the_root_has_the_label_of_the_text_if_there_is_one_tree():
    model = make("gumbel-tree-grc")
    (reading,) = model([EXPRESSION], labels=True)
    root = reading.parses[0][0].nodes[-1]
    assert root.span == (0, 14)
    assert root.probabilities == pytest.approx(reading.prediction.probabilities, abs=1e-6)


@pytest.mark.parametrize("lengths", [(1, 2, 14), (14, 14), (3, 1, 8, 5)])
def test_the_labels_of_a_text_do_not_depend_on_the_others_of_its_batch(lengths):
    model = make()
    texts = [" ".join(["[MAX", *"12345678901234567890"[: length - 2], "]"][:length]) for length in lengths]
    for text, together in zip(texts, model.parse_all(texts, labels=True), strict=True):
        alone = model.parse(text, labels=True)
        assert [parse.tree for parse in alone] == [parse.tree for parse in together]
        for one, other in zip(alone, together, strict=True):
            assert len(one.nodes) == len(other.nodes) == 2 * len(one.tree) - 1
            for a, b in zip(one.nodes, other.nodes, strict=True):
                assert a.probabilities == pytest.approx(b.probabilities, abs=1e-5)
                assert (a.score is None) == (b.score is None) == (a.end - a.start == 1)


def test_the_value_of_every_list_is_expected_and_of_nothing_else():
    tokens = EXPRESSION.split()
    for parse in make().parse(EXPRESSION, labels=True):
        for node in parse.nodes:
            part = tokens[node.start : node.end]
            is_list = part[0].startswith("[") and part[-1] == "]" and "".join(part).count("[") == part.count("]")
            assert node.expected == (str(evaluate(part)) if is_list else None)
            assert node.is_wrong == (is_list and node.label != node.expected)


def test_an_expression_with_a_fault_has_labels_and_no_expected_values():
    (parse, *_) = make().parse("[MAX 2 9", labels=True)
    assert {node.expected for node in parse.nodes} == {None}
    assert all(node.label is not None for node in parse.nodes)


def test_values_are_right_where_the_trained_model_is():
    model = beamtree.load("listops-bt-grc")
    found = model.parse_tokens([EXPRESSION.split()], labels=True)[0][0]
    wrong = [node for node in found.nodes if node.is_wrong]
    lists = [node for node in found.nodes if node.expected is not None]
    assert len(lists) == 3
    assert wrong == []
    assert set(gold_tree(EXPRESSION.split()).spans()) >= {node.span for node in lists}


def test_nodes_are_made_only_on_request():
    assert all(parse.nodes == () for parse in make().parse(EXPRESSION))


def test_a_classifier_of_pairs_has_no_labels_for_single_texts_but_scores():
    model = make(recipe="logic")
    (reading,) = model([("( a ( and b ) )", "( a ( or b ) )")], labels=True)
    for side in reading.parses:
        for node in side[0].nodes:
            assert (node.label, dict(node.probabilities)) == (None, {})
            assert (node.score is None) == (node.end - node.start == 1)


def test_phrases_of_a_sentiment_model_have_its_labels():
    model = beamtree.load("sst5-bt-grc")
    (parse, *_) = model.parse("A dull film", labels=True)
    assert parse.tree.leaves == ("A", "dull", "film")
    assert {node.label for node in parse.nodes} <= set(model.labels)
    assert {node.expected for node in parse.nodes} == {None}


def test_leaves_that_a_tokenizer_changed_are_shown_as_tokens():
    from beamtree.data.tokenizers import Token
    from beamtree.models.readings import Tokenized

    text = Tokenized("Ünï ﬁsh", [Token("ünï", 0, 3), Token("fish", 4, 7)])
    assert text.leaves == ["Ünï", "fish"]
