"""`beamtree evaluate` with an untrained model, on tiny original files and on files of the user."""

import importlib.util
import json

import pytest
import torch
from typer.testing import CliRunner

from beamtree import Tree, cli, evaluation
from beamtree.cli import evaluate as command
from beamtree.data import TASKS, Sample, Split, Vocabulary, loading
from beamtree.data.tasks import listops
from beamtree.data.tokenizers import make_tokenizer
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained, load
from beamtree.runs import recipes
from toy_originals import maximum, write

ORIGINALS = {
    "listops/train_d20s.tsv": ["3\t3"],
    "listops/test_d20s.tsv": ["3\t3", maximum("9", 5), "2\t( ( ( [MIN 4 ) 2 ) ] )"],
    "listops-lra/basic_test.tsv": ["Source\tTarget", "( ( [MAX 4 ) ] )\t4", "5\t5"],
}
LENGTHS = [f"{shortest}-{shortest + 100}" for shortest in range(200, 1000, 100)]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A folder in which most original files are missing, an empty cache, and an untrained model `model`."""
    write(tmp_path / "originals", ORIGINALS)
    monkeypatch.setenv("BEAMTREE_DATA", str(tmp_path / "originals"))
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model", "listops-original")
    return tmp_path


def save_model(folder, recipe, tests=(), tokenizer=None):
    task = TASKS[recipe]
    settings = recipes.load(recipe, changes={"model.dim": 8, "encoder.options.beam_size": 2})
    settings = settings.change({"data.vectors": None, "data.tests": tests})
    config = make_config(settings.to_dict(), task.labels, task.pair, closed_vocabulary=task.words is not None)
    vocabulary = Vocabulary(task.words or ["good", "film"], closed=config.closed_vocabulary)
    torch.manual_seed(0)
    Pretrained(config, vocabulary, build(config, len(vocabulary)), tokenizer=tokenizer).save_pretrained(folder)


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ("evaluate", *arguments), prog_name="beamtree")


def printed(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_every_test_that_can_be_made_is_evaluated_and_the_others_are_named():
    report = json.loads(printed("model", "--json"))
    assert report["splits"]["near-iid"]["count"] == 3
    assert list(report["splits"]) == ["near-iid", "lra"]
    assert list(report["missing"]) == LENGTHS
    assert all("beamtree data get" in message for message in report["missing"].values())
    shown = printed("model")
    assert shown.count("missing: ") == len(set(report["missing"].values()))


def test_the_recipes_tests_are_those_that_are_evaluated():
    save_model("other", "listops-original", ("near-iid",))
    assert list(json.loads(printed("other", "--json"))["splits"]) == ["near-iid"]
    assert list(json.loads(printed("other", "--split", "lra", "--json"))["splits"]) == ["lra"]


def test_a_split_has_accuracy_interval_loss_and_bins():
    report = json.loads(printed("model", "--split", "near-IID", "--json"))
    one = report["splits"]["near-iid"]
    assert one["accuracy"] == one["correct"] / one["count"]
    assert one["interval"][0] <= one["accuracy"] <= one["interval"][1]
    assert one["loss"] > 0
    assert [(each["first"], each["count"]) for each in report["by_length"]["near-iid"]] == [(1, 1), (4, 1), (5, 1)]
    assert [(each["first"], each["count"]) for each in report["by_depth"]["near-iid"]] == [(0, 1), (1, 2)]
    shown = printed("model", "--split", "near-iid")
    for text in (f"{100 * one['accuracy']:.2f}", f"{one['loss']:.4f}", "95 % interval", "by length", "by depth", "(1)"):
        assert text in shown


def test_ones_own_file_is_read_with_the_models_labels(folders):
    lines = ["text\tlabel", "[MAX 2 9 ]\t9", "[MIN 2 9 ]\t2", "7\t7"]
    (folders / "own.tsv").write_text("\n".join(lines) + "\n")
    report = json.loads(printed("model", "--data", "own.tsv", "--json"))
    (one,) = report["splits"].values()
    assert one["count"] == 3
    expected = Pretrained.from_pretrained("model").predict(["[MAX 2 9 ]", "[MIN 2 9 ]", "7"])
    right = sum(
        p.label == str(listops.evaluate(t.split("\t")[0].split())) for p, t in zip(expected, lines[1:], strict=True)
    )
    assert one["correct"] == right


def test_the_datas_options_are_the_models_and_can_be_changed():
    save_model("generated", "listops", ("args-15",))
    assert (
        json.loads(printed("generated", "--data", "listops-original", "--split", "near-iid", "--json"))["options"] == {}
    )
    result = invoke("generated", "--set", "data.options.seed=x")
    assert "the option seed is 'x': it must be an integer" in result.stderr


def test_set_changes_options_of_the_data(monkeypatch):
    given = []

    def load(name, split, *, roots, progress, **options):
        given.append(options)
        raise ValueError("seen")

    monkeypatch.setattr(loading, "load", load)
    save_model("generated", "listops", ("args-15",))
    invoke("generated", "--set", "data.options.seed=3", "--set", "data.options.official=true")
    assert given[0] == {**Pretrained.from_pretrained("generated").config.data_options, "seed": 3, "official": True}


def test_macro_f1_and_calibration_error_are_shown_in_per_cent():
    one = json.loads(printed("model", "--split", "near-iid", "--json"))["splits"]["near-iid"]
    heading, _, row, *_ = printed("model", "--split", "near-iid").splitlines()[2:]
    assert heading.split() == ["split", "count", "accuracy", "95", "%", "interval", "macro-F1", "ECE", "loss"]
    scores = [f"{100 * one[key]:.2f}" for key in ("macro_f1", "calibration_error")]
    assert row.split()[-3:] == [*scores, f"{one['loss']:.4f}"]


def test_the_confusion_matrix_has_labels_in_rows_and_predictions_in_columns(folders):
    lines = ["text\tlabel", "[MAX 2 9 ]\t9", "[MIN 2 9 ]\t2", "7\t7", "7\t3"]
    (folders / "own.tsv").write_text("\n".join(lines) + "\n")
    labels = TASKS["listops-original"].labels
    counts = [[0] * len(labels) for _ in labels]
    said = Pretrained.from_pretrained("model").predict([line.split("\t")[0] for line in lines[1:]])
    for line, prediction in zip(lines[1:], said, strict=True):
        counts[labels.index(line.split("\t")[1])][labels.index(prediction.label)] += 1
    shown = printed("model", "--data", "own.tsv", "--confusion")
    _, _, matrix = shown.partition("confusion matrix of own: labels in rows, predictions in columns\n")
    heading, _, *rows = matrix.splitlines()
    assert heading.split() == list(labels)
    assert [row.split() for row in rows] == [[label, *map(str, row)] for label, row in zip(labels, counts, strict=True)]
    assert "confusion" not in printed("model", "--data", "own.tsv")
    report = json.loads(printed("model", "--data", "own.tsv", "--json"))
    assert report["splits"]["own"]["confusion"] == {"labels": list(labels), "counts": counts}


def test_long_labels_are_shortened_in_the_confusion_matrix(capsys):
    command._print_confusion(["contradiction", "neutral"], [[1_000, 0], [2, 3]])
    heading, _, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["contradicti…", "neutral"]
    assert (first.split(), second.split()) == (["contradicti…", "1,000", "0"], ["neutral", "2", "3"])


def test_a_limit_takes_the_first_samples(folders):
    rows = ["5\t5", "[MAX 2 9 ]\t9", "7\t7"]
    (folders / "own.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (folders / "first.tsv").write_text("\n".join(["text\tlabel", *rows[:2]]) + "\n")
    limited = json.loads(printed("model", "--data", "own.tsv", "--limit", "2", "--json"))
    whole = json.loads(printed("model", "--data", "first.tsv", "--json"))
    one, same = limited["splits"]["own"], whole["splits"]["first"]
    assert (limited["limit"], one.pop("total"), whole["limit"], same.pop("total")) == (2, 3, None, 2)
    assert one == same
    assert limited["by_length"]["own"] == whole["by_length"]["first"]
    assert " the first 2 of 3 " in printed("model", "--data", "own.tsv", "--limit", "2")
    for options in ((), ("--limit", "3"), ("--limit", "4")):
        assert "the first" not in printed("model", "--data", "own.tsv", *options)


def test_a_limited_split_keeps_gold_trees_and_pairs():
    split = Split.from_samples(
        [
            Sample(("a", "b", "c"), "x", ("d", "e"), Tree.parse("(a (b c))"), Tree.parse("(d e)")),
            Sample(("a", "b", "f"), "y", ("d",), Tree.parse("((a b) f)"), Tree.parse("d")),
        ],
        ("x", "y"),
    )
    assert list(command.first_samples(split, 1)) == list(split)[:1]
    assert command.first_samples(split, 2) is command.first_samples(split, None) is split


def test_long_work_prints_lines_of_progress(clock):
    clock.step = 20
    result = invoke("model", "--split", "near-iid", "--batch-size", "1", "--json")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["near-iid: 0 of 3", "near-iid: 2 of 3"]
    assert json.loads(result.stdout)["splits"]["near-iid"]["count"] == 3


def test_originals_are_looked_for_in_the_folders_given(folders, monkeypatch):
    monkeypatch.delenv("BEAMTREE_DATA")
    assert invoke("model", "--split", "near-iid").exit_code == 2
    printed("model", "--split", "near-iid", "--data-dir", str(folders / "originals"))


def test_the_batch_size_is_a_limit(monkeypatch):
    sizes, score = [], evaluation.scoring._Scoring.score

    def noted(self, rows):
        sizes.append(len(rows))
        score(self, rows)

    monkeypatch.setattr(evaluation.scoring._Scoring, "score", noted)
    one, many = (printed("model", "--split", "near-iid", "--batch-size", size) for size in ("1", "9"))
    assert sizes == [1, 1, 1, 3]
    assert one == many


def test_too_little_memory_is_a_line_of_warning(monkeypatch):
    score = evaluation.scoring._Scoring.score

    def small(self, rows):
        if len(rows) > 1:
            raise torch.OutOfMemoryError("no more")
        score(self, rows)

    monkeypatch.setattr(evaluation.scoring._Scoring, "score", small)
    result = invoke("model", "--split", "near-iid", "--json")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: 3 inputs of 5 tokens do not fit into the memory of cpu: continuing with smaller batches\n"
    )
    assert json.loads(result.stdout)["splits"]["near-iid"]["count"] == 3


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_shows_what_was_found_so_far(form, monkeypatch):
    evaluate = evaluation.evaluate

    def interrupted(model, split, **settings):
        if len(split) == 2:
            raise KeyboardInterrupt
        return evaluate(model, split, **settings)

    monkeypatch.setattr(evaluation, "evaluate", interrupted)
    result = invoke("model", *form)
    assert result.exit_code == 130
    assert "near-iid" in result.stdout
    assert result.stderr == "interrupted: 1 of 2 splits evaluated\n"


def test_a_plot_is_drawn_beside_the_table(folders):
    pytest.importorskip("matplotlib")
    printed("model", "--plot", "accuracy.svg")
    assert "<svg" in (folders / "accuracy.svg").read_text()


def test_a_plot_without_matplotlib_is_a_mistake_before_anything_is_loaded(monkeypatch):
    hide(monkeypatch, "matplotlib")
    result = invoke("nothing", "--plot", "accuracy.svg")
    assert result.stderr == (
        "error: a plot needs matplotlib, which is not installed: "
        "pip install 'beamtree[plot]', or '.[plot]' in a clone\n"
    )


def hide(monkeypatch, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    hide(monkeypatch, "torchmetrics")
    result = invoke("nothing", "--limit", "0")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: beamtree evaluate needs torchmetrics, which is not installed: "
        "pip install 'beamtree[train]', or '.[train]' in a clone\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modle"], "modle"),
        (["originals"], "is not a run"),
        (["model", "--split", "200-30"], "did you mean '200-300'?"),
        (["model", "--split", "900-1000"], "900-1000: listops-lengths is not in"),
        (["model", "--data", "nothing.tsv"], "nothing.tsv"),
        (["model", "--data", "strange.tsv"], "unknown label 'bad'"),
        (["model", "--data", "words.tsv"], "unknown token 'film'"),
        (["model", "--data", "pairs.tsv"], "the model takes single texts, but the data has pairs of texts"),
        (["model", "--data", "train.tsv"], "train-tsv has no test split: choose one of train with --split"),
        (["model", "--set", "data.options.seed=1"], "unknown option 'seed'"),
        (["model", "--set", "seed"], "key=value"),
        (
            ["model", "--set", "optimizer.lr=1"],
            "--set optimizer.lr: only options of the data can be changed here, as data.options.KEY=VALUE",
        ),
        (["model", "--set", "seed=1"], "--set seed: only options of the data can be changed here"),
        (["model", "--set", "data.options.=1"], "--set data.options.: only options of the data can be changed here"),
        (["model", "--limit", "0"], "limit is 0"),
        (["model", "--device", "gpu"], "unknown device 'gpu'"),
        (["model", "--batch-size", "0"], "at least 1"),
        (["model", "--plot", "x.doc"], "must end in .png"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message, folders):
    (folders / "strange.tsv").write_text("text\tlabel\n7\tgood\n3\tbad\n")
    (folders / "train.tsv").write_text("text\tlabel\n7\t7\n3\t3\n")
    (folders / "words.tsv").write_text("text\tlabel\nfilm\t1\n3\t2\n")
    (folders / "pairs.tsv").write_text("text\ttext2\tlabel\n7\t3\t1\n")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_help_has_examples():
    shown = printed("--help")
    assert "Usage: beamtree evaluate" in " ".join(shown.split())
    assert "--data expressions.tsv" in shown


def test_a_file_is_divided_into_tokens_by_the_tokenizer_that_is_stored_with_the_model(folders):
    package = pytest.importorskip("tokenizers")
    theirs = package.Tokenizer(package.models.WordLevel({"good": 0, "film": 1, "?": 2}, unk_token="?"))
    theirs.normalizer = package.normalizers.Lowercase()
    theirs.pre_tokenizer = package.pre_tokenizers.CharDelimiterSplit("-")
    save_model("stored", "sst5", tokenizer=make_tokenizer(theirs))
    (folders / "own.tsv").write_text("text\tlabel\nGood-FILM\tpositive\nfilm\tneutral\n")
    assert json.loads(printed("stored", "--data", "own.tsv", "--json"))["options"]["tokenizer"] == "huggingface"
    data, *_ = command.choose_data(load("stored"), [], "own.tsv", [], [], lambda *_: None)
    assert [sample.tokens for sample in data["own"]] == [("good", "film"), ("film",)]
