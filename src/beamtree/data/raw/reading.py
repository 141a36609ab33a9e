"""Read original files from a folder, a zip or a tar: by name, as lines, text or bytes.

Archives are never unpacked to the disk. Whatever is wrong with a file is raised as a ValueError of one line.
"""

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from beamtree.data.raw.sources import File, Source

T = TypeVar("T")

PACKED: dict[str, Callable[[Path], Any]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}

_MAGIC: dict[bytes, Callable[[Path], Any]] = {b"\xfd7zXZ": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
_BLOCK = 1 << 18
_KEPT = 64 << 20  # bytes of a tar to keep in memory, so that it is not decompressed once per file


class RawFiles(ABC):
    """The original files of a source, in a folder or an archive. A file is accessed by its first name."""

    def __init__(self, source: Source, where: Path) -> None:
        self.name = source.name
        self.where = where
        self._files = {file.name: file for file in source.files}

    def has(self, file: str) -> bool:
        return self._path(file) is not None

    def actual(self, file: str) -> str:
        """The path of the file in here, which may have one of its other names."""
        path = self._path(file)
        if path is None:
            raise ValueError(f"{self.where}: it has no file {' or '.join(self._names(file))}")
        return path

    def label(self, file: str) -> str:
        """The file's name in messages."""
        return self._label(self._path(file) or file)

    def open(self, file: str) -> io.BufferedReader:
        """Open the file, decompressed, as bytes. Errors while reading are raised as a ValueError that names it."""
        path = self.actual(file)
        return io.BufferedReader(_Stream(_checked(self._label(path), self._chunks(path))), _BLOCK)

    def lines(self, file: str) -> Iterator[str]:
        """Iterate over the file's lines, without line ends."""
        with self.open(file) as stream:
            label = self.label(file)
            for number, line in enumerate(stream, start=1):
                yield _decoded(line, label, number).rstrip("\r\n")

    def text(self, file: str) -> io.StringIO:
        """Read the file as text with its line ends unchanged, as `csv` needs them."""
        with self.open(file) as stream:
            return io.StringIO(_decoded(stream.read(), self.label(file)), newline="")

    def members(self, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, bytes]]:
        """Iterate over the names and contents of the source's files that are wanted, in one pass and in any order.

        A name starts with that of the source's file or folder, as in "train/pos/0_9.txt", wherever it was found.
        """
        seen: set[str] = set()

        def choose(path: str) -> str | None:
            chosen = None
            for file in self._files.values():
                for name in file.names:
                    begin = _match(path, name)
                    if begin is not None:
                        seen.add(file.name)
                        chosen = chosen or path[begin:]
            return chosen if chosen is not None and wanted(chosen) else None

        yield from _checked(str(self.where), self._walk(choose))
        for file in self._files.values():
            if not file.optional and file.name not in seen:
                raise ValueError(lacks(self.where, [file]))

    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of the files, which changes if they may have changed."""
        facts = []
        with readable(str(self.where)):
            for name, entry in self.on_disk():
                status = entry.stat()
                facts.append((name, status.st_size, status.st_mtime_ns))
        return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:32]

    def _names(self, file: str) -> tuple[str, ...]:
        return self._files[file].names if file in self._files else (file,)

    def _label(self, path: str) -> str:
        return f"{self.where}:{path}"

    @abstractmethod
    def _path(self, file: str) -> str | None:
        """The path of the file in here, or None."""

    @abstractmethod
    def _chunks(self, path: str) -> Iterator[bytes]:
        """The content of the file at that path."""

    @abstractmethod
    def _walk(self, choose: Callable[[str], str | None]) -> Iterator[tuple[str, bytes]]:
        """The name and content of all files for whose path `choose` returns a name."""

    def on_disk(self) -> Iterator[tuple[str, "Path | os.DirEntry[str]"]]:
        """All files on the disk that may be read, by name."""
        yield self.where.name, self.where


class Folder(RawFiles):
    """Files in a folder, each plain or compressed."""

    def _path(self, file: str) -> str | None:
        for name in self._names(file):
            for ending in ("", *PACKED):
                path = self.where / f"{name}{ending}"
                if path.is_dir() if name.endswith("/") else path.is_file():
                    return f"{name}{ending}"
        return None

    def _label(self, path: str) -> str:
        return str(self.where / path)

    def _chunks(self, path: str) -> Iterator[bytes]:
        unpack = PACKED.get(Path(path).suffix.lower())
        with open(self.where / path, "rb") if unpack is None else unpack(self.where / path) as stream:
            yield from _blocks(stream)

    def _walk(self, choose: Callable[[str], str | None]) -> Iterator[tuple[str, bytes]]:
        for path, _ in self.on_disk():
            ending = Path(path).suffix
            chosen = choose(path.removesuffix(ending) if ending in PACKED else path)
            if chosen is not None:
                yield chosen, b"".join(self._chunks(path))

    def on_disk(self) -> Iterator[tuple[str, "Path | os.DirEntry[str]"]]:
        paths = [self._path(file) for file in self._files]
        for path in dict.fromkeys(paths):  # one file may be found for several names
            if path is not None and path.endswith("/"):
                with os.scandir(self.where / path) as inside:
                    entries = sorted((entry for entry in inside if entry.is_file()), key=lambda entry: entry.name)
                yield from ((path + entry.name, entry) for entry in entries)
            elif path is not None:
                yield path, self.where / path

    def lacking(self) -> list[File]:
        return [file for file in self._files.values() if not self.has(file.name)]


class Archive(RawFiles):
    """Base class of zip and tar: a list of paths, in which a file is found by the end of its path."""

    @property
    @abstractmethod
    def _paths(self) -> list[str]: ...

    def _path(self, file: str) -> str | None:
        return self.found[file] if file in self.found else self._search(file)

    @cached_property
    def found(self) -> dict[str, str | None]:
        """The path in here of each of the source's files. Raises if a required one is missing."""
        found = {file: self._search(file) for file in self._files}
        lacking = [file for file in self._files.values() if not file.optional and found[file.name] is None]
        if lacking:
            raise ValueError(lacks(self.where, lacking))
        return found

    def _search(self, file: str) -> str | None:
        for name in self._names(file):
            for path in self._paths:
                if _match(path, name) is not None:
                    return path
        return None


