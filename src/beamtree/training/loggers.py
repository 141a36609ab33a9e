"""Loggers: where the metrics of each epoch are logged, besides metrics.jsonl.

    train(settings, folder, loggers=["tensorboard", "wandb"])
    train(settings, folder, loggers=[WandbLogger(project="trees")])     # any logger of Lightning

Logs are written to the folder `logs` of the run. A resumed run continues its logs.
"""

import importlib.util
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.csv_logs import CSVLogger
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.loggers.tensorboard import TensorBoardLogger

from beamtree.runs.settings import Settings
from beamtree.utils import files
from beamtree.utils.checks import check_choice
from beamtree.utils.mappings import flatten

LOGS = "logs"
DEFAULT = ("tensorboard", "csv")
NAMES = ("tensorboard", "csv", "wandb", "mlflow")
PROJECT = "beamtree"
_IDS = "ids.json"  # ids of this run at tracking services, by name of the service
_PACKAGES = ("tensorboard", "wandb", "mlflow")  # loggers with the same name as the package they need


def check_loggers(loggers: Iterable[str | Logger]) -> None:
    """Raise a `ValueError` for an unknown logger, or one whose package is not installed."""
    for logger in loggers:
        if isinstance(logger, str):
            check_choice("logger", logger, NAMES)
            if logger in _PACKAGES and importlib.util.find_spec(logger) is None:
                raise ValueError(f"the logger {logger} needs {logger}, which is not installed: pip install {logger}")


class Loggers:
    """All loggers of a run."""

    def __init__(
        self, loggers: Sequence[str | Logger], folder: Path, settings: Settings, past: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Open the loggers.

        Args:
            loggers: names, or loggers of Lightning.
            folder: the folder of the run.
            settings: the settings of the run, logged as hyperparameters.
            past: metrics of the epochs before the run was resumed.
        """
        self._folder = folder / LOGS
        with files.writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._made = [(logger, self._make(logger, settings, past)) for logger in loggers]
            for name, logger in self._made:
                if name == "csv":  # it always starts a new file
                    for metrics in past:
                        _log(logger, metrics)
                elif not past:
                    logger.log_hyperparams(flatten(settings.to_dict()))

    def log(self, metrics: dict[str, Any]) -> None:
        with files.writing(self._folder):
            for _, logger in self._made:
                _log(logger, metrics)

    def close(self) -> None:
        for name, logger in self._made:
            logger.finalize("success")
            if name == "wandb":  # otherwise the next run in this process would be logged as this one
                logger.experiment.finish()  # type: ignore[attr-defined]

    def _make(self, logger: str | Logger, settings: Settings, past: Sequence[dict[str, Any]]) -> Logger:
        if not isinstance(logger, str):
            return logger
        root, name = self._folder.parent, self._folder.parent.name
        if logger == "tensorboard":
            purge = {"purge_step": past[-1]["step"] + 1} if past else {}
            return TensorBoardLogger(root, LOGS, "tensorboard", **purge)
        if logger == "csv":
            (self._folder / "csv" / "metrics.csv").unlink(missing_ok=True)
            return CSVLogger(root, LOGS, "csv")
        # Imported here: they load all of lightning.pytorch, and optional packages.
        from lightning.pytorch import loggers as pytorch_loggers

        if logger == "wandb":
            run_id = self._id("wandb", secrets.token_hex(8))
            return pytorch_loggers.WandbLogger(
                name=name,
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                save_dir=str(self._folder),
                id=run_id,
                resume="allow",
            )
        made = pytorch_loggers.MLFlowLogger(
            experiment_name=f"{PROJECT} {settings.recipe}",
            run_name=name,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._folder.absolute() / 'mlflow.db'}",
            run_id=self._id("mlflow"),
        )
        self._id("mlflow", made.run_id)
        return made

    def _id(self, service: str, new: str | None = None) -> str | None:
        """The stored id of this run at a service, or else `new`, which is stored."""
        path = self._folder / _IDS
        known = files.read_json(path) if path.exists() else {}
        if service not in known and new is not None:
            files.write_json(path, {**known, service: new})
        return known.get(service, new)


def _log(logger: Logger, metrics: dict[str, Any]) -> None:
    logger.log_metrics({key: value for key, value in metrics.items() if key != "step"}, step=metrics["step"])
    logger.save()
