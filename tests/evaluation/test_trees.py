"""Analysis: models on data, against gold trees, lists, baselines and each other."""

import math

import numpy as np
import pytest
import torch

from beamtree.data import TASKS, Sample, Split, Vocabulary
from beamtree.data.tasks import listops, logic
from beamtree.evaluation import trees as analysis
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained
from beamtree.runs import recipes
from beamtree.runs.settings import Settings
from beamtree.trees import Tree
from beamtree.trees.baselines import BASELINES, uniform
from beamtree.trees.measures import agreement, entropy, expected_f1
from beamtree.trees.scores import score

EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 ]", "[MED [MIN 1 ] [MAX 3 4 5 6 ] ]", "[MIN 3 ]"]


def make(seed=0, task="listops", encoder="bt-grc", **options):
    """An untrained model, with a scorer that prefers some candidates."""
    torch.manual_seed(seed)
    changes = {"model.dim": 8, "data.task": task, **{f"encoder.options.{key}": each for key, each in options.items()}}
    settings = Settings.change(recipes.load("listops", encoder), changes)
    closed = TASKS[task].words is not None
    vocabulary = Vocabulary(TASKS[task].words or ["a", "good", "film"], closed=closed)
    config = make_config(settings.to_dict(), TASKS[task].labels, TASKS[task].pair, closed_vocabulary=closed)
    model = Pretrained(config, vocabulary, build(config, len(vocabulary)))
    for scorer in (module for name, module in model.named_modules() if name.endswith("scorer")):
        torch.nn.init.normal_(scorer.weight, std=5)
    return model.eval()


def samples(texts=EXPRESSIONS):
    tokens = [tuple(text.split()) for text in texts]
    rows = [Sample(each, str(listops.evaluate(each))) for each in tokens]
    return Split.from_samples(rows, TASKS["listops"].labels, listops.gold_tree)


@pytest.fixture(scope="module")
def models():
    return {f"seed {seed}": make(seed) for seed in range(3)}


def test_a_models_row_holds_what_its_parses_say(models):
    found = analysis.analyse(models, samples())
    gold = [listops.gold_tree(text.split()) for text in EXPRESSIONS]
    for name, model in models.items():
        parses = [model.parse(text) for text in EXPRESSIONS]
        best = [each[0].tree for each in parses]
        row, expected = found.rows[name], score(best, gold)
        assert row.against_trees.corpus() == expected.corpus()
        assert row.against_trees.sentence_f1("nontrivial") == expected.sentence_f1("nontrivial")
        assert row.depth.value == np.mean([tree.height for tree in best])
        entropies = [entropy(parse.probability for parse in each) for each in parses]
        assert row.entropy.value == pytest.approx(np.mean(entropies), abs=1e-5)
        means = [expected_f1(each, tree) for each, tree in zip(parses, gold, strict=True)]
        assert row.expected_f1.value == pytest.approx(np.nanmean(means), abs=1e-5)
    assert found.sentences == len(EXPRESSIONS)


def test_agreement_is_that_of_the_best_trees(models):
    found = analysis.analyse(models, samples()).to_dict()
    best = [[model.parse(text)[0].tree for text in EXPRESSIONS] for model in models.values()]
    assert found["agreement"]["f1"] == pytest.approx(agreement(best))
    assert found["agreement"]["nontrivial_f1"] == pytest.approx(agreement(best, "nontrivial"))
    assert [pair["models"] for pair in found["pairs"]] == [
        ["seed 0", "seed 1"],
        ["seed 0", "seed 2"],
        ["seed 1", "seed 2"],
    ]
    assert found["pairs"][0]["f1"] == pytest.approx(agreement(best[:2]))


def test_a_model_agrees_with_itself_and_alone_with_nobody(models):
    model = models["seed 0"]
    found = analysis.analyse({"a": model, "b": model}, samples()).to_dict()
    assert (found["agreement"]["f1"], found["agreement"]["same_tree"]) == (1, 1)
    assert analysis.analyse({"a": model}, samples()).to_dict()["agreement"] is None


def test_the_gold_row_is_perfect_and_the_oracle_bounds_the_lists(models):
    found = analysis.analyse(models, samples())
    gold, oracle = found.rows[analysis.GOLD], found.rows[analysis.ORACLE]
    assert gold.against_trees.corpus().f1 == gold.against_trees.exact_match == 1
    assert oracle.against_lists.corpus().recall == oracle.against_lists.exact_match == 1
    assert oracle.against_lists.corpus().f1 < 1
    for row in found.rows.values():
        assert row.against_lists.corpus().f1 <= oracle.against_lists.corpus().f1


def test_neither_chunks_nor_batches_change_anything(models, monkeypatch):
    expected = analysis.analyse(models, samples()).to_dict()
    monkeypatch.setattr(analysis, "_CHUNK", 2)
    found = analysis.analyse(models, samples(), max_samples=1).to_dict()
    for name, row in expected["rows"].items():
        assert found["rows"][name]["against_trees"] == row["against_trees"]
        assert found["rows"][name]["depth"] == row["depth"]
        assert found["rows"][name]["entropy"] == pytest.approx(row["entropy"], abs=1e-5)


