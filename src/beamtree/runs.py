"""The folder of a run: what is in it, and how that is written and read.

    config = read_config("runs/listops/bt-grc-seed0")
    config.settings.encoder.name, config.labels
    read_results("runs/listops/bt-grc-seed0")["splits"]["near-iid"]["accuracy"]

The folder is a model: `config.yaml`, `model.safetensors` and `vocab.json` are all that `beamtree.load` needs. Beside
them lie `metrics.jsonl`, a line for each epoch; `results.json`, written last, which makes a run a finished one; and
`environment.json`, what it was made with.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import yaml
from torch import Tensor, nn

import beamtree
from beamtree.data.loading import Data
from beamtree.recipes.settings import Settings

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
VOCABULARY = "vocab.json"
METRICS = "metrics.jsonl"
RESULTS = "results.json"
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"

_PACKAGES = ("torch", "numpy", "lightning", "torchmetrics", "safetensors")  # that a result may depend on
_SCORES = {"accuracy", "correct", "count", "loss"}  # of each split in the results
_NAMED = 3  # of the weights that are wrong: their message is one line
_LONGEST = 600  # characters of a message about a config
_OWN_KEYS = {"labels": list, "pair": bool, "closed_vocabulary": bool, "beamtree": str}  # beside those of the settings

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Config:
    """What a model is: the settings that made it, and what they leave to the data."""

    settings: Settings
    labels: tuple[str, ...]
    pair: bool  # of texts; else single ones
    closed_vocabulary: bool  # a formal language, which has no unknown words


def is_run(folder: Folder) -> bool:
    return os.path.isfile(os.path.join(folder, CONFIG))  # of a Path, a name that is too long would be an error


def is_finished(folder: Folder) -> bool:
    """Whether the results are there; they are written last."""
    try:
        read_results(folder)
    except ValueError:
        return False
    return True


def write_config(folder: Folder, config: Config) -> None:
    own = {
        "labels": list(config.labels),
        "pair": config.pair,
        "closed_vocabulary": config.closed_vocabulary,
        "beamtree": beamtree.__version__,
    }
    document = {**config.settings.to_dict(), **own}
    text = yaml.dump(document, Dumper=_ConfigDumper, sort_keys=False, allow_unicode=True, width=120)
    write_atomically(Path(folder) / CONFIG, text)


def read_config(folder: Folder) -> Config:
    path = file_of(folder, CONFIG)
    try:
        document = yaml.load(path.read_bytes(), _ConfigLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is no YAML file ({_one_line(error)}): restore it, or train anew") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: it holds {type(document).__name__}, where a run's settings should be")
    try:
        return _config(document, path)
    except ValueError as error:
        raise ValueError(f"{_shortened(error)}{_other_version(document.get('beamtree'))}") from None


class _ConfigLoader(yaml.SafeLoader):
    """YAML without aliases: with them a file of a kilobyte can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)


class _ConfigDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_results(folder: Folder) -> dict[str, Any]:
    """Those of a finished run: of every split "correct", "count", "accuracy" and "loss", of the whole the rest."""
    path = file_of(folder, RESULTS)
    results = read_json(path)
    splits = results.get("splits") if isinstance(results, dict) else None
    scores = list(splits.values()) if isinstance(splits, dict) else [None]
    if not all(isinstance(each, dict) and each.keys() >= _SCORES for each in scores):
        raise ValueError(f"{path}: it holds no results, which have 'splits' with {', '.join(sorted(_SCORES))} of each")
    return dict(results)


