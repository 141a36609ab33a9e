"""Callbacks: your own code, called during training.

    class PrintAccuracy(beamtree.training.Callback):
        def on_epoch_end(self, run, metrics):
            print(run.epoch, metrics["dev_accuracy"])

    train(settings, folder, callbacks=[PrintAccuracy()])

Methods are called in every process; `run.is_first` is True in one of them only. An exception in a callback stops the
run. When the run is started again, it resumes from its last checkpoint.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from beamtree.training.run import Run


class Callback:
    """Base class for callbacks. Override the methods you need; all do nothing by default.

    Examples:
        >>> from beamtree.training import Callback
        >>> class StopAt99(Callback):
        ...     def on_epoch_end(self, run, metrics):
        ...         run.should_stop = metrics["dev_accuracy"] >= 0.99
    """

    def on_train_start(self, run: "Run") -> None:
        """Called before the first step of a new or resumed run.

        Args:
            run: the run.
        """

    def on_step_end(self, run: "Run", loss: Tensor) -> None:
        """Called after each step of the optimizer.

        Args:
            run: the run.
            loss: loss of the last micro-batch, on the device.
        """

    def on_epoch_end(self, run: "Run", metrics: dict[str, Any]) -> None:
        """Called after each epoch, when it has been evaluated on dev and its checkpoint is written.

        Set `run.should_stop = True` to make this epoch the last one.

        Args:
            run: the run.
            metrics: the epoch's line in metrics.jsonl.
        """

    def on_train_end(self, run: "Run", results: dict[str, Any]) -> None:
        """Called after the results are written.

        Args:
            run: the run.
            results: the contents of results.json; empty in all processes but the first.
        """
