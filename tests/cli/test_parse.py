"""`beamtree parse` with a small untrained model."""

import importlib.util
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import beamtree
from beamtree import Tree, cli
from beamtree.cli import parse, parse_outputs
from beamtree.data import TASKS, Vocabulary
from beamtree.models import answers as models_answers
from beamtree.models.answers import answers, as_json
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained, load
from beamtree.runs import recipes
from beamtree.runs.settings import Settings
from beamtree.trees.drawing import penn_tree, rich_beams, text_tree
from beamtree.trees.drawing.layout import ORIENTATIONS
from beamtree.trees.drawing.svg import FONTS
from beamtree.utils.palette import THEMES

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


def printed(*arguments, wrote=(), **settings):
    """The standard output of a command, which must succeed and report exactly these files as written."""
    result = invoke(*arguments, **settings)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines() == [f"wrote {file}" for file in wrote]
    return result.stdout


def test_each_tree_is_drawn_under_its_probability_with_its_labels():
    model = load("run")
    (said,), parses = model.predict([EXPRESSION]), model.parse(EXPRESSION, labels=True)
    lines = printed("run", EXPRESSION).rstrip("\n").split("\n")
    assert lines[:3] == [EXPRESSION, f"label {said.label}, probability {said.probabilities[said.label]:.3f}", ""]
    assert "\n".join(lines[3:]) == rich_beams(parses, width=80).plain
    assert len(parses) > 1
    assert any(node.is_wrong for node in parses[0].nodes)  # it is untrained
    assert "≠" in "\n".join(lines)


def test_brackets_are_printed_behind_the_probability():
    model = load("run")
    parses = model.parse(EXPRESSION)
    lines = printed("run", EXPRESSION, "--brackets").rstrip("\n").split("\n")
    assert lines[1].startswith("label ")
    assert lines[3:] == [f"{parse.probability:.3f}  {parse.tree}" for parse in parses]


def test_trees_are_drawn_with_ascii_characters():
    parses = load("run").parse(EXPRESSION, labels=True)
    shown = printed("run", EXPRESSION, "--ascii")
    assert shown.isascii()
    assert shown.rstrip("\n").split("\n\n", 1)[1] == rich_beams(parses, width=80, ascii=True).plain


def test_a_tree_that_is_wider_than_the_terminal_is_drawn_with_one_token_per_line():
    (best, *_) = load("run").parse(EXPRESSION, labels=True)
    narrow = printed("run", EXPRESSION, "--top", "1", env={"COLUMNS": "20"})
    assert narrow.rstrip("\n").split("\n")[4:] == text_tree(best.tree, best.nodes).split("\n")
    wide = printed("run", EXPRESSION, "--top", "1", "--orientation", "horizontal")
    assert wide == narrow
    vertical = printed("run", EXPRESSION, "--top", "1", "--orientation", "vertical", env={"COLUMNS": "20"})
    assert vertical == printed("run", EXPRESSION, "--top", "1")
    assert vertical != narrow


def test_trees_alone_have_no_heading():
    (best, *_) = load("run").parse(EXPRESSION, labels=True)
    shown = printed("run", EXPRESSION, "--tree-only", "--top", "1")
    assert shown == text_tree(best.tree, best.nodes, orientation="vertical") + "\n"


def test_colours_are_for_terminals_only():
    assert "\x1b" not in printed("run", EXPRESSION)
    terminal, end = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(Path(beamtree.__file__).parents[1])}
    environment.pop("NO_COLOR", None)
    program = [sys.executable, "-m", "beamtree", "parse", "run", EXPRESSION, "--top", "1"]
    with subprocess.Popen(program, env=environment, stdout=end):
        os.close(end)
        shown = read_all(terminal)
    assert re.search(rb"\x1b\[1;31m \d\xe2\x89\xa0\d ", shown)  # a wrong value, with ≠ in UTF-8, is red


def test_labels_are_not_computed_for_brackets(monkeypatch):
    asked = []

    def watched(model, texts, labels):
        asked.append(labels)
        return answers(model, texts, labels=labels)

    monkeypatch.setattr(models_answers, "answers", watched)
    printed("run", "5", "--ptb")
    printed("run", "5", "--brackets")
    printed("run", "5")
    printed("run", "5", "--ptb", "--svg", "5.svg", wrote=["5.svg"])
    assert asked == [False, False, True, True]


def test_json_is_a_document_for_each_text_and_nothing_else():
    found = documents("run", EXPRESSION, "5")
    expected = [as_json(answer, "run", 5) for answer in answers(load("run"), [EXPRESSION, "5"], labels=True)]
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
    assert len(printed("run", EXPRESSION, "--top", "1", "--brackets").splitlines()) == 4
    assert printed("run", EXPRESSION, "--top", "2").count(", probability 0.") == 3  # of two trees and the label


