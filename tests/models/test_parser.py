"""Models that compose along the trees of another model, the parser: in use, on disk, on the hub, and in evaluation."""

import os
import re
import shutil
from dataclasses import replace

import pytest
import torch

from beamtree.data import TASKS, Sample, Split, Vocabulary
from beamtree.evaluation import evaluate, evaluate_model
from beamtree.evaluation.trees import analyse
from beamtree.models import parser as parsers
from beamtree.models import pretrained, storage
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.parser import best_trees, load_parser, with_trees
from beamtree.models.pretrained import Pretrained, load
from beamtree.runs import recipes
from beamtree.trees import Tree

TEXTS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 ]", "[MED [MIN 1 ] [MAX 3 4 5 6 ] ]", "[MIN 3 ]"]
PAIRS = [("a b", "a"), ("( a ( or b ) )", "b c"), ("( not a )", "c or b")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))


def make(encoder="bt-grc", task="listops", parser=None, seed=0):
    """An untrained model, whose scorer prefers some candidates."""
    torch.manual_seed(seed)
    changes = {"model.dim": 8, "data.task": task, "data.parser": None if parser is None else "parser"}
    settings = recipes.load("listops", encoder).change(changes)
    vocabulary = Vocabulary(TASKS[task].words, closed=True)
    config = make_config(settings.to_dict(), TASKS[task].labels, TASKS[task].pair, closed_vocabulary=True)
    model = Pretrained(config, vocabulary, build(config, len(vocabulary)), parser=parser)
    for name, module in model.model.named_modules():
        if name.endswith("scorer"):
            torch.nn.init.normal_(module.weight, std=5)
    return model.eval()


def along_trees(task="listops"):
    return make("gold-tree-grc", task, make(task=task), seed=1)


def split(texts=TEXTS):
    return Split.from_samples([Sample(tuple(text.split()), "0") for text in texts], TASKS["listops"].labels)


def pair_split():
    rows = [Sample(tuple(first.split()), "=", tuple(second.split())) for first, second in PAIRS]
    return Split.from_samples(rows, TASKS["logic"].labels)


