"""Apply a model to labelled data: predictions and losses of every sample, in batches as large as memory allows.

A batch is limited by its size and by size × longest², because the memory of some encoders grows this way. On a GPU the
longest input is encoded alone first, and its memory determines how many fit. The longest inputs are processed first, so
an input that does not fit is detected at once. If a batch does not fit, the limit is halved.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.data.batching import Batches, Buckets
from beamtree.models.heads import Model, PairClassifier
from beamtree.utils.checks import check_integer
from beamtree.utils.memory import available_bytes, is_out_of_memory, peak_bytes, release_memory

MAX_SAMPLES = 256  # larger batches are not faster
FIXED_BUDGET = 2**22  # batch size × longest², where memory is not measured: four inputs of 1000 tokens
SHARE = 16  # a batch may use 1/16 of a GPU's free memory: the engine caches workspaces for inputs of several sizes

EvaluationProgress = Callable[[int, int], None]  # called with the number of completed samples and the total


class Outcomes(NamedTuple):
    """The outputs of a model for every sample, in the order of the data.

    Attributes:
        predictions: indices of the most probable classes, (S,).
        labels: indices of the correct classes, (S,).
        probabilities: probabilities of all classes, (S, C).
        losses: the loss of each sample, (S,).
    """

    predictions: Int[np.ndarray, "S"]
    labels: Int[np.ndarray, "S"]
    probabilities: Float[np.ndarray, "S C"]
    losses: Float[np.ndarray, "S"]

    @property
    def hit(self) -> Bool[np.ndarray, "S"]:
        """Whether the prediction is correct."""
        return self.predictions == self.labels


def evaluate_model(
    model: Model,
    batches: Batches,
    *,
    device: torch.device | str,
    budget: int | None = None,
    max_samples: int = MAX_SAMPLES,
    progress: EvaluationProgress | None = None,
) -> Outcomes:
    """Apply a model to labelled data. The model is left in the mode it was in.

    If a batch does not fit into memory, a warning is issued and the budget is halved.

    Args:
        model: a classifier of `beamtree.models.heads`.
        batches: the data, with labels.
        device: the device of the model.
        budget: maximum of batch size × longest², where the length of a pair includes both sides; None: as much as fits
            into memory, measured on a GPU on the first call and again for longer inputs.
        max_samples: maximum batch size.
        progress: called with the number of completed samples and the total.

    Returns:
        Predictions, probabilities and losses.

    Raises:
        ValueError: if the data does not fit the model, or if an input does not fit into memory by itself.

    Examples:
        >>> from beamtree.evaluation import evaluate_model
        >>> from beamtree.models.heads import TextClassifier
        >>> model = TextClassifier(beamtree.encoder("bt-grc", dim=8), vocabulary_size=20, classes=3)
        >>> texts = beamtree.data.Ragged.from_sequences([[3, 4, 5], [6, 7]])
        >>> evaluate_model(model, beamtree.data.Batches(texts, labels=[0, 2]), device="cpu").probabilities.shape
        (2, 3)
    """
    check_integer("max_samples", max_samples, at_least=1)
    if budget is not None:
        check_integer("budget", budget, at_least=1)
    _check_data(model, batches)
    with _evaluating(model), torch.inference_mode():
        scoring = _Scoring(model, batches, torch.device(device), max_samples)
        scoring.run(budget, progress or (lambda done, total: None))
        assert batches.labels is not None
        labels = np.asarray(batches.labels, dtype=np.int64)
        losses = scoring.losses.cpu().double().numpy()
        return Outcomes(scoring.predictions.cpu().numpy(), labels, scoring.probabilities.cpu().numpy(), losses)


class _Scoring:
    """The outputs so far. They stay on the device until the end, to avoid host syncs."""

    def __init__(self, model: Model, batches: Batches, device: torch.device, max_samples: int) -> None:
        self.model, self.batches, self.device, self.max_samples = model, batches, device, max_samples
        # Memory is assumed to be proportional to the square of `equivalent_lengths`.
        self.lengths = self.equivalent_lengths = batches.lengths
        self.predictions = torch.zeros(len(batches), dtype=torch.int64, device=device)
        self.probabilities = torch.zeros(len(batches), model.head.classes, device=device)
        self.losses = torch.zeros(len(batches), device=device)

    def run(self, budget: int | None, progress: EvaluationProgress) -> None:
        count = len(self.batches)
        progress(0, count)
        if budget is None:
            budget = self.measured_budget() if self.device.type == "cuda" else FIXED_BUDGET
        todo, warned = self.plan(np.arange(count), budget), False
        while todo:
            rows = todo.pop()
            if self.fits(rows):
                progress(count - sum(map(len, todo)), count)
                continue
            longest = int(self.lengths[rows].max())
            if len(rows) == 1:
                raise ValueError(
                    f"an input of {longest} tokens does not fit into the memory of {self.device}: "
                    "use a device with more memory, or a smaller model"
                )
            if not warned:
                message = f"{len(rows)} inputs of {longest} tokens do not fit into the memory of {self.device}"
                warnings.warn(f"{message}: continuing with smaller batches", RuntimeWarning, stacklevel=3)
                warned = True
            _measured.pop(self.model, None)  # the measurement is no longer valid
            budget = len(rows) * int(self.equivalent_lengths[rows].max()) ** 2 // 2
            todo = self.plan(np.concatenate((*todo, rows)), budget)

    def plan(self, rows: Int[np.ndarray, "R"], budget: int) -> list[np.ndarray]:
        """Divide these samples into batches, the longest last."""
        whole = -(-len(rows) // self.max_samples)  # one bucket, so all samples are sorted
        buckets = Buckets(self.equivalent_lengths[rows], self.max_samples, budget, whole, shuffle=False)
        return [rows[batch] for batch in buckets]

    def measured_budget(self) -> int:
        """The budget that fits into a batch's share of the free memory, computed from the memory of the longest input.

        Memory grows at least linearly with the length. A shorter input is therefore assumed to need memory in
        proportion to its length, which is an upper bound where memory grows faster.
        """
        known = _measured.get(self.model)
        if known is None or known.longest < self.lengths.max():
            known = _measured[self.model] = self.measure()
        self.equivalent_lengths = np.ceil(np.sqrt(self.lengths * known.longest)).astype(np.int64)
        return max(int(known.capacity * known.longest**2), 1)

    def measure(self) -> "_Measured":
        longest = int(self.lengths.argmax())

        def work() -> None:
            self.fits(np.array([longest]))  # a failure occurs again in `run`

        with torch.cuda.device(self.device):
            peak, available = peak_bytes(work, "cuda") or 1, available_bytes("cuda") or 0
        return _Measured(int(self.lengths[longest]), available / SHARE / peak)

    def fits(self, rows: Int[np.ndarray, "B"]) -> bool:
        """Score these samples; return False if they do not fit into memory."""
        try:
            self.score(rows)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        release_memory()  # after the except block, whose error keeps the model's tensors alive
        return False

    def score(self, rows: Int[np.ndarray, "B"]) -> None:
        batch = self.batches[rows].to(self.device)
        assert batch.labels is not None
        logits = self.model.read(batch).logits
        self.predictions[batch.indices] = self.model.predictions(logits)
        self.probabilities[batch.indices] = self.model.probabilities(logits).float()
        self.losses[batch.indices] = _losses(self.model, logits, batch.labels).float()


class _Measured(NamedTuple):
    """A batch's share of the memory fits `capacity` inputs of length `longest`."""

    longest: int
    capacity: float


# Cached, because a measurement evicts all workspaces of the engine, also those of a training run in progress.
_measured: WeakKeyDictionary[Model, _Measured] = WeakKeyDictionary()


def _losses(model: Model, logits: Float[Tensor, "B L"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """The loss of each sample."""
    return torch.vmap(model.loss)(logits.unsqueeze(1), labels.unsqueeze(1))


@contextlib.contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Eval mode inside the block. Afterwards each module has its previous mode, which may differ between modules."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True


def _check_data(model: Model, batches: Batches) -> None:
    """Raise a `ValueError` if the data does not fit the model. On a GPU an invalid label would abort the process."""
    if batches.labels is None:
        raise ValueError("the data has no labels: an evaluation needs them")
    if not len(batches):
        raise ValueError("the data is empty: there is nothing to evaluate")
    lowest, highest, classes = int(batches.labels.min()), int(batches.labels.max()), model.head.classes
    if lowest < 0 or highest >= classes:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"the data has the label {wrong}, but the model has {classes} classes: labels start at 0")
    pair = isinstance(model, PairClassifier)
    if pair != (batches.second is not None):
        texts = ("single texts", "pairs of texts")
        raise ValueError(f"the model takes {texts[pair]}, but the data has {texts[not pair]}")