@pytest.mark.parametrize("arguments", [[], ["-"], ["--file", "-"], ["--file", "lines.txt"]])
def test_lines_come_from_standard_input_or_a_file(arguments):
    lines = [f"[SM {number % 10} 1 ]" for number in range(150)]
    content = "\ufeff" + "\r\n".join([*lines, "", ""])
    Path("lines.txt").write_text(content, encoding="utf-8", newline="")
    rows = documents("run", *arguments, input=content.encode())
    assert [row["text"] for row in rows] == lines
    assert rows[149]["label"] == load("run").predict(lines[149:])[0].label


def test_lines_are_answered_as_they_are_read(monkeypatch):
    """Only a few lines of a long input are in memory at a time."""
    held = []

    def watched(model, texts, labels):
        held.append(len(texts))
        return answers(model, texts, labels=labels)

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
    assert "not in the vocabulary, all read as the unknown word: dull" in printed("english", "a dull film")
    assert "unknown" not in printed("english", "a good film")


def test_a_pair_has_a_tab_in_it_and_one_side_alone_has_no_label():
    both, alone = documents("pairs", "( not a )\tb", "( not b )")
    assert [side["text"] for side in both["sides"]] == ["( not a )", "b"]
    assert both["label"] == load("pairs").predict([("( not a )", "b")])[0].label
    assert len(Tree.parse(both["sides"][0]["beams"][0]["tree"])) == 4
    assert alone["label"] is None
    shown = printed("pairs", "( not a )\tb")
    assert shown.startswith("( not a )\nb\nlabel ")
    assert shown.endswith("\n\ntree 1, probability 1.000\nb\n")
    assert "label" not in printed("pairs", "( not a )")


FILES = {"--svg": "trees.svg", "--png": "trees.png", "--pdf": "trees.pdf", "--tikz": "trees.tex"}


def test_a_drawing_has_the_label_the_trees_and_the_chart():
    options = [argument for option in FILES.items() for argument in option]
    printed("run", EXPRESSION, *options, "--top", "2", wrote=FILES.values())
    for name in ("trees.svg", "trees.tex"):
        found = Path(name).read_text()
        assert [f"tree {number}, probability 0." in found for number in (1, 2, 3)] == [True, True, False]
        assert "label " in found
        assert "probability of a constituent" in found
    assert Path("trees.png").read_bytes().startswith(b"\x89PNG")
    assert Path("trees.pdf").read_bytes().startswith(b"%PDF")


def test_trees_alone_are_drawn_without_heading_and_chart():
    (best, *_) = load("run").parse(EXPRESSION, labels=True)
    printed("run", EXPRESSION, "--tree-only", "--top", "1", "--svg", "tree.svg", wrote=["tree.svg"])
    found = Path("tree.svg").read_text()
    words = re.findall("<text[^>]*>([^<]*)</text>", found)
    values = [node for node in best.nodes if node.expected is not None and node.end - node.start > 1]
    assert len(words) == len(best.tree) + len(values)
    assert set(best.tree.leaves) <= set(words)
    assert not any("probability" in word for word in words)


def test_the_theme_the_orientation_and_the_fonts_of_drawings_can_be_chosen():
    arguments = ("run", EXPRESSION, "--svg", "tree.svg", "--tree-only", "--top", "1")

    def drawn(*options):
        printed(*arguments, *options, wrote=["tree.svg"])
        return Path("tree.svg").read_text()

    assert 'fill="#ffffff"' in drawn()
    assert f'fill="{THEMES["dark"]["ground"]}"' in drawn("--theme", "dark")
    assert "<text" in drawn()
    assert "<text" not in drawn("--fonts", "outlines")
    size = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
    vertical, horizontal = (size.search(drawn("--orientation", each)).groups() for each in ("vertical", "horizontal"))
    assert float(vertical[1]) != float(horizontal[1])


def test_drawings_of_several_texts_go_into_a_folder():
    printed("run", "5", EXPRESSION, "--svg", "new/drawings", wrote=["new/drawings/000001.svg to 000002.svg"])
    assert sorted(os.listdir("new/drawings")) == ["000001.svg", "000002.svg"]
    assert "[MIN" in Path("new/drawings/000002.svg").read_text()
    printed("pairs", "( not a )\tb", "--svg", "new/drawings", wrote=["new/drawings/000001.svg"])
    assert "-RRB-" not in Path("new/drawings/000001.svg").read_text()


