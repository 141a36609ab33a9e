"""The models that come with the package: they load by name, and are as good as is said of them."""

import pytest

import beamtree
from beamtree import pretrained
from beamtree.data.listops.splits import Spec, generate, preset
from beamtree.trees import Bracketing, scores

LISTOPS = ["listops-bt-grc", "listops-bt-grc-onesoft"]
SMALL = 5 * 2**20  # bytes


def expressions(length, count):
    """Of the grammar that the models were trained on, with another seed than theirs; of about this length."""
    spec = preset("d20s-train")
    found = generate(
        Spec(
            operator_probability=spec.operator_probability,
            max_args=spec.max_args,
            max_depth=spec.max_depth,
            min_length=length,
            max_length=length + 20,
            count=count,
        ),
        seed=1234,
    )
    return [" ".join(example.tokens) for example in found], [str(example.label) for example in found]


def test_their_names():
    assert pretrained.shipped() == LISTOPS


@pytest.mark.parametrize("name", LISTOPS)
def test_they_are_small_and_say_how_good_they_are(name):
    folder = pretrained._SHIPPED / name
    assert sum(file.stat().st_size for file in folder.iterdir()) < SMALL
    model = beamtree.load(name)
    assert model.config.settings.encoder.name == name.removeprefix("listops-")
    assert list(model.results["splits"]) == list(model.config.settings.data.tests)


@pytest.mark.parametrize("name", LISTOPS)
@pytest.mark.parametrize(("length", "count", "right"), [(20, 200, 195), (180, 30, 27)])
def test_they_calculate(name, length, count, right):
    texts, labels = expressions(length, count)
    found = beamtree.load(name).predict(texts)
    assert sum(prediction.label == label for prediction, label in zip(found, labels, strict=True)) >= right


@pytest.mark.parametrize("name", LISTOPS)
def test_their_trees_keep_the_lists_together(name):
    texts, _ = expressions(30, 50)
    parses = beamtree.load(name).parse_all(texts)
    found = scores.score((best[0].tree for best in parses), [Bracketing.from_tokens(text.split()) for text in texts])
    assert found.corpus().recall > 0.9


@pytest.mark.parametrize("name", LISTOPS)
def test_the_example(name):
    expression = "[MAX 2 9 [MIN 4 7 ] 0 ]"
    model = beamtree.load(name)
    (prediction,) = model.predict([expression])
    assert prediction.label == "9"
    assert prediction.probabilities["9"] > 0.99
    assert model.parse(expression)[0].tree.leaves == tuple(expression.split())
