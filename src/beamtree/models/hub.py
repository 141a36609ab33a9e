"""Models on the Hugging Face hub: downloading, and errors in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from beamtree.models import storage
from beamtree.utils.checks import unknown


def download(name: str | os.PathLike[str], known_models: list[str], **settings: Any) -> Path:
    """Download a model to the cache of huggingface_hub, and return its folder.

    known_models: names to suggest for one that is not of the form "owner/name".
    """
    if not isinstance(name, str) or os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"{name}: there is no such folder")
    if "/" not in name:
        known = unknown("model", name, known_models or ["none"])
        raise ValueError(f"{known}; else give the folder of a run that exists, or a hub id such as owner/name")
    with hub_errors(f"{name}: there is no such folder, and"):
        names = [storage.CONFIG, storage.WEIGHTS, storage.VOCABULARY, storage.TOKENIZER, storage.RESULTS]
        folder = Path(snapshot_download(name, allow_patterns=names, **settings))
    if not storage.is_run(folder):
        raise ValueError(f"{name} is no model of beamtree: on the hub it has no {storage.CONFIG}")
    return folder


@contextmanager
def hub_errors(beginning: str) -> Iterator[None]:
    """Turn errors of the hub in this block into a `ValueError` of one line, which starts with `beginning`."""
    # Their bases are OSError and the error of the HTTP library, which differs between versions of the hub.
    kinds = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        yield
    except RepositoryNotFoundError:
        raise ValueError(f"{beginning} the hub has no such model, or none that you may use") from None
    except kinds as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{beginning} the hub cannot be used ({reason})") from None
