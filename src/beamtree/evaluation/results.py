"""Results of an evaluation: accuracy with its confidence interval, overall, by length and by depth."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from beamtree.data.split import Split
from beamtree.data.task import DataProgress
from beamtree.data.tasks.listops.expressions import CLOSE, OPERATORS, TOKENS
from beamtree.evaluation.scoring import MAX_SAMPLES, EvaluationProgress, Outcomes, evaluate_model
from beamtree.models.parser import with_trees
from beamtree.models.pretrained import Pretrained
from beamtree.utils.checks import unknown
from beamtree.utils.extras import require

_Z = 1.959964  # quantile of the normal distribution for a two-sided interval of 95 %
_MAX_BINS = 12


@dataclass(frozen=True)
class Proportion:
    """The proportion of correct samples.

    Attributes:
        correct: number of correct samples.
        count: number of all samples.

    Examples:
        >>> from beamtree.evaluation import Proportion
        >>> share = Proportion(correct=90, count=100)
        >>> share.accuracy, [round(limit, 3) for limit in share.interval]
        (0.9, [0.826, 0.945])
    """

    correct: int
    count: int

    @property
    def accuracy(self) -> float:
        """The share of correct samples."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval. Its limits are within 0 and 1, and differ even if all samples are correct."""
        p, n = self.accuracy, self.count
        middle = p + _Z**2 / (2 * n)
        reach = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        low, high = ((middle + side) / (1 + _Z**2 / n) for side in (-reach, reach))
        return (0.0 if self.correct == 0 else low), (1.0 if self.correct == n else high)  # without rounding errors


@dataclass(frozen=True)
class Bin(Proportion):
    """The samples whose length, or depth, is from `first` to `last`.

    Attributes:
        correct: number of correct samples.
        count: number of all samples.
        first: the lowest value.
        last: the highest value.

    Examples:
        >>> from beamtree.evaluation import Bin
        >>> Bin(correct=9, count=10, first=1, last=20).to_dict()["accuracy"]
        0.9
    """

    first: int
    last: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "accuracy": self.accuracy, "interval": self.interval}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of a model on a split. Arrays are in the order of the data.

    Attributes:
        outcomes: predictions, probabilities and losses of all samples.
        classes: names of the labels.
        lengths: lengths of the samples, (S,).
        depths: for ListOps, the nesting depth of each sample, (S,); otherwise None.

    Examples:
        >>> from beamtree.evaluation import evaluate
        >>> data = beamtree.data.Data.from_samples(
        ...     [["[MAX", "2", "9", "]"], ["[MIN", "4", "7", "]"]], ["9", "4"], dev=0, test=0
        ... )
        >>> found = evaluate(beamtree.load("listops-bt-grc"), data["train"])
        >>> found.accuracy, found.count, found.depths.tolist()
        (1.0, 2, [1, 1])
    """

    outcomes: Outcomes
    classes: tuple[str, ...]
    lengths: Integer[np.ndarray, "S"]
    depths: Integer[np.ndarray, "S"] | None

    @property
    def hit(self) -> Bool[np.ndarray, "S"]:
        """Whether each prediction is correct, (S,)."""
        return self.outcomes.hit

    @property
    def losses(self) -> Float[np.ndarray, "S"]:
        """The loss of each sample, (S,)."""
        return self.outcomes.losses

    @cached_property
    def share(self) -> Proportion:
        """The proportion of correct samples."""
        return Proportion(int(self.hit.sum()), len(self.hit))

    @property
    def correct(self) -> int:
        """The number of correct samples."""
        return self.share.correct

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.share.count

    @property
    def accuracy(self) -> float:
        """The share of correct samples."""
        return self.share.accuracy

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        return self.share.interval

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.losses.mean())

    @cached_property
    def macro_f1(self) -> float:
        """The mean of the F1 scores of all labels that occur, in the data or in the predictions."""
        predictions, labels = self._tensors()
        scores = classification().multiclass_f1_score(predictions, labels, len(self.classes), average="none")
        occurs = torch.bincount(torch.cat((predictions, labels)), minlength=len(self.classes)) > 0
        return float(scores[occurs].mean())

    @cached_property
    def calibration_error(self) -> float:
        """The expected calibration error, over 15 bins of the probability of the prediction."""
        probabilities = torch.from_numpy(self.outcomes.probabilities)
        _, labels = self._tensors()
        return float(classification().multiclass_calibration_error(probabilities, labels, len(self.classes), n_bins=15))

    @cached_property
    def confusion(self) -> Integer[np.ndarray, "C C"]:
        """The number of samples of each label (row) with each prediction (column), (C, C)."""
        predictions, labels = self._tensors()
        return classification().multiclass_confusion_matrix(predictions, labels, len(self.classes)).numpy()

    def _tensors(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.outcomes.predictions), torch.from_numpy(self.outcomes.labels)

    def to_dict(self) -> dict[str, Any]:
        """Convert to the values that results.json has for a split.

        Returns:
            "correct", "count", "accuracy" and "loss".
        """
        return {"correct": self.correct, "count": self.count, "accuracy": self.accuracy, "loss": self.loss}

    def bins(self, values: Integer[np.ndarray, "S"], step: int) -> list[Bin]:
        """Divide the samples into bins by a value, such as their length.

        Args:
            values: the value of each sample, (S,).
            step: width of a bin; the first is from 1 to `step`.

        Returns:
            The bins that have samples.
        """
        place = -(-values.astype(np.int64) // step)
        found = []
        for index in np.unique(place).tolist():
            hit = self.hit[place == index]
            found.append(Bin(int(hit.sum()), len(hit), max((index - 1) * step + 1, 0), index * step))
        return found


Views = dict[str, dict[str, list[Bin]]]  # the bins of each split, for "length" and "depth"


def views(found: Mapping[str, Evaluation]) -> Views:
    """Compute the accuracy by length, and by depth where it is known.

    Args:
        found: evaluations by split.

    Returns:
        The bins of each split, for "length" and "depth". All splits use the same bin width.
    """
    lengths = {split: (one, one.lengths) for split, one in found.items()}
    depths = {split: (one, one.depths) for split, one in found.items() if one.depths is not None}
    shown: Views = {}
    for name, values in (("length", lengths), ("depth", depths)):
        if values:
            step = _step([each for _, each in values.values()])
            shown[name] = {split: one.bins(each, step) for split, (one, each) in values.items()}
    return shown


def classification() -> Any:
    """Import the functions of torchmetrics, an optional package."""
    require("train", "an evaluation")
    return import_module("torchmetrics.functional.classification")


def records(found: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Convert evaluations to JSON types, as `beamtree evaluate --json` prints them.

    Args:
        found: evaluations by split.

    Returns:
        Accuracies, further metrics and bins of each split.
    """
    shown = {f"by_{view}": splits for view, splits in views(found).items()}
    return {
        "splits": {split: _record(one) for split, one in found.items()},
        **{view: {split: [each.to_dict() for each in bins] for split, bins in shown[view].items()} for view in shown},
    }


