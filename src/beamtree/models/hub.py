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
    """Download a model to the cache of huggingface_hub.

    Args:
        name: the hub id, "owner/name".
        known_models: names to suggest for a name that is not a hub id.
        **settings: options of `huggingface_hub.snapshot_download`.

    Returns:
        The folder.

    Raises:
        ValueError: if there is no such model, or if the hub cannot be used.
    """
    if not isinstance(name, str) or os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"{name}: there is no such folder")
    if "/" not in name:
        known = unknown("model", name, known_models or ["none"])
        raise ValueError(f"{known}; or give the folder of an existing run, or a hub id such as owner/name")
    with hub_errors(f"{name}: there is no such folder, and"):
        names = [storage.CONFIG, storage.WEIGHTS, storage.VOCABULARY, storage.TOKENIZER, storage.RESULTS]
        names += [f"{storage.PARSER}/{name}" for name in names]
        folder = Path(snapshot_download(name, allow_patterns=names, **settings))
    if not storage.is_run(folder):
        raise ValueError(f"{name} is not a beamtree model: on the hub it has no {storage.CONFIG}")
    return folder


@contextmanager
def hub_errors(beginning: str) -> Iterator[None]:
    """Convert errors of the hub inside the block to a `ValueError` of one line that starts with `beginning`."""
    # The base classes are OSError and an error of the HTTP library, which depends on the version of huggingface_hub.
    kinds = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        yield
    except RepositoryNotFoundError:
        raise ValueError(f"{beginning} the hub has no such model, or you have no access to it") from None
    except kinds as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{beginning} the hub cannot be used ({reason})") from None
