"""The trees of trained models on data: F1 scores, agreement, and labels of constituents.

Trees are compared with gold trees, with baselines and with those of other models.

    found = analyse({"seed 0": beamtree.load("runs/0"), "seed 1": beamtree.load("runs/1")}, load("listops", "near-iid"))
    found.rows["seed 0"].against_trees.sentence_f1()
    found.rows["seed 0"].constituents.by_height[2].accuracy
    found.agreement[("seed 0", "seed 1")].f1

The data is processed in chunks, of which only sums are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from beamtree.data.split import Split
from beamtree.evaluation import EvaluationProgress
from beamtree.evaluation.constituents import ConstituentAccuracy
from beamtree.models.inference import MAX_SAMPLES
from beamtree.models.pretrained import Pretrained
from beamtree.models.readings import LabelledTree
from beamtree.trees.baselines import BASELINES
from beamtree.trees.bracketing import Bracketing
from beamtree.trees.measures import Weighted, entropy, expected_f1
from beamtree.trees.scores import COUNTED, Mean, Scores
from beamtree.trees.tree import Span, Tree
from beamtree.utils.checks import check_integer

GOLD = "gold"
ORACLE = "oracle"  # the best binary tree for brackets with more than two constituents
_CHUNK = 512  # samples between two calls of `progress`; enough for batches of similar length


class Sentence(NamedTuple):
    """A text of the data, or one side of a pair."""

    tokens: tuple[str, ...]
    tree: Tree | None  # gold tree
    lists: Bracketing | None  # brackets of a formal language, without a tree inside them
    labels: Mapping[Span, str] | None = None  # expected labels of constituents, if known


class ModelTrees:
    """Running statistics of the trees of one model or baseline."""

    def __init__(self) -> None:
        self.depth, self.entropy, self.expected_f1 = Mean(), Mean(), Mean()
        self.against_trees, self.against_lists = Scores(), Scores()
        self.constituents = ConstituentAccuracy()

    def add(self, beams: Weighted, sentence: Sentence, labels: Mapping[Span, str] | None = None) -> None:
        """Add a sentence. `labels` are those that the model predicts for the constituents of its most probable tree."""
        best = beams[0][0]
        self.depth.add(best.height)
        self.entropy.add(entropy(beam[1] for beam in beams))
        if sentence.tree is not None:
            self.against_trees.add(best, sentence.tree)
            self.expected_f1.add(expected_f1(beams, sentence.tree))
        if sentence.lists is not None:
            self.against_lists.add(best, sentence.lists)
        if sentence.labels is not None and labels is not None:
            self.constituents.add(labels, sentence.labels)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types, with None for what is not known."""
        return {
            "depth": _known(self.depth.value),
            "entropy": _known(self.entropy.value),
            "expected_f1": _known(self.expected_f1.value),
            "against_trees": _record(self.against_trees),
            "against_lists": _record(self.against_lists),
            "constituents": self.constituents.to_dict() if self.constituents.total.expected else None,
        }


class Agreement:
    """Running statistics of the agreement between two models."""

    def __init__(self) -> None:
        self.best, self.expected = Scores(), Mean()

    def add(self, first: Weighted, second: Weighted) -> None:
        self.best.add(first[0][0], second[0][0])
        self.expected.add(expected_f1(first, second))

    def to_dict(self) -> dict[str, Any]:
        return {
            "f1": _known(self.best.sentence_f1()),
            "nontrivial_f1": _known(self.best.sentence_f1("nontrivial")),
            "expected_f1": _known(self.expected.value),
            "same_tree": _known(self.best.exact_match),
        }


class Analysis:
    """An analysis of trees: a row for each model and baseline, and the agreement of every two models.

    Args:
        models: names of the models.

    Attributes:
        models: names of the models.
        sentences: number of sentences.
        rows: for each model and baseline by its name: scores against gold trees and brackets, entropy, depth, and the
            accuracy of the labels of constituents.
        agreement: for each pair of models, how far their trees agree.

    Examples:
        >>> from beamtree.evaluation.trees import Analysis
        >>> Analysis(["mine"]).to_dict()
        {'sentences': 0, 'rows': {}, 'agreement': None, 'pairs': []}
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.models = list(models)
        self.sentences = 0
        self.rows = {name: ModelTrees() for name in (*models, *BASELINES, ORACLE, GOLD)}
        self.agreement = {pair: Agreement() for pair in combinations(models, 2)}

    def add(self, sentence: Sentence, trees: Mapping[str, LabelledTree], generator: np.random.Generator) -> None:
        """Add a sentence with the trees of each model.

        Args:
            sentence: the tokens, with gold tree, brackets and labels where there are any.
            trees: the trees of each model by its name.
            generator: for the random baselines.
        """
        self.sentences += 1
        beams: dict[str, Weighted] = {name: each.parses for name, each in trees.items()}
        found = dict(beams)
        for name, baseline in BASELINES.items():
            found[name] = [(baseline(sentence.tokens, generator), 1.0)]
        if sentence.tree is not None:
            found[GOLD] = [(sentence.tree, 1.0)]
        if sentence.lists is not None:
            found[ORACLE] = [(sentence.lists.binarised(), 1.0)]
        for name, each in found.items():
            self.rows[name].add(each, sentence, trees[name].labels if name in trees else None)
        for (first, second), pair in self.agreement.items():
            pair.add(beams[first], beams[second])

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types, as `beamtree analyse --json` prints them.

        Returns:
            The rows, the agreement of each pair of models, and the mean over all pairs.
        """
        pairs = [{"models": list(names), **pair.to_dict()} for names, pair in self.agreement.items()]
        rows = {name: row.to_dict() for name, row in self.rows.items() if row.depth.number}
        mean = {key: _mean([pair[key] for pair in pairs]) for key in Agreement().to_dict()} if pairs else None
        return {"sentences": self.sentences, "rows": rows, "agreement": mean, "pairs": pairs}


