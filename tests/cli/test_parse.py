"""`beamtree parse`, with a small model that has learned nothing."""

import json

import pytest
import torch
from typer.testing import CliRunner

from beamtree import Tree, cli, recipes
from beamtree.data import TASKS, Vocabulary
from beamtree.drawing import text_tree
from beamtree.pretrained import Pretrained, build, load
from beamtree.recipes.settings import Settings
from beamtree.runs import Config

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"


def save(folder, task="listops", words=None, pair=False):
    torch.manual_seed(0)
    changes = {"model.dim": 8, "encoder.options.beam_size": 4, "data.task": task}
    settings = Settings.change(recipes.load("listops"), changes)
    vocabulary = Vocabulary(words or TASKS[task].words, closed=words is None)
    config = Config(settings, TASKS[task].labels, pair, closed_vocabulary=words is None)
    Pretrained(config, vocabulary, build(config, len(vocabulary))).save_pretrained(folder)


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("run")
    save("english", "sst5", ["a", "good", "film"])
    save("pairs", "logic", pair=True)


def invoke(*arguments, **settings):
    return CliRunner().invoke(cli.app, ("parse", *arguments), prog_name="beamtree", **settings)


def printed(*arguments, **settings):
    result = invoke(*arguments, **settings)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_the_label_is_shown_then_the_best_tree_drawn_and_the_others_in_brackets():
    model = load("run")
    (said,) = model.predict([EXPRESSION])
    best, *others = model.parse(EXPRESSION)
    lines = printed("run", EXPRESSION).rstrip("\n").split("\n")
    assert lines[0] == EXPRESSION
    assert lines[1] == f"label {said.label}, probability {said.probabilities[said.label]:.3f}"
    assert lines[3] == f"tree, probability {best.probability:.3f}"
    assert lines[4:13] == text_tree(best.tree).split("\n")
    assert lines[14:] == [f"{other.probability:.3f}  {other.tree}" for other in others]
    assert len(others) >= 1


def test_json_holds_every_text_and_nothing_else():
    first, second = json.loads(printed("run", EXPRESSION, "5", "--json"))
    model = load("run")
    expected = model.predict([EXPRESSION, "5"])
    assert [first["text"], second["text"]] == [EXPRESSION, "5"]
    assert [first["label"], second["label"]] == [each.label for each in expected]
    assert first["probabilities"] == pytest.approx(expected[0].probabilities)
    assert [Tree.parse(each["tree"]) for each in first["trees"]] == [each.tree for each in model.parse(EXPRESSION)]
    assert second["trees"] == [{"tree": "5", "probability": 1.0}]
    assert first["unknown"] == []
    assert "second" not in first


def test_only_so_many_trees_are_shown_as_were_asked_for():
    (row,) = json.loads(printed("run", EXPRESSION, "--json", "--beams", "1"))
    assert len(row["trees"]) == 1
    shown = printed("run", EXPRESSION, "--beams", "1")
    assert len(shown.splitlines()) == 4 + 9
    assert "(" not in shown


def test_lines_come_from_standard_input():
    lines = [f"[SM {number % 10} 1 ]" for number in range(150)]
    rows = json.loads(printed("run", "--json", input="\n".join([*lines, "", ""])))
    assert [row["text"] for row in rows] == lines
    assert rows[149]["label"] == load("run").predict(lines[149:])[0].label


def test_several_texts_are_set_apart():
    shown = printed("run", "5", "7")
    assert shown.split("\n\n\n")[0].startswith("5\nlabel ")
    assert shown.split("\n\n\n")[1].startswith("7\nlabel ")


def test_unknown_words_are_named():
    assert "unknown to the model, which reads them all as one word: dull" in printed("english", "a dull film")
    assert "unknown" not in printed("english", "a good film")


def test_a_pair_has_a_tab_in_it_and_one_side_alone_has_no_label():
    both, alone = json.loads(printed("pairs", "( not a )\tb", "( not b )", "--json"))
    assert (both["text"], both["second"]) == ("( not a )", "b")
    assert both["label"] == load("pairs").predict([("( not a )", "b")])[0].label
    assert len(Tree.parse(both["trees"][0]["tree"])) == 4
    assert both["second_trees"][0]["tree"] == "b"
    assert alone["label"] is None
    assert "second" not in alone
    shown = printed("pairs", "( not a )\tb")
    assert shown.startswith("( not a )\nb\nlabel ")
    assert shown.count("tree, probability") == 2
    assert "label" not in printed("pairs", "( not a )")


def test_long_texts_are_drawn():
    shown = printed("run", "[SM " + "1 " * 600 + "]", "--beams", "1")
    assert len(shown.splitlines()) == 4 + 602


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing", "5"], "unknown model 'nothing'"),
        (["./nothing", "5"], "./nothing: there is no such folder"),
        ([".", "5"], "is no run: it has no config.yaml"),
        (["run", "[MXA 1 ]"], "unknown token '[MXA' (did you mean '[MAX'?)"),
        (["run", ""], "the text '' is empty"),
        (["run"], "there is no text"),
        (["run", "5", "--beams", "0"], "beams is 0"),
        (["run", "5", "--device", "tpu"], "known: auto, cpu, cuda"),
        (["pairs", "a\tb\ta"], "the model takes pairs of texts"),
        ([], "see 'beamtree parse --help'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(shape_checks_off, arguments, message):
    result = invoke(*arguments, input="")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_the_help_has_examples():
    shown = " ".join(printed("--help").split())
    assert "Usage: beamtree parse" in shown
    assert f'beamtree parse listops-bt-grc "{EXPRESSION}"' in shown
