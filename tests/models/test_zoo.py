"""The shipped models: they load by name, and have the accuracy that their results report."""

import math
import re
import shlex
from pathlib import Path

import pytest

import beamtree
import real_files
from beamtree.data.tasks.listops.splits import Spec, generate, preset
from beamtree.models import pretrained, storage
from beamtree.runs import recipes
from beamtree.runs.folder import read_settings
from beamtree.trees import Bracketing, scores

ROOT = Path(__file__).parents[2]
LISTOPS = ["listops-args", "listops-bt-grc", "listops-bt-grc-onesoft", "listops-ebt-grc"]
SHIPPED = ["imdb-bt-grc", *LISTOPS, "logic-bt-grc", "sst5-bt-grc"]
SMALL = 5 * 2**20  # bytes
ALL_OF_IMDB = ["iid", "con-ood", "count-ood", "con-originals", "count-originals"]  # whose recipe names none: all


def expressions(length, count):
    """Expressions of about this length, from the grammar of the training data with another seed."""
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
    assert pretrained.shipped() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_they_are_small_and_say_how_good_they_are(name):
    folder = pretrained._SHIPPED / name
    assert sum(file.stat().st_size for file in folder.iterdir()) < SMALL
    model = beamtree.load(name)
    assert model.config.encoder == ("gold-tree-grc" if name == "listops-args" else name.split("-", 1)[1])
    assert list(model.results["splits"]) == (list(model.config.settings["data"]["tests"]) or ALL_OF_IMDB)


@pytest.mark.parametrize("name", SHIPPED)
def test_their_cards_agree_with_their_files(name):
    """Example, command and table are those of the model, and all other figures are in the docs."""
    folder = pretrained.shipped_folder(name)
    sections = re.split(r"^#+ (.*)\n", (folder / storage.CARD).read_text(), flags=re.MULTILINE)[1:]
    parts = dict(zip(sections[::2], sections[1::2], strict=True))
    assert list(parts) == [name, "Data", "Training", "Results", "Limits"]
    *lines, last = re.search(r"```python\n(.*?)\n```", parts[name], re.DOTALL)[1].splitlines()
    example, _, answer = last.partition("  # ")
    scope = {}
    exec("\n".join(lines), scope)
    assert scope["model"].config == pretrained.load(name).config
    assert repr(eval(example, scope)) == answer

    command = re.search(r"```sh\n(.*?)```", parts["Training"], re.DOTALL)[1].replace("\\\n", " ")
    program, verb, recipe, *words = shlex.split(command)
    assert (program, verb) == ("beamtree", "train")
    given = list(zip(words[::2], words[1::2], strict=True))
    options = dict(given)
    changes = [value for option, value in given if option == "--set"]
    changes += [f"training.precision={value}" for option, value in given if option == "--precision"]
    settings = recipes.load(recipe, options["--encoder"], int(options["--seed"]), recipes.parse_changes(changes))
    assert settings == read_settings(folder)

    splits = storage.read_results(folder)["splits"]
    rows = [f"| {split} | {100 * each['accuracy']:.2f} | {each['count']:,} |" for split, each in splits.items()]
    assert [line for line in parts["Results"].splitlines() if line.startswith("| ")][1:] == rows
    documented = (ROOT / "docs" / "results.md").read_text() + (ROOT / "docs" / "arguments.md").read_text()
    for text in parts["Training"], parts["Limits"]:
        for figure in re.findall(r"\d+\.\d\d", text):
            assert figure in documented


@pytest.mark.parametrize("name", LISTOPS)
@pytest.mark.parametrize(("length", "count", "split"), [(20, 200, "near-iid"), (180, 30, "200-300")])
def test_they_calculate_as_well_as_is_said(name, length, count, split):
    """The accuracy on new expressions is that of a split of similar length, within three standard deviations."""
    texts, labels = expressions(length, count)
    model = beamtree.load(name)
    right = sum(one.label == label for one, label in zip(model.predict(texts), labels, strict=True))
    accuracy = model.results["splits"][split]["accuracy"]
    assert right >= count * accuracy - 3 * math.sqrt(count * accuracy * (1 - accuracy))


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


def test_formulas_are_related():
    model = beamtree.load("logic-bt-grc")
    pairs = {
        ("( a ( and b ) )", "a"): "<",
        ("a", "( not a )"): "^",
        ("( a ( or b ) )", "( not a )"): "v",
        ("a", "b"): "#",
        ("( not ( a ( or b ) ) )", "( ( not a ) ( and ( not b ) ) )"): "=",
    }
    assert [prediction.label for prediction in model.predict(list(pairs))] == list(pairs.values())


def test_a_model_along_the_trees_of_another_one_has_them():
    model, parser = beamtree.load("listops-args"), beamtree.load("listops-ebt-grc")
    assert model.parser.config == parser.config
    text = "[MAX 2 9 [MIN 4 7 ] 0 [SM 1 2 3 4 5 6 7 8 ] ]"
    assert model.parse(text)[0].tree == parser.parse(text)[0].tree


def test_sentences_have_a_sentiment():
    model = beamtree.load("sst5-bt-grc")
    good, bad = model.predict(["a gorgeous , moving and very funny film", "a dull , pointless and boring mess"])
    assert good.label.endswith("positive")
    assert bad.label.endswith("negative")
    assert good.unknown == ()


def test_reviews_have_a_sentiment():
    model = beamtree.load("imdb-bt-grc")
    good = "I loved every minute of this film. The story is moving, and the actors are wonderful."
    bad = (
        "A complete waste of time. The plot makes no sense, the acting is terrible, and I was bored after ten minutes."
    )
    assert [prediction.label for prediction in model.predict([good, bad])] == ["positive", "negative"]


def test_a_word_that_the_model_never_saw_is_told():
    model = beamtree.load("sst5-bt-grc")
    (prediction,) = model.predict(["i shot an elephant in my pajamas"])
    assert prediction.unknown == ("pajamas",)
    assert model.parse("i shot an elephant in my pajamas")[0].tree.leaves[-1] == "pajamas"


def test_its_accuracy_is_the_one_that_is_told():
    """On the first 300 sentences of the original test file."""
    model = beamtree.load("sst5-bt-grc")
    split = beamtree.data.load("sst5", "iid", roots=[real_files.find("sst/trees.tar.xz").parents[1]])
    sentences = [split[row] for row in range(300)]
    found = model.predict([" ".join(sample.tokens) for sample in sentences])
    right = sum(one.label == sample.label for one, sample in zip(found, sentences, strict=True))
    assert abs(right / 300 - model.results["splits"]["iid"]["accuracy"]) < 0.08  # three standard deviations
