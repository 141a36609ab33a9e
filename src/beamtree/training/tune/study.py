"""A study of Optuna whose trials are runs in one folder, and which several processes can share.

    with open_database(folder, url) as database:
        study = database.open_study(spec, "median")
        with study.claim(trials=20) as trial:
            study.complete(trial, value)

A process that works on a trial holds its lock, which the operating system releases when the process exits. A trial that
is running according to the database, but whose lock is free, was interrupted and can be claimed again. The lock of the
study serialises operations such as counting and creating trials.
"""

import contextlib
import math
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from beamtree.models import storage as run_storage
from beamtree.runs.settings import Settings
from beamtree.training.tune.space import Params
from beamtree.utils import files
from beamtree.utils.extras import require
from beamtree.utils.locks import locked
from beamtree.utils.mappings import flatten

PRUNERS = ("median", "none")
STATES = ("complete", "pruned", "failed", "running", "waiting")
DATABASE = "study.db"  # in the folder of the study

_STUDY = "study.json"  # holds the id of the folder
_LOCKS = ".locks"
_STARTUP_TRIALS = 5  # number of complete trials before any trial is pruned
_WARMUP_EPOCHS = 3  # no trial is pruned before this epoch: metrics of the first epochs are not informative
_DATABASE_SECONDS = 60.0  # timeout while another process writes to the SQLite file
_UNOWNED_SECONDS = 60.0  # after which the process of a trial without an owner is considered killed