def _record(one: Evaluation) -> dict[str, Any]:
    return {
        **{**one.to_dict(), "interval": one.interval},
        **{"macro_f1": one.macro_f1, "calibration_error": one.calibration_error},
        "confusion": {"labels": list(one.classes), "counts": one.confusion.tolist()},
    }


def _step(values: list[np.ndarray]) -> int:
    """The width of the bins: the smallest of 1, 2, 5, 10, … with which there are at most `_MAX_BINS`."""
    lowest, highest = min(int(each.min()) for each in values), max(int(each.max()) for each in values)
    steps = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    return next(step for step in steps if -(-highest // step) - -(-lowest // step) < _MAX_BINS)


def evaluate(
    pretrained: Pretrained,
    split: Split,
    *,
    progress: EvaluationProgress | None = None,
    parser_progress: DataProgress | None = None,
    budget: int | None = None,
    max_samples: int = MAX_SAMPLES,
) -> Evaluation:
    """Evaluate a model on a split.

    Args:
        pretrained: the model, as `beamtree.load` returns it.
        split: the data, whose labels must be among those of the model.
        progress: called with the number of completed samples and the total.
        parser_progress: called before, if the model has a parser, with "trees", the number of parsed texts and the
            total.
        budget: maximum of batch size × longest²; see `evaluate_model`.
        max_samples: maximum batch size.

    Returns:
        The evaluation.

    Raises:
        ValueError: if the data does not fit the model, or an input does not fit into memory.

    Examples:
        >>> from beamtree.evaluation import evaluate
        >>> data = beamtree.data.Data.from_samples(
        ...     [["[MAX", "2", "9", "]"], ["[MIN", "4", "7", "]"]], ["9", "4"], dev=0, test=0
        ... )
        >>> evaluate(beamtree.load("listops-bt-grc"), data["train"]).accuracy
        1.0
    """
    parsed = with_trees(with_labels(split, pretrained.labels), pretrained.parser, parser_progress)
    batches = parsed.batches(pretrained.vocabulary, pretrained.model.needs_trees)
    outcomes = evaluate_model(
        pretrained.model,
        batches,
        device=pretrained.device,
        budget=budget,
        max_samples=max_samples,
        progress=progress,
    )
    return Evaluation(outcomes, pretrained.labels, split.lengths, nesting(split))


def with_labels(split: Split, labels: tuple[str, ...]) -> Split:
    """The split with its labels as indices into those of the model."""
    if split.label_names == labels:
        return split
    for name, count in split.label_counts().items():
        if count and name not in labels:
            raise ValueError(f"the data does not fit the model: {unknown('label', name, labels)}")
    indices = np.array([labels.index(name) if name in labels else 0 for name in split.label_names])
    return replace(split, labels=indices[split.labels], label_names=labels)


def nesting(split: Split) -> Integer[np.ndarray, "S"] | None:
    """The depth of each expression, as `listops.depth` computes it; None if the texts are not ListOps."""
    if not set(split.words) <= set(TOKENS):
        return None
    change = np.array([(word in OPERATORS) - (word == CLOSE) for word in split.words])
    open_lists = np.cumsum(change[split.tokens.flat])  # (T,)
    starts = np.asarray(split.tokens.offsets[:-1], dtype=np.int64)
    before = open_lists[starts] - change[split.tokens.flat[starts]]
    return np.maximum(np.maximum.reduceat(open_lists, starts) - before, 0)
