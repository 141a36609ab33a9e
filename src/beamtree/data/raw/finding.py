"""Finding originals: in the folders that BEAMTREE_DATA names, or among the downloads; packed or unpacked."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from beamtree.data.cache import cache_folder
from beamtree.data.raw.reading import PACKED, Folder, Originals, Tar, Zip, lacks, readable
from beamtree.data.raw.sources import Source
from beamtree.utils.files import open_atomically

_ENDINGS = {".zip", ".tar", ".tgz", ".txz", *PACKED}  # of archives; half a download has another


class NotFound(ValueError):
    """Originals that are nowhere; the message says where to get them."""


def find(source: Source, roots: Iterable[str | os.PathLike[str]] | None = None, files: Iterable[str] = ()) -> Originals:
    """The source's originals in the first of the folders that has them all, else in the first that has enough.

    Enough are the files that are not optional, and `files`. The folders are those of `default_roots` unless others are
    given. That an archive lacks a file shows when it is first read, unless it is a zip or `files` are asked for:
    listing a packed tar takes as long as unpacking it.
    """
    places = default_roots(source) if roots is None else [Path(root) for root in roots]
    names = set(files)
    wanted = [file for file in source.files if file.optional and file.name in names]
    enough: Originals | None = None
    complaint = f"{source.name} is not in {', '.join(map(str, places))}"
    for root in places:
        if roots is not None and not root.is_dir():
            raise ValueError(f"{root} is not a folder: it must be one that holds {source.name}")
        for found in _candidates(source, root):
            if not isinstance(found, Folder):
                absent = [file for file in wanted if not found.has(file.name)]
                if not absent:
                    return found
                complaint = lacks(found.where, absent)
                continue
            lacking = found.lacking()
            required = [file for file in lacking if not file.optional or file in wanted]
            if not lacking:
                return found
            if len(lacking) < len(source.files):
                if not required:
                    enough = enough or found
                else:
                    complaint = lacks(found.where, required)
    if enough is None:
        get = f"'beamtree data get {source.name}' downloads it, or " if source.downloads else ""
        raise NotFound(
            f"{complaint}: {get}get it from {source.homepage} and put it into a folder that BEAMTREE_DATA names"
        )
    return enough


def default_roots(source: Source) -> list[Path]:
    """The folders that BEAMTREE_DATA names, then that of the source's downloads."""
    roots = []
    for name in os.environ.get("BEAMTREE_DATA", "").split(os.pathsep):
        if name:
            roots.append(Path(name).expanduser())
            if not roots[-1].is_dir():
                raise ValueError(
                    f"BEAMTREE_DATA names {name!r}, which is not a folder: "
                    f"it must name folders with originals, separated by {os.pathsep!r}"
                )
    return [*roots, download_folder(source)]


def download_folder(source: Source) -> Path:
    return cache_folder() / "originals" / source.name


def _candidates(source: Source, root: Path) -> Iterator[Originals]:
    """What may be the source in that folder: archives and folders, the named sub-folders first."""
    single = {name for file in source.files for name in file.names}  # which, packed, may look like an archive
    with readable(str(root)):
        for folder in [root / name for name in (*source.folders, "")]:
            if folder.is_dir():
                for pattern in source.archives:
                    for path in sorted(folder.glob(pattern)):
                        if path.suffix in _ENDINGS and path.stem not in single and path.is_file():
                            yield _archive(source, path)
                yield Folder(source, folder)


def _archive(source: Source, path: Path) -> Originals:
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            return Tar(source, path)
    archive = Zip(source, path)
    archive.found  # noqa: B018 (to see now whether it lacks a file)
    return archive


def copy_to(originals: Originals, folder: Path) -> Path:
    """Copy what was found to where downloads go, so that it is found again without being asked for; where it is."""
    with _copying(folder):
        for name, entry in originals.on_disk():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(entry, "rb") as source, open_atomically(target) as file:
                shutil.copyfileobj(source, file)
    return folder


@contextlib.contextmanager
def _copying(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"{folder}: the originals cannot be copied there ({error.strerror}): make room") from None