class Zip(Archive):
    @cached_property
    def _paths(self) -> list[str]:
        with readable(str(self.where)), zipfile.ZipFile(self.where) as archive:
            return [path for path in archive.namelist() if not path.endswith("/")]

    def _chunks(self, path: str) -> Iterator[bytes]:
        with zipfile.ZipFile(self.where) as archive, archive.open(path) as stream:
            yield from _blocks(stream)

    def _walk(self, choose: Callable[[str], str | None]) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(self.where) as archive:
            for path in self._paths:
                chosen = choose(path)
                if chosen is not None:
                    yield chosen, archive.read(path)


class Tar(Archive):
    """A tar, compressed or not. It can only be read sequentially, so the first pass lists it and keeps small files."""

    @property
    def _paths(self) -> list[str]:
        return self._first_pass[0]

    @cached_property
    def _first_pass(self) -> tuple[list[str], dict[str, bytes]]:
        names = [name for file in self._files.values() for name in file.names if not name.endswith("/")]
        paths: list[str] = []
        kept: dict[str, bytes] = {}
        room = _KEPT
        for path, content, size in _checked(str(self.where), self._contents()):
            paths.append(path)
            if size <= room and any(_match(path, name) is not None for name in names):
                kept[path] = content.read()
                room -= size
        return paths, kept

    def _contents(self) -> Iterator[tuple[str, BinaryIO, int]]:
        # Not decompressed by tarfile, which takes the end of a truncated file for the end of the archive.
        with _unpacked(self.where) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is not None:
                        yield member.name.removeprefix("./"), cast(BinaryIO, content), member.size
            for _ in _blocks(stream):
                pass  # read to the end, where the checksum is

    def _chunks(self, path: str) -> Iterator[bytes]:
        _, kept = self._first_pass
        if path in kept:
            yield kept[path]
            return
        for inside, content, _ in self._contents():
            if inside == path:
                yield from _blocks(content)
                return
        raise EOFError(f"{path} has disappeared from it")

    def _walk(self, choose: Callable[[str], str | None]) -> Iterator[tuple[str, bytes]]:
        for path, content, _ in self._contents():
            chosen = choose(path)
            if chosen is not None:
                yield chosen, content.read()


class _Stream(io.RawIOBase):
    """A raw stream over chunks of content."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _match(path: str, name: str) -> int | None:
    """The start of a file's name in a path, or None if it is the path of another file."""
    if name.endswith("/"):
        begin = f"/{path}".find(f"/{name}")
        return None if begin < 0 else begin
    return len(path) - len(name) if f"/{path}".endswith(f"/{name}") else None


def lacks(where: Path, files: list[File]) -> str:
    return f"{where} lacks {', '.join(' or '.join(file.names) for file in files)}"


def _decoded(content: bytes, label: str, line: int | None = None) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        place = label if line is None else f"{label}, line {line}"
        raise ValueError(f"{place}: this is not UTF-8 text ({error.reason} at byte {error.start})") from None
    return text if line is not None and line > 1 else text.removeprefix("\ufeff")  # a byte order mark


def _blocks(stream: Any) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block


def _unpacked(path: Path) -> Any:
    """Open a tar as a decompressed stream. The format is detected by the first bytes, since file names can be wrong."""
    with open(path, "rb") as file:
        begin = file.read(6)
        for magic, unpack in _MAGIC.items():
            if begin.startswith(magic):
                return unpack(path)
        file.seek(-min(512, file.seek(0, os.SEEK_END)), os.SEEK_END)
        if any(file.read()):  # tarfile would accept a truncated file
            raise EOFError("the end of the tar is missing")
    return open(path, "rb")


def _checked(label: str, items: Iterator[T]) -> Iterator[T]:
    with readable(label):
        yield from items


@contextlib.contextmanager
def readable(label: str) -> Iterator[None]:
    """Convert the errors of reading and decompressing to a ValueError with a message of one line."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise ValueError(f"{label}: it cannot be read ({error.strerror})") from None
        raise ValueError(_damaged(label, error)) from None
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        lzma.LZMAError,
        zlib.error,
        EOFError,
        RuntimeError,  # a zip that is encrypted, or compressed by a method that zipfile does not support
    ) as error:
        raise ValueError(_damaged(label, error)) from None


def _damaged(label: str, error: Exception) -> str:
    return f"{label}: the file is damaged, truncated or of an unknown kind ({error}): download it again"