def message(call, *arguments):
    """The error message for a mistake, which is one line."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call(*arguments)
    return str(caught.value)


def test_the_trees_of_a_model_are_those_of_its_parser():
    model = along_trees()
    found = [model.parse(text)[0].tree for text in TEXTS]
    assert found == [model.parser.parse(text)[0].tree for text in TEXTS]
    assert found != [TASKS["listops"].gold(text.split()) for text in TEXTS]


def test_a_text_is_encoded_along_the_parsers_best_tree():
    model = along_trees()
    words = [text.split() for text in TEXTS]
    for text, tokens, tree in zip(TEXTS, words, best_trees(model.parser, words), strict=True):
        ids, lengths = torch.tensor([model.vocabulary.ids(tokens)]), torch.tensor([len(tokens)])
        expected = model.model.encode(ids, lengths, [tree]).state
        torch.testing.assert_close(model.encode([text]), expected)
    assert [each.label for each in model.predict(TEXTS)] == [each.prediction.label for each in model(TEXTS)]


def test_both_sides_of_a_pair_are_parsed():
    model = along_trees("logic")
    trees = [parses[0].tree for reading in model(PAIRS) for parses in reading.parses]
    sides = [side.split() for pair in PAIRS for side in pair]
    assert trees == best_trees(model.parser, sides)


def test_a_split_gets_the_parsers_trees():
    parser = make()
    found = with_trees(split(), parser)
    assert [found.tree(index) for index in range(len(found))] == best_trees(parser, split().texts())
    assert [sample.tokens for sample in found] == [sample.tokens for sample in split()]
    assert with_trees(found, None) is found
    others = [Tree.from_actions([0] * (len(tokens) - 1)) for tokens in split().texts()]
    replaced = split().with_trees(others)
    assert [replaced.tree(index).reduces for index in range(len(others))] == [tree.reduces for tree in others]
    assert with_trees(replaced, parser).tree(0) == found.tree(0)


def test_a_split_of_pairs_gets_trees_for_both_sides():
    parser, pairs = make(task="logic"), pair_split()
    found = with_trees(pairs, parser)
    firsts, seconds = ([each.split() for each in side] for side in zip(*PAIRS, strict=True))
    assert [found.tree(index) for index in range(len(PAIRS))] == best_trees(parser, firsts)
    assert [found.second_tree(index) for index in range(len(PAIRS))] == best_trees(parser, seconds)


def test_trees_are_cached_for_a_parser_and_its_data(monkeypatch):
    parser, calls = make(), []
    monkeypatch.setattr(parsers, "best_trees", lambda *arguments: calls.append(arguments) or best_trees(*arguments))
    first = with_trees(split(), parser)
    assert with_trees(split(), make()).tree(0) == first.tree(0)
    assert len(calls) == 1
    with_trees(split(TEXTS[:3]), parser)
    assert len(calls) == 2
    with_trees(split(), make(seed=1))
    assert len(calls) == 3
    options = {**parser.config.document["encoder"]["options"], "beam_size": 1}
    document = {**parser.config.document, "encoder": {"name": "bt-grc", "options": options}}
    parser.config = replace(parser.config, document=document)
    with_trees(split(), parser)
    assert len(calls) == 4


def test_the_progress_of_parsing_is_reported(monkeypatch):
    monkeypatch.setattr(parsers, "_CHUNK", 2)
    reported = []
    assert best_trees(make(), split().texts(), lambda *given: reported.append(given)) == best_trees(
        make(), split().texts()
    )
    assert reported == [("trees", 0, 5), ("trees", 2, 5), ("trees", 4, 5), ("trees", 5, 5)]


def test_evaluation_uses_the_parsers_trees():
    model, reported = along_trees(), []
    found = evaluate(model, split(), parser_progress=lambda *given: reported.append(given))
    assert reported == [("trees", 0, 5), ("trees", 5, 5)]
    batches = with_trees(split(), model.parser).batches(model.vocabulary, trees=True)
    expected = evaluate_model(model.model, batches, device="cpu")
    assert found.outcomes.losses.tolist() == pytest.approx(expected.losses.tolist())


def test_analysis_uses_the_parsers_trees():
    model = along_trees()
    found = analyse({"ours": model, "parser": model.parser}, split())
    assert found.rows["ours"].depth.value == found.rows["parser"].depth.value


def test_a_folder_holds_the_parser(tmp_path):
    model = along_trees()
    model.save_pretrained(tmp_path / "run")
    assert storage.is_run(tmp_path / "run" / storage.PARSER)
    found = load(tmp_path / "run")
    assert [each.probabilities for each in found.predict(TEXTS)] == [
        each.probabilities for each in model.predict(TEXTS)
    ]
    assert not found.parser.training


def test_a_folder_without_its_parser_is_incomplete(tmp_path):
    along_trees().save_pretrained(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / storage.PARSER)
    assert message(load, tmp_path / "run") == f"{tmp_path / 'run'} has no folder parser: the folder is incomplete"


def test_shipped_models_share_a_shipped_parser(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "_SHIPPED", tmp_path)
    make().save_pretrained(tmp_path / "parser")  # the name of the parser in the settings of `along_trees`
    model = along_trees()
    model.save_pretrained(tmp_path / "composer")
    shutil.rmtree(tmp_path / "composer" / storage.PARSER)
    found = load("composer")
    assert found.predict(TEXTS) == model.predict(TEXTS)
    found.save_pretrained(tmp_path / "elsewhere" / "copy")
    assert storage.is_run(tmp_path / "elsewhere" / "copy" / storage.PARSER)


def test_a_parser_has_no_parser(tmp_path):
    along_trees().save_pretrained(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / storage.PARSER)
    os.symlink(tmp_path / "run", tmp_path / "run" / storage.PARSER)
    assert "cannot be a parser: it has a parser itself" in message(load, tmp_path / "run")


def test_an_encoder_that_needs_trees_is_no_parser(tmp_path):
    make("gold-tree-grc").save_pretrained(tmp_path)
    expected = f"{tmp_path} cannot be a parser: its encoder, gold-tree-grc, needs trees itself"
    assert message(load_parser, tmp_path) == expected


def test_an_encoder_without_trees_is_no_parser():
    assert message(best_trees, make("lstm"), split().texts()) == "lstm builds no trees: it can predict, not parse"


def test_a_parser_for_other_words_is_named():
    parser = make(task="logic")
    assert "[MAX" in message(with_trees, split(), parser)


def test_only_encoders_that_need_trees_have_a_parser():
    expected = "data.parser is 'listops-bt-grc': it must be null, because bt-grc needs no trees"
    changes = {"data.parser": "listops-bt-grc"}
    assert message(recipes.load, "listops", "bt-grc", 0, changes) == expected
    assert recipes.load("listops", "gold-tree-grc", 0, changes).data.parser == "listops-bt-grc"


def test_the_path_of_a_parser_is_absolute(tmp_path, monkeypatch):
    make().save_pretrained(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert recipes.load("listops", "gold-tree-grc", 0, {"data.parser": "run"}).data.parser == str(tmp_path / "run")
    recipe = tmp_path / "recipes" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_text("like: listops\nencoder: gold-tree-grc\ndata: {parser: ../run}\n")
    monkeypatch.chdir("/")
    assert recipes.load(str(recipe)).data.parser == str(tmp_path / "run")
    assert recipes.load(str(recipe), task="listops-tiny").data.parser == str(tmp_path / "run")


def test_a_parser_builds_trees_that_are_always_the_same(tmp_path):
    for name in ("lstm", "random-tree-grc"):
        make(encoder=name).save_pretrained(tmp_path / name)
    assert re.search(r"lstm cannot be a parser: lstm builds no trees", message(load_parser, tmp_path / "lstm"))
    expected = r"random-tree-grc cannot be a parser: the trees of random-tree-grc are others in each call"
    assert re.search(expected, message(load_parser, tmp_path / "random-tree-grc"))
