"""The progress of a run: sums over an epoch, the best epoch so far, and the elapsed time."""

import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MIN_GAIN = 1e-4  # minimum improvement of the loss, or of the accuracy in percent


class Means(NamedTuple):
    """Means over samples."""

    loss: float
    accuracy: float
    samples: int


class EpochSums:
    """Sums over the samples of an epoch, kept on the device to avoid host syncs."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.hits = torch.zeros((), dtype=torch.int64, device=device)
        self.samples = 0

    def add(self, loss: Float[Tensor, ""], hits: Tensor) -> None:
        """Add samples, given their mean loss and, for each sample, whether it was classified correctly."""
        self.loss.add_(loss.detach(), alpha=len(hits))
        self.hits.add_(hits.sum())
        self.samples += len(hits)

    def sums(self) -> Float[Tensor, "3"]:
        return torch.stack((self.loss, self.hits.double(), self.loss.new_tensor(self.samples)))

    def load(self, sums: Float[Tensor, "3"]) -> None:
        self.loss.copy_(sums[0])
        self.hits.copy_(sums[1])
        self.samples = int(sums[2])


def means(sums: Float[Tensor, "3"]) -> Means:
    loss, hits, samples = sums.tolist()
    return Means(loss / max(samples, 1), hits / max(samples, 1), int(samples))


@dataclass
class Best:
    """The best epoch so far, with its weights except frozen ones such as pretrained word vectors."""

    score: float = -math.inf
    epoch: int = 0
    waited: int = 0  # epochs since the best one
    weights: dict[str, Tensor] = field(default_factory=dict)

    def offer(self, score: float, epoch: int) -> bool:
        """Record an epoch, and return whether it is the best so far."""
        if score > self.score + MIN_GAIN:
            self.score, self.epoch, self.waited = score, epoch, 0
            return True
        self.waited += 1
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score, "epoch": self.epoch, "waited": self.waited, "weights": self.weights}


class Clock:
    """Total training time of a run in seconds, including the time before it was resumed."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._started = seconds, time.monotonic()

    def now(self) -> float:
        return self._before + time.monotonic() - self._started


def summary(metrics: dict[str, Any], max_epochs: int, is_best: bool) -> str:
    """The line that is printed after an epoch."""
    return (
        f"epoch {metrics['epoch']:>{len(str(max_epochs))}}/{max_epochs}  train loss {metrics['train_loss']:.4f}, "
        f"accuracy {metrics['train_accuracy']:.2%}  dev loss {metrics['dev_loss']:.4f}, "
        f"accuracy {metrics['dev_accuracy']:.2%}  {metrics['samples_per_second']:,.0f} samples/s"
        f"{'  best' if is_best else ''}"
    )


class Forecast:
    """Predicts the duration of an epoch from its first micro-batches, unless it is short."""

    SHORT = 20.0  # seconds; no prediction for a shorter epoch
    AFTER = 3.0  # seconds of training before the prediction
    MIN_MICRO_BATCHES = 3
    LONG = 120.0  # seconds; for a longer epoch on a CPU, a smaller recipe is suggested

    def __init__(self, micro_batches: int, max_epochs: int, device: str, smaller: str | None) -> None:
        self._total, self._max_epochs, self._device, self._smaller = micro_batches, max_epochs, device, smaller
        self._seen, self._started = 0, 0.0
        self.done = False

    def after_micro_batch(self) -> str | None:
        """Return the prediction once, otherwise None. The first micro-batch is not timed: it includes compilation."""
        self._seen += 1
        if self._seen == 1:
            self._started = time.monotonic()
        elapsed = time.monotonic() - self._started
        if self.done or elapsed < self.AFTER or self._seen <= self.MIN_MICRO_BATCHES:
            return None
        self.done = True
        epoch = self._total * elapsed / (self._seen - 1)
        text = f"an epoch takes about {_rounded(epoch)} on this machine"
        if self._max_epochs > 1:
            text += f", {self._max_epochs} epochs at most {_rounded(epoch * self._max_epochs)}"
        if epoch < self.SHORT:
            return None
        if self._device == "cpu" and epoch > self.LONG and self._smaller is not None:
            text += f"; on a CPU, a smaller recipe is faster: beamtree train {self._smaller}"
        return text


def _rounded(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{max(seconds, 1):.0f} s"