@dataclass(frozen=True)
class TrialSummary:
    """A trial of a study.

    Attributes:
        number: the number of the trial, starting with 0.
        state: one of STATES.
        value: the metric on dev: of the best epoch of a complete trial, or of the last epoch of a pruned one.
        params: the sampled values by key.
        epochs: number of epochs.
        folder: the folder of its run.
        error: the error message of a failed trial.
    """

    number: int
    state: str
    value: float | None
    params: dict[str, Any]
    epochs: int
    folder: Path
    error: str | None

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class StudySummary:
    """A study and its trials.

    Attributes:
        folder: the folder of the study.
        metric: "accuracy" or "loss".
        trials: the complete trials, best first, then the pruned ones, then all others.
    """

    folder: Path
    metric: str
    trials: tuple[TrialSummary, ...]

    @property
    def best(self) -> TrialSummary | None:
        """The best complete trial, or None. Its folder is a run."""
        return self.trials[0] if self.trials and self.trials[0].state == "complete" else None

    def count(self, *states: str) -> int:
        return sum(trial.state in states for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        trials = [{**asdict(trial), "folder": str(trial.folder)} for trial in self.trials]
        best = trials[0] if self.best else None
        return {"folder": str(self.folder), "metric": f"dev_{self.metric}", "best": best, "trials": trials}


@dataclass(frozen=True)
class StudySpec:
    """The search that a study performs. All its trials share it."""

    settings: Settings
    params: Params
    metric: str  # "accuracy" or "loss"

    def to_dict(self) -> dict[str, Any]:
        params = {key: str(param) for key, param in self.params.items()}
        return {"metric": self.metric, "params": params, "settings": self.settings.to_dict()}


class Database:
    """The database of a study: a URL as for SQLAlchemy, or a SQLite file in the folder by default."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        import optuna

        self.folder, self.name = folder, folder.resolve().name
        self._url = f"sqlite:///{(folder / DATABASE).absolute()}" if url is None else url
        engine_options = {"connect_args": {"timeout": _DATABASE_SECONDS}} if self._url.startswith("sqlite") else {}
        with self._lock(), self._one_line_errors():
            self._storage: Any = optuna.storages.RDBStorage(self._url, engine_kwargs=engine_options)

    def has_study(self) -> bool:
        import optuna

        with self._one_line_errors():
            return self.name in optuna.get_all_study_names(self._storage)

    def open_study(self, spec: StudySpec, pruner: str) -> "Study":
        """Open or create the study. Raises a `ValueError` if the existing study is a different search."""
        import optuna

        with self._lock(), self._one_line_errors():
            opened = optuna.create_study(
                storage=self._storage,
                study_name=self.name,
                direction="maximize" if spec.metric == "accuracy" else "minimize",
                pruner=_make_pruner(pruner),
                load_if_exists=True,
            )
            study = Study(opened, self.folder, spec)
            study.store_or_verify()
            return study

    def close(self) -> None:
        self._storage.scoped_session.remove()
        self._storage.engine.dispose()

    def _lock(self) -> contextlib.AbstractContextManager[bool]:
        return locked(self.folder / _LOCKS / "study", keep_file=True)

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, OptunaError, ImportError, RuntimeError) as error:
            raise ValueError(f"{_without_password(self._url)} cannot be used: {_reason(error)}") from None


@contextlib.contextmanager
def open_database(folder: Path, url: str | None) -> Iterator[Database]:
    """Create the folder of a study if needed, and open its database."""
    import optuna

    _check_folder(folder)
    with files.writing(folder):
        (folder / _LOCKS).mkdir(parents=True, exist_ok=True)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with contextlib.closing(Database(folder, url)) as database:
            yield database
    finally:
        optuna.logging.set_verbosity(verbosity)


class Study:
    """A study of Optuna, and the folder with the runs of its trials."""

    def __init__(self, study: Any, folder: Path, spec: StudySpec) -> None:
        self._study, self.folder, self.spec = study, folder, spec
        self._id = _folder_id(folder)

    def store_or_verify(self) -> None:
        """Store the spec in a new study. Raises a `ValueError` if an existing study has a different one."""
        wanted, stored = self.spec.to_dict(), self._study.user_attrs.get("beamtree")
        if stored is None:
            self._study.set_user_attr("beamtree", wanted)
            return
        before, now = flatten(stored), flatten(wanted)
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                name = key.removeprefix("settings.").replace("params.", "--param ")
                raise ValueError(
                    f"{self.folder} holds a study with {name} {before.get(key)!r}, not {now.get(key)!r}: "
                    "choose another folder, or the same settings"
                )

    @contextlib.contextmanager
    def claim(self, trials: int) -> Iterator[Any]:
        """Claim an interrupted or a new trial, which only this process works on during the block.

        Yields None if the study has all its trials.
        """
        with contextlib.ExitStack() as stack:
            with locked(self._lock("study"), keep_file=True):
                trial = self._claim_interrupted(stack) or self._claim_new(stack, trials)
                if trial is not None:
                    # One seed per trial: processes must not sample the same values as each other, and a resumed study
                    # must sample the same values as an uninterrupted one.
                    self._study.sampler = _make_sampler(self.spec.settings.seed, trial.number)
                    for key, param in self.spec.params.items():
                        param.suggest(trial, key)  # an interrupted trial keeps its values
            yield trial

    def complete(self, trial: Any, value: float) -> None:
        self._study.tell(trial, value)

    def prune(self, trial: Any) -> None:
        from optuna.trial import TrialState

        self._study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: Any, error: Exception) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr("error", files.one_line(error) or type(error).__name__)
        self._study.tell(trial, state=TrialState.FAIL)

    def reported(self, trial: Any) -> set[int]:
        """The epochs whose metrics are stored."""
        return set(self._trials()[trial.number].intermediate_values)

    def folder_of(self, number: int) -> Path:
        return self.folder / f"trial-{number:03d}"

    def summary(self) -> StudySummary:
        sign = -1 if self.spec.metric == "accuracy" else 1

        def rank(trial: TrialSummary) -> tuple[int, float, int]:
            value = math.inf if trial.value is None or math.isnan(trial.value) else sign * trial.value
            return STATES.index(trial.state), value, trial.number

        summaries = sorted(map(self._summarize, self._trials()), key=rank)
        return StudySummary(self.folder, self.spec.metric, tuple(summaries))

    def _claim_interrupted(self, stack: contextlib.ExitStack) -> Any:
        """Claim a trial whose process exited before it was finished, and lock it; None if there is none."""
        from optuna.trial import Trial

        for frozen in self._trials():
            if frozen.state.name != "RUNNING" or not self._is_in_folder(frozen):
                continue
            with contextlib.ExitStack() as held:
                try:
                    is_locked = held.enter_context(locked(self._lock(frozen.number), wait=False, keep_file=True))
                except BlockingIOError:  # another process is working on it
                    continue
                has_ended = self._trials()[frozen.number].state.is_finished()  # finished before the lock was acquired
                if is_locked and not has_ended:  # without locks, it is unknown whether its process is alive
                    stack.enter_context(held.pop_all())
                    trial = Trial(self._study, frozen._trial_id)
                    trial.set_user_attr("folder", self._id)
                    return trial
        return None

    def _claim_new(self, stack: contextlib.ExitStack, trials: int) -> Any:
        """Create a new trial and lock it; None if the study has all its trials."""
        if sum(frozen.state.name != "WAITING" for frozen in self._trials()) >= trials:
            return None
        trial = self._study.ask()
        trial.set_user_attr("folder", self._id)
        stack.enter_context(locked(self._lock(trial.number), keep_file=True))
        return trial

    def _is_in_folder(self, frozen: Any) -> bool:
        """Whether a trial belongs to this folder. Machines that share only a database server have different folders."""
        owner = frozen.user_attrs.get("folder")
        if owner is None:  # its process was killed before setting the attribute, or is about to set it
            return (datetime.now() - frozen.datetime_start).total_seconds() > _UNOWNED_SECONDS
        return bool(owner == self._id)

    def _summarize(self, frozen: Any) -> TrialSummary:
        state = frozen.state.name.lower()
        return TrialSummary(
            number=frozen.number,
            state="failed" if state == "fail" else state,
            value=frozen.value,
            params=dict(frozen.params),
            epochs=max(frozen.intermediate_values, default=0),
            folder=self.folder_of(frozen.number),
            error=frozen.user_attrs.get("error"),
        )

    def _trials(self) -> list[Any]:
        """All trials in order of their numbers, read from the database."""
        return list(self._study.get_trials(deepcopy=False))

    def _lock(self, name: str | int) -> Path:
        return self.folder / _LOCKS / (name if isinstance(name, str) else self.folder_of(name).name)


def check_installed() -> None:
    require("tune", "tune")


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a study needs a folder")
    if run_storage.is_run(folder):
        raise ValueError(f"{folder} is a run: choose another folder for the study")
    is_new = not (folder / _STUDY).exists()
    others = [path for path in folder.iterdir() if not path.name.startswith((".", DATABASE))] if folder.is_dir() else []
    if is_new and others:
        raise ValueError(f"{folder} is not empty, but not a study: choose another folder")


def _folder_id(folder: Path) -> str:
    """A random id that identifies the folder in the database."""
    path = folder / _STUDY
    if not path.exists():
        files.write_json(path, {"id": secrets.token_hex(8)})
    return str(files.read_json(path)["id"])


def _make_sampler(seed: int, number: int) -> Any:
    from optuna.samplers import TPESampler

    return TPESampler(seed=int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))


def _make_pruner(name: str) -> Any:
    from optuna.pruners import MedianPruner, NopPruner

    if name == "none":
        return NopPruner()
    return MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=_WARMUP_EPOCHS)


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "the storage"


def _reason(error: BaseException) -> str:
    """The first line of the root cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).splitlines() or [type(error).__name__])[0]