def test_the_seed_is_that_of_the_random_trees(models):
    model = {"model": models["seed 0"]}
    one, same, other = (analysis.analyse(model, samples(), seed=seed).rows for seed in (0, 0, 1))
    assert one["random, uniform"].to_dict() == same["random, uniform"].to_dict()
    assert one["random, uniform"].to_dict() != other["random, uniform"].to_dict()
    assert one["balanced"].to_dict() == other["balanced"].to_dict()
    generator = np.random.default_rng(0)
    first = {name: baseline(EXPRESSIONS[0].split(), generator) for name, baseline in BASELINES.items()}
    alone = analysis.analyse(model, samples(), limit=1).rows
    assert all(alone[name].depth.value == tree.height for name, tree in first.items())


def test_the_limit_is_the_first_samples(models):
    done = []
    found = analysis.analyse(models, samples(), limit=2, progress=lambda *far: done.append(far))
    assert found.to_dict() == analysis.analyse(models, samples(EXPRESSIONS[:2])).to_dict()
    assert done == [(0, 2), (2, 2)]


def test_both_sides_of_a_pair_are_sentences():
    first, second = ["(", "a", "(", "or", "(", "not", "b", ")", ")", ")"], ["c"]
    split = Split.from_samples([Sample(tuple(first), "=", tuple(second))], logic.LABELS, logic.gold_tree)
    found = analysis.analyse({"model": make(task="logic")}, split)
    assert found.sentences == 2
    assert found.rows[analysis.GOLD].depth.value == logic.gold_tree(first).height / 2


def test_trees_of_the_data_are_gold_without_lists():
    tree = Tree.parse("((a -LRB-) film)")
    split = Split.from_samples([Sample(tree.leaves, "positive", tree=tree)], TASKS["sst5"].labels)
    found = analysis.analyse({"model": make(task="sst5")}, split).to_dict()
    assert found["rows"]["left"]["against_trees"]["exact_match"] == 1
    assert found["rows"]["right"]["against_trees"]["merged"]["f1"] == 1 / 2
    assert found["rows"]["left"]["against_lists"] is None
    assert analysis.ORACLE not in found["rows"]


def test_data_without_gold_trees_has_everything_else(models):
    split = Split.from_samples([Sample(tuple(EXPRESSIONS[0].split()), "9")], TASKS["listops"].labels)
    found = analysis.analyse(models, split).to_dict()
    assert list(found["rows"]) == [*models, *BASELINES]
    for row in found["rows"].values():
        assert (row["against_trees"], row["against_lists"], row["expected_f1"]) == (None, None, None)
        assert row["depth"] > 0
    assert found["agreement"]["f1"] is not None


def test_single_leaves_have_depth_and_no_f1(models):
    found = analysis.analyse({"model": models["seed 0"]}, samples(["7", "3"]))
    assert found.rows["model"].depth.value == 0
    assert math.isnan(found.rows["model"].against_trees.sentence_f1())
    assert found.to_dict()["rows"]["model"]["against_trees"]["merged"]["f1"] is None


def test_a_gold_tree_encoder_is_right_on_gold_data_and_refuses_other():
    model = {"gold": make(encoder="gold-tree-grc")}
    assert analysis.analyse(model, samples()).rows["gold"].against_trees.exact_match == 1
    without = Split.from_samples([Sample(("[MAX", "1", "]"), "1")], TASKS["listops"].labels)
    with pytest.raises(ValueError, match="gold-tree-grc needs gold trees, and the data has none"):
        analysis.analyse(model, without)


def test_an_encoder_without_trees_is_refused():
    with pytest.raises(ValueError, match="recurrent-grc builds no trees: it can predict, not parse"):
        analysis.analyse({"model": make(encoder="recurrent-grc")}, samples())


def test_a_model_is_left_in_the_mode_it_was_in(models):
    model = make().train()
    analysis.analyse({"model": model}, samples())
    assert model.model.training


def test_unknown_tokens_are_told(models):
    split = Split.from_samples([Sample(("[MXA", "1", "]"), "1")], TASKS["listops"].labels)
    with pytest.raises(ValueError, match=r"unknown token '\[MXA' \(did you mean '\[MAX'\?\)"):
        analysis.analyse(models, split)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"seed": -1}, {"max_samples": 0}])
def test_wrong_numbers_are_told(models, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is "):
        analysis.analyse(models, samples(), **wrong)


def test_long_sentences_are_no_trouble(models):
    text = "[SM " + "1 " * 300 + "]"
    found = analysis.analyse({"model": models["seed 0"]}, samples([text]))
    assert found.rows["left"].depth.value == 301
    assert len(uniform(text.split(), 0)) == 302


def test_labels_of_constituents_are_compared_with_the_values_of_lists(models):
    data = samples()
    split = Split.from_samples(data, data.label_names, listops.gold_tree, listops.values)
    found = analysis.analyse(models, split)
    for name, model in models.items():
        expected = right = held = 0
        for text in EXPRESSIONS:
            best = model.parse(text, labels=True)[0]
            said = {node.span: node.label for node in best.nodes}
            for span, value in listops.values(text.split()).items():
                expected += 1
                held += span in said
                right += said.get(span) == value
        total = found.rows[name].constituents.total
        assert (total.expected, total.found, total.correct) == (expected, held, right)
        assert expected == 7
    assert found.rows["gold"].constituents.total.expected == 0
    assert found.to_dict()["rows"]["seed 0"]["constituents"]["by_height"][0]["height"] == 1


def test_pairs_have_no_labels_of_constituents():
    task = TASKS["logic"]
    rows = [Sample(("a",), task.labels[0], ("(", "not", "b", ")"))]
    found = analysis.analyse({"one": make(task="logic")}, Split.from_samples(rows, task.labels, logic.gold_tree))
    assert found.to_dict()["rows"]["one"]["constituents"] is None
