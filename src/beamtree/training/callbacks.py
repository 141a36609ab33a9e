"""Callbacks: your own code at certain moments of training.

    class PrintAccuracy(beamtree.training.Callback):
        def on_epoch_end(self, run, metrics):
            print(run.epoch, metrics["dev_accuracy"])

    train(settings, folder, callbacks=[PrintAccuracy()])

Methods are called in every process; `run.is_first` is True in one of them. An exception that a callback raises ends the
run, which continues from its last checkpoint when it is started again.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from beamtree.training.run import Run


class Callback:
    """Base class for callbacks. Override the methods you need; all do nothing by default."""

    def on_train_start(self, run: "Run") -> None:
        """Before the first step, or the first one after a checkpoint."""

    def on_step_end(self, run: "Run", loss: Tensor) -> None:
        """After each step of the optimiser. `loss` is that of the last micro-batch, on the device."""

    def on_epoch_end(self, run: "Run", metrics: dict[str, Any]) -> None:
        """After each epoch, its evaluation on dev and its checkpoint. `metrics` is its line in metrics.jsonl.

        Set `run.should_stop = True` to make this epoch the last one.
        """

    def on_train_end(self, run: "Run", results: dict[str, Any]) -> None:
        """After the results are written. `results` is empty in all processes but the first."""
