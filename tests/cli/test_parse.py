"""`beamtree parse`, with a small model that has learned nothing."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import beamtree
from beamtree import Tree, cli
from beamtree.cli import parse
from beamtree.data import TASKS, Vocabulary
from beamtree.models import answers as models_answers
from beamtree.models.answers import answers, as_json
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained, load
from beamtree.runs import recipes
from beamtree.runs.settings import Settings
from beamtree.trees.drawing import penn_tree, text_tree

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"


def save(folder, task="listops", words=None, pair=False):
    torch.manual_seed(0)
    changes = {"model.dim": 8, "encoder.options.beam_size": 4, "data.task": task}
    settings = Settings.change(recipes.load("listops"), changes)
    vocabulary = Vocabulary(words or TASKS[task].words, closed=words is None)
    config = make_config(settings.to_dict(), TASKS[task].labels, pair, closed_vocabulary=words is None)
    Pretrained(config, vocabulary, build(config, len(vocabulary))).save_pretrained(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save(folder / "run")
    save(folder / "english", "sst5", ["a", "good", "film"])
    save(folder / "pairs", "logic", pair=True)
    return folder


@pytest.fixture(autouse=True)
def models(saved, tmp_path, monkeypatch):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def invoke(*arguments, **settings):
    return CliRunner().invoke(cli.app, ("parse", *arguments), prog_name="beamtree", **settings)


def documents(*arguments, **settings):
    return [json.loads(line) for line in printed(*arguments, "--json", **settings).splitlines()]


def printed(*arguments, **settings):
    result = invoke(*arguments, **settings)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_the_label_is_shown_and_each_tree_behind_its_probability():
    model = load("run")
    (said,), parses = model.predict([EXPRESSION]), model.parse(EXPRESSION)
    lines = printed("run", EXPRESSION).rstrip("\n").split("\n")
    assert lines[:3] == [EXPRESSION, f"label {said.label}, probability {said.probabilities[said.label]:.3f}", ""]
    assert lines[3:] == [f"{parse.probability:.3f}  {parse.tree}" for parse in parses]
    assert len(parses) > 1


def test_trees_are_drawn_in_plain_characters():
    parses = load("run").parse(EXPRESSION)
    label, *blocks = printed("run", EXPRESSION, "--ascii").rstrip("\n").split("\n\n")
    assert label.split("\n")[1].startswith("label ")
    for (tree, probability, _), block in zip(parses, blocks, strict=True):
        first, drawing = block.split("\n", 1)
        assert first == f"tree, probability {probability:.3f}"
        assert drawing == text_tree(tree, ascii=True)
        assert drawing.isascii()


def test_json_is_a_document_for_each_text_and_nothing_else():
    found = documents("run", EXPRESSION, "5")
    expected = [as_json(answer, "run", 5) for answer in answers(load("run"), [EXPRESSION, "5"])]
    assert found == expected
    assert [each["text"] for each in found] == [EXPRESSION, "5"]


def test_penn_treebank_brackets_are_the_best_tree_of_each_text_unless_more_are_asked_for():
    model = load("run")
    first, second = (model.parse(text) for text in (EXPRESSION, "[SM 1 2 ]"))
    best = printed("run", EXPRESSION, "[SM 1 2 ]", "--ptb").splitlines()
    assert best == [penn_tree(first[0].tree), penn_tree(second[0].tree)]
    more = printed("run", EXPRESSION, "--ptb", "--top", "2").splitlines()
    assert more == [penn_tree(parse.tree) for parse in first[:2]]
    assert printed("pairs", "( not a )\tb", "--ptb").splitlines()[1] == "(X b)"


def test_only_so_many_trees_are_shown_as_were_asked_for():
    (row,) = documents("run", EXPRESSION, "--top", "1")
    assert len(row["sides"][0]["beams"]) == 1
    assert len(printed("run", EXPRESSION, "--top", "1").splitlines()) == 4
    assert printed("run", EXPRESSION, "--top", "2", "--ascii").count("tree, probability") == 2


@pytest.mark.parametrize("arguments", [[], ["-"], ["--file", "-"], ["--file", "lines.txt"]])
def test_lines_come_from_standard_input_or_a_file(arguments):
    lines = [f"[SM {number % 10} 1 ]" for number in range(150)]
    content = "\ufeff" + "\r\n".join([*lines, "", ""])
    Path("lines.txt").write_text(content, encoding="utf-8", newline="")
    rows = documents("run", *arguments, input=content.encode())
    assert [row["text"] for row in rows] == lines
    assert rows[149]["label"] == load("run").predict(lines[149:])[0].label


def test_lines_are_answered_as_they_are_read(monkeypatch):
    """However long the input is, only a few of its lines are held."""
    held = []

    def watched(model, texts):
        held.append(len(texts))
        return answers(model, texts)

    monkeypatch.setattr(models_answers, "answers", watched)
    assert len(documents("run", input="1\n" * 200)) == 200
    assert held == [64, 64, 64, 8]


def test_no_probability_is_above_1():
    """Sums over the beams are rounded: of short texts, all beams may have the same tree."""
    texts = [f"[{operator} {' '.join('123456789'[:size])} ]" for operator in ("MAX", "SM") for size in range(1, 9)]
    for document in documents("run", "5", *texts, "--top", "9"):
        probabilities = list(document["probabilities"].values())
        for side in document["sides"]:
            probabilities += [beam["probability"] for beam in side["beams"]]
            probabilities += [value for _, _, value in side["chart"]]
        assert 0 <= min(probabilities) <= max(probabilities) <= 1


def test_long_work_prints_lines_of_progress(clock):
    Path("lines.txt").write_text("1\n" * 200)
    clock.step = 1
    result = invoke("run", "--file", "lines.txt", "--ptb")
    assert result.stdout == "(X 1)\n" * 200
    lines = result.stderr.splitlines()
    assert lines[0] == "parse: 10 texts, 5 %"
    assert lines[1] == "parse: 40 texts, 20 %"
    assert len(lines) == 7


def test_only_where_somebody_types_each_line_is_answered_before_the_next_is_read(monkeypatch):
    terminal, end = pty.openpty()
    with open(terminal, "wb", buffering=0), open(end) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        assert parse._lines([], None)[2] == 1
        assert parse._lines([], Path("run/vocab.json"))[2] == parse._lines(["5"], None)[2] == 64


def test_what_stands_before_a_wrong_line_is_answered_and_the_line_named():
    result = invoke("run", "--ptb", input="1\n\n2\n[SM 3 x ]\n4\n")
    assert result.exit_code == 2
    assert result.stdout.splitlines() == ["(X 1)", "(X 2)"]
    assert result.stderr.startswith("error: standard input, line 4: '[SM 3 x ]': unknown token 'x'")


def test_several_texts_are_set_apart():
    shown = printed("run", "5", "7")
    assert shown.split("\n\n\n")[0].startswith("5\nlabel ")
    assert shown.split("\n\n\n")[1].startswith("7\nlabel ")


def test_unknown_words_are_named():
    assert "unknown to the model, which reads them all as one word: dull" in printed("english", "a dull film")
    assert "unknown" not in printed("english", "a good film")


def test_a_pair_has_a_tab_in_it_and_one_side_alone_has_no_label():
    both, alone = documents("pairs", "( not a )\tb", "( not b )")
    assert [side["text"] for side in both["sides"]] == ["( not a )", "b"]
    assert both["label"] == load("pairs").predict([("( not a )", "b")])[0].label
    assert len(Tree.parse(both["sides"][0]["beams"][0]["tree"])) == 4
    assert alone["label"] is None
    shown = printed("pairs", "( not a )\tb")
    assert shown.startswith("( not a )\nb\nlabel ")
    assert shown.endswith("\n\n1.000  b\n")
    assert "label" not in printed("pairs", "( not a )")


def test_a_picture_has_the_label_the_trees_and_the_chart():
    printed("run", EXPRESSION, "--svg", "trees.svg", "--png", "trees.png", "--top", "2")
    found = Path("trees.svg").read_text()
    assert found.count(": probability 0.") == 2
    assert "label " in found
    assert "probability of a constituent" in found
    assert Path("trees.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_of_several_texts_go_into_a_folder():
    printed("run", "5", EXPRESSION, "--svg", "new/pictures")
    assert sorted(os.listdir("new/pictures")) == ["000001.svg", "000002.svg"]
    assert "[MIN" in Path("new/pictures/000002.svg").read_text()
    printed("pairs", "( not a )\tb", "--svg", "new/pictures")
    assert "-RRB-" not in Path("new/pictures/000001.svg").read_text()


def test_a_page_holds_all_texts(monkeypatch):
    printed("run", "5", EXPRESSION, "--html", "page.html")
    found = Path("page.html").read_text()
    assert found.lower().startswith("<!doctype html>")
    assert EXPRESSION in found
    monkeypatch.setattr(parse, "_PAGE_TEXTS", 1)
    result = invoke("run", "5", "7", "--html", "other.html")
    assert "--html takes at most 1 texts" in result.stderr
    assert not Path("other.html").exists()


def test_signs_that_a_picture_lacks_are_a_warning_of_one_line():
    result = invoke("english", "a 中 film", "--png", "film.png")
    assert result.exit_code == 0
    assert result.stderr == "warning: the PNG has boxes for 中, which its font lacks: an SVG shows them\n"


def test_long_texts_are_drawn():
    shown = printed("run", "[SM " + "1 " * 300 + "]", "--top", "1", "--ascii", "--svg", "long.svg")
    assert len(shown.splitlines()) == 4 + 302
    assert Path("long.svg").read_text().count("<title>") > 2 * 302


def start(*arguments, **settings):
    """The program as users start it."""
    environment = os.environ | {"PYTHONPATH": str(Path(beamtree.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-m", "beamtree", "parse", *arguments], env=environment, **settings)


def test_a_progress_bar_on_the_terminal_leaves_the_answers_in_their_file():
    Path("lines.txt").write_text("1\n" * 100)
    terminal, end = pty.openpty()
    with open("trees.txt", "wb") as answers, start("run", "--file", "lines.txt", "--ptb", stdout=answers, stderr=end):
        os.close(end)
        shown = b""
        try:
            while part := os.read(terminal, 4096):
                shown += part
        except OSError:  # what Linux says when the other end is closed
            pass
    os.close(terminal)
    assert Path("trees.txt").read_text() == "(X 1)\n" * 100
    assert b"100 texts" in shown


def test_a_reader_that_has_enough_ends_the_program_without_a_word():
    Path("lines.txt").write_text("1\n" * 5000)
    with start("run", "--file", "lines.txt", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"1\n"
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 1


def test_bytes_that_are_no_text_are_escaped():
    (document,) = documents("english", os.fsdecode(b"a gl\xffd"))
    assert document["unknown"] == ["gl\udcffd"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing", "5"], "unknown model 'nothing'"),
        (["./nothing", "5"], "./nothing: there is no such folder"),
        ([".", "5"], "is no run: it has no config.yaml"),
        (["run", "[MXA 1 ]"], "error: '[MXA 1 ]': unknown token '[MXA' (did you mean '[MAX'?)"),
        (["run", ""], "the text '' is empty"),
        (["run"], "there is no text"),
        (["run", "--file", "run/vocab.json", "5"], "there are texts and the file 'run/vocab.json'"),
        (["run", "--file", "nothing"], "nothing: it cannot be read (No such file or directory)"),
        (["run", "--file", "run"], "run: it cannot be read (Is a directory)"),
        (["run", "--file", "latin.txt"], "latin.txt, line 2: it is no UTF-8"),
        (["run", "5", "--top", "0"], "top is 0"),
        (["run", "5", "--json", "--ptb"], "--json, --ptb and --ascii are three ways to print an answer"),
        (["run", "5", "--svg", "5.png"], "'5.png' must end in .svg, or be a folder"),
        (["run", "5", "--svg", "none/5.svg"], "'none/5.svg' is to go into a folder that does not exist"),
        (["run", "5", "7", "--png", "5.png"], "'5.png' is one file and there are several texts"),
        (["run", "5", "7", "--svg", "run/vocab.json/new"], "run/vocab.json/new: it cannot be written"),
        (["run", "5", "--html", "5.txt"], "the page '5.txt' must end in .html"),
        (["run", "5", "--device", "tpu"], "known: auto, cpu, cuda"),
        (["pairs", "a\tb\ta"], "'a\\tb\\ta' has 2 tabs: the model takes pairs of texts"),
        ([], "see 'beamtree parse --help'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(shape_checks_off, arguments, message):
    Path("latin.txt").write_bytes(b"1\n\xe9\n")
    result = invoke(*arguments, input="")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_the_help_has_examples():
    shown = " ".join(printed("--help").split())
    assert "Usage: beamtree parse" in shown
    assert f'beamtree parse listops-bt-grc "{EXPRESSION}"' in shown