def test_files_that_were_written_before_an_error_are_named():
    result = invoke("run", "--ptb", "--svg", "drawings", input="1\n2\n[SM 3 x ]\n")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "wrote drawings/000001.svg to 000002.svg"
    assert "line 3" in result.stderr.splitlines()[1]


def test_a_page_holds_all_texts(monkeypatch):
    printed("run", "5", EXPRESSION, "--html", "page.html", wrote=["page.html"])
    found = Path("page.html").read_text()
    assert found.lower().startswith("<!doctype html>")
    assert EXPRESSION in found
    monkeypatch.setattr(parse_outputs, "_MAX_PAGE_TEXTS", 1)
    result = invoke("run", "5", "7", "--html", "other.html")
    assert "--html takes at most 1 texts" in result.stderr
    assert not Path("other.html").exists()


def test_characters_that_a_font_lacks_are_a_warning_of_one_line():
    result = invoke("english", "a 中 film", "--png", "film.png")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "warning: DejaVu Sans has no glyphs for 中: drawn as boxes; use SVG",
        "wrote film.png",
    ]


def test_long_texts_are_drawn():
    text = "[SM " + "1 " * 300 + "]"
    shown = printed("run", text, "--top", "1", "--svg", "long.svg", wrote=["long.svg"])
    assert len(shown.splitlines()) == 4 + 302
    assert Path("long.svg").read_text().count("<title>") > 2 * 302


def read_all(terminal):
    """Read the output of a terminal until its other end is closed."""
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # raised by Linux when the other end is closed
        pass
    os.close(terminal)
    return shown


def start(*arguments, **settings):
    """Start the program as users do."""
    environment = os.environ | {"PYTHONPATH": str(Path(beamtree.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-m", "beamtree", "parse", *arguments], env=environment, **settings)


def test_a_progress_bar_on_the_terminal_leaves_the_answers_in_their_file():
    Path("lines.txt").write_text("1\n" * 100)
    terminal, end = pty.openpty()
    with open("trees.txt", "wb") as answers, start("run", "--file", "lines.txt", "--ptb", stdout=answers, stderr=end):
        os.close(end)
        shown = read_all(terminal)
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
        ([".", "5"], "is not a run: it has no config.yaml"),
        (["run", "[MXA 1 ]"], "error: '[MXA 1 ]': unknown token '[MXA' (did you mean '[MAX'?)"),
        (["run", ""], "the text '' is empty"),
        (["run"], "there is no text"),
        (["run", "--file", "run/vocab.json", "5"], "both texts and the file 'run/vocab.json' are given"),
        (["run", "--file", "nothing"], "nothing: it cannot be read (No such file or directory)"),
        (["run", "--file", "run"], "run: it cannot be read (Is a directory)"),
        (["run", "--file", "latin.txt"], "latin.txt, line 2: it is not valid UTF-8"),
        (["run", "5", "--top", "0"], "top is 0"),
        (["run", "5", "--json", "--ptb"], "--json, --ptb, --brackets and --ascii are mutually exclusive"),
        (["run", "5", "--brackets", "--ascii"], "choose one"),
        (["run", "5", "--theme", "black"], "unknown theme 'black'; known: paper, dark"),
        (["run", "5", "--orientation", "vertcal"], "unknown orientation 'vertcal' (did you mean 'vertical'?)"),
        (["run", "5", "--fonts", "embedded"], "unknown fonts 'embedded'; known: text, outlines"),
        (["run", "5", "--tikz", "5.pdf"], "'5.pdf' must end in .tex, or be a folder"),
        (["run", "5", "--svg", "5.png"], "'5.png' must end in .svg, or be a folder"),
        (["run", "5", "--svg", "none/5.svg"], "'none/5.svg' is in a folder that does not exist"),
        (["run", "5", "7", "--png", "5.png"], "'5.png' is a single file, but there are several texts"),
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


def test_values_in_the_help_are_the_real_ones():
    """The help repeats them, since it does not import the modules that define them."""
    found = {param.name: param.metavar for param in cli.load_command("parse").params}
    assert found["orientation"].split("|") == list(ORIENTATIONS)
    assert found["theme"].split("|") == list(THEMES)
    assert found["fonts"].split("|") == list(FONTS)


def test_without_matplotlib_only_svg_and_latex_can_be_written(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    for option in (["--png", "5.png"], ["--pdf", "5.pdf"], ["--svg", "5.svg", "--fonts", "outlines"]):
        result = invoke("run", "5", *option)
        assert result.exit_code == 2
        assert "needs matplotlib, which is not installed: pip install 'beamtree[plot]'" in result.stderr
    printed("run", "5", "--svg", "5.svg", "--tikz", "5.tex", wrote=["5.svg", "5.tex"])
