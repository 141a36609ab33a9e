"""Models on disk: a folder with `config.yaml`, `model.safetensors`, `vocab.json` and, once trained, `results.json`.

    config = read_config("runs/listops/bt-grc-seed0")
    config.encoder, config.labels
    read_results("runs/listops/bt-grc-seed0")["splits"]["near-iid"]["accuracy"]

Reading a folder executes no code from it, and allocates no more memory than its files fill.
"""

import filecmp
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml
from torch import Tensor, nn

from beamtree.data.tokenizers import Custom, Tokenizer, from_json
from beamtree.models.config import Config
from beamtree.utils.files import StrPath, one_line, read_json, write_atomically, write_json

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
VOCABULARY = "vocab.json"
TOKENIZER = "tokenizer.json"
RESULTS = "results.json"
PARSER = "parser"  # folder of the model whose trees the encoder composes along
CARD = "README.md"  # the model card, of shipped models and on the hub

_SCORES = {"accuracy", "correct", "count", "loss"}  # keys of each split in the results
_NAMED = 3  # number of wrong weights that an error message names


def is_run(folder: StrPath) -> bool:
    return os.path.isfile(os.path.join(folder, CONFIG))  # Path.is_file raises for a name that is too long


def file_of(folder: StrPath, name: str) -> Path:
    """Return the path of a file of a run. If it is missing, the error says what is wrong with the folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: {'it is a file, not a folder' if folder.exists() else 'there is no such folder'}")
    if not is_run(folder):
        raise ValueError(f"{folder} is not a run: it has no {CONFIG}")
    if not (folder / name).is_file():
        why = "the run is not finished" if name in (RESULTS, WEIGHTS) else "the folder is incomplete"
        raise ValueError(f"{folder} has no {name}: {why}")
    return folder / name


def parser_of(folder: StrPath) -> Path:
    """The folder of a model's parser. If it is missing, the error says so."""
    path = Path(folder) / PARSER
    if not is_run(path):
        raise ValueError(f"{folder} has no folder {PARSER}: the folder is incomplete")
    if read_config(path).parser is not None:  # the folder may be a link to one above it
        raise ValueError(f"{path} cannot be a parser: it has a parser itself")
    return path


def same_model(one: StrPath, other: StrPath) -> bool:
    """Whether two folders exist and hold the same settings, weights and vocabulary, to the last byte."""
    return not any(filecmp.cmpfiles(one, other, (CONFIG, WEIGHTS, VOCABULARY), shallow=False)[1:])


def write_config(folder: StrPath, config: Config) -> None:
    text = yaml.dump(config.document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    write_atomically(Path(folder) / CONFIG, text)


def read_config(folder: StrPath) -> Config:
    path = file_of(folder, CONFIG)
    try:
        document = yaml.load(path.read_bytes(), _NoAliasLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is not YAML ({one_line(error)}): restore it, or train again") from None
    return Config.from_document(document, path)


class _NoAliasLoader(yaml.SafeLoader):
    """YAML without aliases, with which a file of one kilobyte could expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_tokenizer(folder: StrPath, tokenizer: Tokenizer) -> None:
    """Write a tokenizer, unless it is a function, which cannot be stored."""
    if not isinstance(tokenizer, Custom):
        write_json(Path(folder) / TOKENIZER, tokenizer.to_json())


def read_tokenizer(folder: StrPath) -> Tokenizer | None:
    """Read the tokenizer that is stored with the model; None if the configuration names it instead."""
    path = Path(folder) / TOKENIZER
    if not path.exists():
        return None
    try:
        return from_json(read_json(path))
    except ValueError as error:
        raise ValueError(f"{path}: {one_line(error)}") from None


def read_results(folder: StrPath) -> dict[str, Any]:
    """Read the results of a finished run; "splits" has the "correct", "count", "accuracy" and "loss" of each split."""
    path = file_of(folder, RESULTS)
    results = read_json(path)
    splits = results.get("splits") if isinstance(results, dict) else None
    scores = list(splits.values()) if isinstance(splits, dict) else [None]
    if not all(isinstance(each, dict) and each.keys() >= _SCORES for each in scores):
        raise ValueError(f"{path}: it has no results: 'splits' must have {', '.join(sorted(_SCORES))} for each split")
    return dict(results)


def is_finished(folder: StrPath) -> bool:
    """Whether the run has results, which are written last."""
    try:
        read_results(folder)
    except ValueError:
        return False
    return True


def write_weights(folder: StrPath, model: nn.Module) -> None:
    """Write all weights. Frozen ones are stored in half precision where that is exact, as for most word vectors."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        short = weights[name].half()
        if not parameter.requires_grad and torch.equal(short.to(weights[name].dtype), weights[name]):
            weights[name] = short
    write_atomically(Path(folder) / WEIGHTS, safetensors.torch.save(weights))


def read_weights(folder: StrPath) -> dict[str, Tensor]:
    path = file_of(folder, WEIGHTS)
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: it is damaged, or not a safetensors file ({one_line(error)}): restore it") from None


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], where: object) -> None:
    """Raise a `ValueError` unless names and shapes are those of the model, which may be on the device "meta"."""
    expected = model.state_dict()
    wrong = [f"{name} is missing" for name in expected if name not in weights]
    wrong += [f"{name} is unexpected" for name in weights if name not in expected]
    for name in [name for name in expected if name in weights]:
        found, wanted = _kind(weights[name]), _kind(expected[name])
        if found != wanted:
            wrong.append(f"{name} is {found} and must be {wanted}")
    if wrong:
        more = f", and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise ValueError(f"{where}: these are the weights of another model: {', '.join(wrong[:_NAMED])}{more}")


def fill(model: nn.Module, weights: Mapping[str, Tensor], where: object) -> None:
    """Load the weights into the model after checking them."""
    check_weights(model, weights, where)
    model.load_state_dict(dict(weights))


def _kind(tensor: Tensor) -> str:
    return f"{'floats' if tensor.is_floating_point() else 'integers'} of shape {tuple(tensor.shape)}"
