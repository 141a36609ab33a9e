"""Find original files: in the folders in BEAMTREE_DATA, or among the downloads; in archives or unpacked."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from beamtree.data.cache import cache_folder
from beamtree.data.raw.reading import PACKED, Folder, RawFiles, Tar, Zip, lacks, readable
from beamtree.data.raw.sources import Source
from beamtree.utils.files import open_atomically

_ENDINGS = {".zip", ".tar", ".tgz", ".txz", *PACKED}  # of archives; a partial download ends in .part


class NotFound(ValueError):
    """Original files were not found; the message says where to get them."""


def find(source: Source, roots: Iterable[str | os.PathLike[str]] | None = None, files: Iterable[str] = ()) -> RawFiles:
    """Find the original files of a source.

    Prefers the first folder with all files over the first one with the required files: those that are not optional, and
    `files`. A tar that lacks a file is only noticed when it is read, unless `files` are given: listing a compressed tar
    takes as long as decompressing it.

    Args:
        source: the source.
        roots: folders to search; by default `default_roots(source)`.
        files: optional files that are required here.

    Returns:
        The files, in a folder or in an archive.

    Raises:
        NotFound: if no folder has the required files.
    """
    places = default_roots(source) if roots is None else [Path(root) for root in roots]
    names = set(files)
    wanted = [file for file in source.files if file.optional and file.name in names]
    enough: RawFiles | None = None
    complaint = f"{source.name} is not in {', '.join(map(str, places))}"
    for root in places:
        if roots is not None and not root.is_dir():
            raise ValueError(f"{root} is not a folder: it must be a folder with {source.name}")
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
        raise NotFound(f"{complaint}: {get}get it from {source.homepage} and put it into a folder in BEAMTREE_DATA")
    return enough


def default_roots(source: Source) -> list[Path]:
    """The folders in BEAMTREE_DATA, then the folder of the source's downloads."""
    roots = []
    for name in os.environ.get("BEAMTREE_DATA", "").split(os.pathsep):
        if name:
            roots.append(Path(name).expanduser())
            if not roots[-1].is_dir():
                raise ValueError(
                    f"BEAMTREE_DATA names {name!r}, which is not a folder: "
                    f"it must name folders with original files, separated by {os.pathsep!r}"
                )
    return [*roots, download_folder(source)]


def download_folder(source: Source) -> Path:
    return cache_folder() / "originals" / source.name


def _candidates(source: Source, root: Path) -> Iterator[RawFiles]:
    """Archives and folders in the root that may be the source; in the source's usual subfolders first."""
    single = {name for file in source.files for name in file.names}  # when compressed, they may look like archives
    with readable(str(root)):
        for folder in [root / name for name in (*source.folders, "")]:
            if folder.is_dir():
                for pattern in source.archives:
                    for path in sorted(folder.glob(pattern)):
                        if path.suffix in _ENDINGS and path.stem not in single and path.is_file():
                            yield _archive(source, path)
                yield Folder(source, folder)


def _archive(source: Source, path: Path) -> RawFiles:
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            return Tar(source, path)
    archive = Zip(source, path)
    archive.found  # noqa: B018 (raises now if a file is missing)
    return archive


def copy_to(raw: RawFiles, folder: Path) -> Path:
    """Copy original files to the folder of downloads, where they are found by default. Returns the folder."""
    with _copying(folder):
        for name, entry in raw.on_disk():
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
        raise ValueError(
            f"{folder}: the original files cannot be copied there ({error.strerror}): free some space"
        ) from None
