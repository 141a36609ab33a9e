"""Files that are complete or absent: atomic writing, JSON, and disk errors in one line.

write_atomically("model/vocab.json", text)
with open_atomically("data.tsv") as file:           # appears under its name when the block ends
    file.write(b"...")
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

StrPath = str | os.PathLike[str]


@contextlib.contextmanager
def open_atomically(path: StrPath) -> Iterator[BinaryIO]:
    """Open a temporary file for writing, which replaces `path` when the block ends and is removed if it raises."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut could keep the new name and lose the data
        os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private; the result follows the user's umask
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_atomically(path: StrPath, content: bytes | str) -> None:
    """Write a file atomically: if an error occurs, `path` keeps its previous content."""
    with writing(path), open_atomically(path) as file:
        file.write(encode(content) if isinstance(content, str) else content)


def encode(text: str) -> bytes:
    r"""Encode as UTF-8. A lone surrogate, which JSON allows and UTF-8 does not, becomes an escape such as `\udc80`."""
    return text.encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def writing(path: StrPath) -> Iterator[None]:
    """Convert an `OSError` inside the block to a `ValueError` that names the path and the reason."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{path}: it cannot be written ({reason}): free some space, or choose another folder"
        ) from None


def write_json(path: StrPath, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: StrPath) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is not JSON ({one_line(error)})") from None


def append_json_line(path: StrPath, value: Any) -> None:
    """Append a line, after removing an incomplete last line that a killed process may have left."""
    with writing(path), open(path, "a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(encode(json_line(value)))


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def read_json_lines(path: StrPath) -> list[Any]:
    """Read the values of all complete lines. A last line without a line break is incomplete, and is ignored."""
    *lines, _ = Path(path).read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: it is not JSON ({one_line(error)})") from None
    return values


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split()) if not isinstance(error, RecursionError) else "it is nested too deeply"


def _umask() -> int:
    """The umask of the process, which can be read only by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