def analyse(
    models: Mapping[str, Pretrained],
    split: Split,
    *,
    limit: int | None = None,
    seed: int = 0,
    max_samples: int = MAX_SAMPLES,
    progress: EvaluationProgress | None = None,
    into: Analysis | None = None,
) -> Analysis:
    """Analyse the trees of models for the texts of a split; for pairs, of both sides.

    Args:
        models: models by their names.
        split: the data.
        limit: number of samples, from the first; None: all.
        seed: seed of the random baselines.
        max_samples: maximum batch size.
        progress: called with the number of completed samples and the total.
        into: an analysis to add the sentences to, which has the partial results if the call is interrupted; None: a new
            one.

    Returns:
        The analysis.

    Raises:
        ValueError: if a model builds no trees, or needs gold trees that the data lacks.

    Examples:
        >>> from beamtree.evaluation.trees import analyse
        >>> samples = [["[MAX", "2", "9", "]"]]
        >>> data = beamtree.data.Data.from_samples(samples, ["9"], dev=0, test=0, trees=["((([MAX 2) 9) ])"])
        >>> found = analyse({"mine": beamtree.load("listops-bt-grc")}, data["train"])
        >>> found.rows["mine"].against_trees.sentence_f1()
        1.0
    """
    if limit is not None:
        check_integer("limit", limit, at_least=1)
    check_integer("seed", seed, at_least=0)
    check_integer("max_samples", max_samples, at_least=1)
    analysis = Analysis(list(models)) if into is None else into
    generator = np.random.default_rng(seed)
    total = len(split) if limit is None else min(limit, len(split))
    for start in range(0, total, _CHUNK):
        if progress is not None:
            progress(start, total)
        chunk = [each for index in range(start, min(start + _CHUNK, total)) for each in sentences(split, index)]
        found = {name: parse_sentences(model, chunk, max_samples) for name, model in models.items()}
        for place, sentence in enumerate(chunk):
            analysis.add(sentence, {name: trees[place] for name, trees in found.items()}, generator)
    if progress is not None:
        progress(total, total)
    return analysis


def sentences(split: Split, index: int) -> Iterator[Sentence]:
    """Yield the text of a sample, or both texts of a pair."""
    sample = split[index]
    sides = [(sample.tokens, sample.tree)]
    if sample.second is not None:
        sides.append((sample.second, split.second_tree(index)))
    labels = None if sample.second is not None else split.constituent_labels(index)
    for tokens, tree in sides:
        yield Sentence(tokens, tree, None if split.gold is None else Bracketing.from_tokens(tokens), labels)


def parse_sentences(model: Pretrained, chunk: Sequence[Sentence], max_samples: int = MAX_SAMPLES) -> list[LabelledTree]:
    """Parse sentences with the tokens of the data. Each has its trees, most probable first."""
    gold = None
    if model.model.needs_trees and model.parser is None:
        gold = [sentence.tree for sentence in chunk if sentence.tree is not None]
        if len(gold) < len(chunk):
            name = model.config.encoder
            raise ValueError(f"{name} needs gold trees, and the data has none")
    return model.label_tokens([sentence.tokens for sentence in chunk], gold, max_samples)


def _record(scores: Scores) -> dict[str, Any] | None:
    if not scores.sentences:
        return None
    record: dict[str, Any] = {"exact_match": scores.exact_match}
    for counted in COUNTED:
        corpus = scores.corpus(counted)
        record[counted] = {
            "precision": _known(corpus.precision),
            "recall": _known(corpus.recall),
            "f1": _known(corpus.f1),
            "sentence_f1": _known(scores.sentence_f1(counted)),
        }
    return record


def _known(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return value if value == value else None


def _mean(values: Sequence[float | None]) -> float | None:
    mean = Mean()
    for value in values:
        mean.add(float("nan") if value is None else value)
    return _known(mean.value)
