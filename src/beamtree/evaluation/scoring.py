"""Applying a model to labelled data: predictions and losses of every sample, in batches as large as memory allows.

A batch is limited by its size and by its size × longest², since that is how the memory of some encoders grows. On a GPU
the longest input is encoded alone first, and its memory tells how many fit. The longest inputs come first, so that an
input that does not fit is found at once; then batches are halved until they fit.
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

MAX_SAMPLES = 256  # more at once makes nothing faster
FIXED_BUDGET = 2**22  # batch size × longest², where nothing is measured: four inputs of 1000 tokens
SHARE = 16  # a batch may take this part of a GPU's free memory: searches of so many sizes stay there for the next one

Progress = Callable[[int, int], None]  # how many samples are done, and of how many


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
    progress: Progress | None = None,
) -> Outcomes:
    """Apply a model to labelled data. The model is left in the mode it was in.

    If a batch does not fit into memory, there is a warning, and the budget is halved.

    Args:
        model: a classifier of `beamtree.models.heads`.
        batches: the data, with labels.
        device: the device of the model.
        budget: maximum of batch size × longest², for pairs with both sides in the length; None: what fits, measured on
            a GPU the first time, and again for inputs that are longer.
        max_samples: maximum batch size.
        progress: called with the number of samples that are done, and of how many.

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
    """What is known so far. It stays on the device until the end, so that the device never waits for the host."""

    def __init__(self, model: Model, batches: Batches, device: torch.device, max_samples: int) -> None:
        self.model, self.batches, self.device, self.max_samples = model, batches, device, max_samples
        self.lengths = self.roots = batches.lengths  # the memory for an input is taken to grow as its root's square
        self.predictions = torch.zeros(len(batches), dtype=torch.int64, device=device)
        self.probabilities = torch.zeros(len(batches), model.head.classes, device=device)
        self.losses = torch.zeros(len(batches), device=device)

    def run(self, budget: int | None, progress: Progress) -> None:
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
                    f"an input of {longest} tokens does not fit into the memory of {self.device}, not even alone: "
                    "use a device with more, or a smaller model"
                )
            if not warned:
                message = f"{len(rows)} inputs of {longest} tokens do not fit into the memory of {self.device}"
                warnings.warn(f"{message}: going on with smaller batches", RuntimeWarning, stacklevel=3)
                warned = True
            _measured.pop(self.model, None)  # memory is not what it was
            budget = len(rows) * int(self.roots[rows].max()) ** 2 // 2
            todo = self.plan(np.concatenate((*todo, rows)), budget)

    def plan(self, rows: Int[np.ndarray, "R"], budget: int) -> list[np.ndarray]:
        """These samples in batches, the longest last."""
        whole = -(-len(rows) // self.max_samples)  # one bucket: all are sorted
        buckets = Buckets(self.roots[rows], self.max_samples, budget, whole, shuffle=False)
        return [rows[batch] for batch in buckets]

    def measured_budget(self) -> int:
        """What fits into a share of the free memory, by what the longest input takes.

        Memory grows with the length, linearly at least. So a shorter input is taken to need its part of that, by its
        length; this is more than enough where memory grows faster.
        """
        known = _measured.get(self.model)
        if known is None or known.longest < self.lengths.max():
            known = _measured[self.model] = self.measure()
        self.roots = np.ceil(np.sqrt(self.lengths * known.longest)).astype(np.int64)
        return max(int(known.number * known.longest**2), 1)

    def measure(self) -> "_Measured":
        longest = int(self.lengths.argmax())

        def work() -> None:
            self.fits(np.array([longest]))  # where it does not, that shows again once it is a batch

        with torch.cuda.device(self.device):
            peak, available = peak_bytes(work, "cuda") or 1, available_bytes("cuda") or 0
        return _Measured(int(self.lengths[longest]), available / SHARE / peak)

    def fits(self, rows: Int[np.ndarray, "B"]) -> bool:
        """Score these samples; False if memory does not suffice."""
        try:
            self.score(rows)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        release_memory()  # only here: the error held what the model had made so far
        return False

    def score(self, rows: Int[np.ndarray, "B"]) -> None:
        batch = self.batches[rows].to(self.device)
        assert batch.labels is not None
        logits = self.model.read(batch).logits
        self.predictions[batch.indices] = self.model.predictions(logits)
        self.probabilities[batch.indices] = self.model.probabilities(logits).float()
        self.losses[batch.indices] = _losses(self.model, logits, batch.labels).float()


class _Measured(NamedTuple):
    """So many inputs of this length fit into a batch's share of the memory."""

    longest: int
    number: float


# Kept, since to measure is to give back all memory that the engine has set up, also for the training around it.
_measured: WeakKeyDictionary[Model, _Measured] = WeakKeyDictionary()


def _losses(model: Model, logits: Float[Tensor, "B L"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """The model's loss of each sample by itself."""
    return torch.vmap(model.loss)(logits.unsqueeze(1), labels.unsqueeze(1))


@contextlib.contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Eval mode within it. Afterwards each part is as it was: some may be kept in eval mode while the rest trains."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True


def _check_data(model: Model, batches: Batches) -> None:
    """On a GPU a label that does not exist would end the process."""
    if batches.labels is None:
        raise ValueError("the data has no labels: without them there is nothing to evaluate against")
    if not len(batches):
        raise ValueError("the data is empty: there is nothing to evaluate")
    highest, classes = int(batches.labels.max()), model.head.classes
    if highest >= classes or int(batches.labels.min()) < 0:
        raise ValueError(f"the data has a label of number {highest}, and the model {classes} classes, from 0 on")
    pair = isinstance(model, PairClassifier)
    if pair != (batches.second is not None):
        texts = ("single texts", "pairs of texts")
        raise ValueError(f"the model reads {texts[pair]}, and the data has {texts[not pair]}")