def write_weights(folder: Folder, model: nn.Module) -> None:
    """All weights of a model. Frozen ones take half the room if they have no more than half precision, as vectors of
    words may."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        short = weights[name].half()
        if not parameter.requires_grad and torch.equal(short.to(weights[name].dtype), weights[name]):
            weights[name] = short
    write_atomically(Path(folder) / WEIGHTS, safetensors.torch.save(weights))


def read_weights(folder: Folder) -> dict[str, Tensor]:
    path = file_of(folder, WEIGHTS)
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: it is damaged, or no safetensors file ({_one_line(error)}): get it anew") from None


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], where: object) -> None:
    """Raise an error that says why, unless these are the weights of the model, which may be on the device "meta"."""
    expected = model.state_dict()
    wrong = [f"{name} is missing" for name in expected if name not in weights]
    wrong += [f"{name} is superfluous" for name in weights if name not in expected]
    for name in [name for name in expected if name in weights]:
        found, wanted = _kind(weights[name]), _kind(expected[name])
        if found != wanted:
            wrong.append(f"{name} is {found} and must be {wanted}")
    if wrong:
        more = f", and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise ValueError(f"{where}: these are the weights of another model: {', '.join(wrong[:_NAMED])}{more}")


def fill(model: nn.Module, weights: Mapping[str, Tensor], where: object) -> None:
    """Load the weights into a model, or say why they are not its own."""
    check_weights(model, weights, where)
    model.load_state_dict(dict(weights))


def file_of(folder: Folder, name: str) -> Path:
    """A file of the folder; where it is missing, the error tells whether the folder is a run at all."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: {'it is a file, no folder' if folder.exists() else 'there is no such folder'}")
    if not is_run(folder):
        raise ValueError(f"{folder} is no run: it has no {CONFIG}")
    if not (folder / name).is_file():
        why = "the run is not finished" if name in (RESULTS, WEIGHTS) else "the folder is incomplete"
        raise ValueError(f"{folder} has no {name}: {why}")
    return folder / name


def write_json(path: Folder, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Folder) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is no JSON file ({_one_line(error)})") from None


def append_json_line(path: Folder, value: Any) -> None:
    """Add a line; what a process that was killed has left of one makes way."""
    line = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    with writing(path), open(path, "a+b") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(line)


def read_json_lines(path: Folder) -> list[Any]:
    """The values of all whole lines: one that has no end was never finished."""
    *lines, _ = Path(path).read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: it is no JSON ({_one_line(error)})") from None
    return values


def write_atomically(path: Folder, content: bytes | str) -> None:
    """Write a file that is there as a whole or not at all, whatever happens; what was there before stays till then."""
    path = Path(path)
    # Half a pair of surrogates, which a user's label may hold, is no UTF-8: it stays as the escape \udc80.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with writing(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # a rename may otherwise outlive a power cut that the data does not
            os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private, a run is what the user's files are
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def _umask() -> int:
    """The permissions that new files do not get. They can be read only by setting them."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@contextlib.contextmanager
def writing(path: Folder) -> Iterator[None]:
    """Within it, what the disk refuses is an error in one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{path}: it cannot be written ({reason}): make room, or choose another folder") from None


def environment(device: torch.device | str) -> dict[str, Any]:
    """What a result may depend on: versions and hardware."""
    versions = {"beamtree": beamtree.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "versions": versions,
        "cuda": torch.version.cuda,
        "system": platform.platform(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }


def device_name(device: torch.device | str) -> str:
    """What the maker calls it."""
    device = torch.device(device)
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return device.type
    cpuinfo = Path("/proc/cpuinfo")  # Linux; elsewhere platform knows the name
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def fingerprint(data: Data, splits: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each split, in hexadecimal digits: its words, its labels and all their places."""
    return {split: _digest(data[split].arrays(), data[split].label_names) for split in splits}


def _digest(arrays: dict[str, np.ndarray], label_names: tuple[str, ...]) -> str:
    digest = hashlib.sha256(json.dumps(label_names).encode())
    for name, array in arrays.items():
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _config(document: dict[Any, Any], path: Path) -> Config:
    for key, kind in _OWN_KEYS.items():
        if key not in document:
            raise ValueError(f"{path}: the key {key} is missing")
        if not isinstance(document[key], kind):
            raise ValueError(f"{path}: {key} is {document[key]!r}: it must be of type {kind.__name__}")
    labels = document["labels"]
    if len(labels) < 2 or not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
        raise ValueError(f"{path}: labels is {labels!r}: it must be two or more different words")
    settings = Settings.from_dict(
        {key: value for key, value in document.items() if key not in _OWN_KEYS}, where=str(path)
    )
    return Config(settings, tuple(labels), document["pair"], document["closed_vocabulary"])


def _kind(tensor: Tensor) -> str:
    return f"{'floats' if tensor.is_floating_point() else 'integers'} of shape {tuple(tensor.shape)}"


def _other_version(written_by: object) -> str:
    """What may be why a config is not understood."""
    if not isinstance(written_by, str) or written_by == beamtree.__version__:
        return ""
    return f" (it was written by beamtree {written_by}, and this is {beamtree.__version__})"


def _shortened(error: BaseException) -> str:
    """A message that may quote a file of any size."""
    message = str(error)
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) if not isinstance(error, RecursionError) else "it is nested too deeply"
