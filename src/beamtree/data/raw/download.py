"""Download files. An interrupted download is resumed by the next attempt.

    get(SOURCES["sst"])

A file is first written to `<name>.part`, and `<name>.part.json` identifies its version, so that parts of two versions
are never combined. Only a complete file with the right checksum is renamed to `<name>`.
"""

import contextlib
import functools
import hashlib
import http.client
import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from beamtree.data.raw import Download, Source, download_folder
from beamtree.utils.locks import locked

_BLOCK = 1 << 18
_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before each new attempt; starts over whenever data was received
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}  # status codes that are worth another attempt
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class _Broken(Exception):
    """The transfer was interrupted; it is worth another attempt."""


def get(
    source: Source,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[Download, int, int | None], None] | None = None,
) -> list[Path]:
    """Download all files of a source that do not exist yet.

    Args:
        source: the source.
        folder: where to store the files; by default `download_folder(source)`.
        progress: called with the file, the number of bytes received, and the total number or None.

    Returns:
        The paths of all files of the source.
    """
    folder = download_folder(source) if folder is None else Path(folder)
    by_hand = f"get {source.name} from {source.homepage} and put it into {folder}"
    if not source.downloads:
        raise ValueError(f"{source.name} cannot be downloaded by a program: {by_hand}")
    paths = []
    for download in source.downloads:
        report = None if progress is None else functools.partial(progress, download)
        paths.append(folder / download.file)
        try:
            fetch(download.url, paths[-1], checksum=download.checksum, progress=report)
        except ValueError as error:
            raise ValueError(f"{error}; if it keeps failing, {by_hand}") from None
    return paths


def fetch(
    url: str,
    target: str | os.PathLike[str],
    *,
    checksum: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    timeout: float = 30.0,
) -> None:
    """Download a file, resuming an earlier attempt.

    The checksum is "sha256:…" or "md5:…". An existing file is downloaded again only if its checksum differs. Processes
    that fetch the same file wait for one another.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url}: the address must start with http:// or https://")
    if checksum is not None and not re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", checksum):
        raise ValueError(
            f"the checksum is {checksum!r}: it must be 'sha256:' or 'md5:', followed by hexadecimal digits"
        )
    target = Path(target)
    part = target.with_name(f"{target.name}.part")
    with _written(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(part.with_name(f"{part.name}.lock")) as is_locked:
            if target.exists() and (checksum is None or _digest(target, checksum) == checksum):
                return
            # Without locks, other processes may be downloading too: use a part of this process only, and remove it.
            own_part = part if is_locked else target.with_name(f"{target.name}.{os.getpid()}.part")
            transfer = _Transfer(url, own_part, checksum is not None, progress or (lambda done, size: None), timeout)
            try:
                transfer.run()
                if checksum is not None and (found := _digest(own_part, checksum)) != checksum:
                    transfer.discard()
                    raise ValueError(
                        f"{url}: the downloaded file has the checksum {found}, not {checksum}: it was deleted"
                    )
                os.replace(own_part, target)
                transfer.discard()
            finally:
                if not is_locked:
                    transfer.discard()


class _Transfer:
    """A download to a part file; `run` returns when it is complete."""

    def __init__(
        self, url: str, part: Path, checked: bool, progress: Callable[[int, int | None], None], timeout: float
    ) -> None:
        self.url, self.part, self.checked, self.progress, self.timeout = url, part, checked, progress, timeout
        # As in urllib.request.urlopen, but without the handlers for files and FTP, to which a server could redirect.
        self.opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler,
            urllib.request.UnknownHandler,
            urllib.request.HTTPHandler,
            urllib.request.HTTPSHandler,
            urllib.request.HTTPDefaultErrorHandler,
            urllib.request.HTTPRedirectHandler,
            urllib.request.HTTPErrorProcessor,
        ):
            self.opener.add_handler(handler())

    def run(self) -> None:
        has_received = False
        pauses = iter(_PAUSES)
        while True:
            before = _size(self.part)
            try:
                self._attempt()
                return
            except _Broken as broken:
                if _size(self.part) > before:
                    has_received, pauses = True, iter(_PAUSES)
                pause = next(pauses, None)
                # If the server was never reached, there is probably no network, and no point in waiting.
                is_offline = isinstance(broken.__cause__, socket.gaierror | ConnectionRefusedError) and not has_received
                if pause is None or is_offline:
                    kept = _size(self.part)
                    rest = f"; {kept:,} bytes were received and are kept: run it again to resume" if kept else ""
                    raise ValueError(f"{self.url}: the download failed ({broken}){rest}") from None
                time.sleep(pause)

    def _attempt(self) -> None:
        """Request and write the missing bytes. Raises `_Broken` if not all of them are received."""
        known = self._known()
        headers = {"User-Agent": "beamtree", "Accept-Encoding": "identity"}
        offset = _size(self.part) if known is not None else 0
        if known is not None and offset:
            headers["Range"] = f"bytes={offset}-"
            if known["version"]:
                headers["If-Range"] = known["version"]
        try:
            response = self.opener.open(urllib.request.Request(self.url, headers=headers), timeout=self.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and offset:
                self._check_complete(error.headers, offset)
                return
            if error.code in _TRANSIENT:
                raise _Broken(f"{error.code} {error.reason}") from None
            raise ValueError(f"{self.url}: the server answered {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            cause = error.reason if isinstance(error.reason, BaseException) else error
            if not isinstance(cause, OSError):
                raise ValueError(f"{self.url}: the download failed ({cause})") from None
            raise _Broken(_reason(cause)) from cause
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(_reason(error)) from error
        with response:
            self._receive(response, offset, known)

    def _receive(self, response: Any, offset: int, known: dict[str, Any] | None) -> None:
        if response.headers.get_content_type() == "text/html" and ".html" not in self.part.suffixes:
            raise ValueError(
                f"{self.url}: the server sent a web page instead of the file: open the address in a browser"
            )
        version, size = _version(response.headers), _integer(response.headers.get("Content-Length"))
        if response.status == 206:
            begin, size = _range(response.headers)
            old = known or {"version": None, "size": None}
            changed = old["size"] not in (None, size) or (version and old["version"] not in (None, version))
            if begin != offset or changed:
                self._restart()
            version = version or old["version"]  # a partial response need not repeat it
        else:
            offset = 0  # the server sends the whole file
        with open(self.part, "r+b" if offset else "wb") as file:
            # Written after the old part is truncated and before the first new byte: part and description always match.
            _description(self.part).write_text(json.dumps({"url": self.url, "version": version, "size": size}))
            file.seek(offset)
            done = offset
            self.progress(done, size)
            for block in _blocks(response):
                file.write(block)
                done += len(block)
                self.progress(done, size)
            file.flush()
            os.fsync(file.fileno())
        if size is not None and done < size:
            raise _Broken(f"the connection ended after {done:,} of {size:,} bytes")
        if size is not None and done > size:
            self._restart()

    def _check_complete(self, headers: Any, offset: int) -> None:
        """The server has nothing after the offset: the part is complete, or of another version."""
        _, size = _range(headers)
        if size != offset:
            self._restart()
        self.progress(offset, size)

    def _restart(self) -> NoReturn:
        self.discard()
        raise _Broken("the file has changed on the server")

    def _known(self) -> dict[str, Any] | None:
        """The version and the size of the part; None if it cannot be resumed, since its version is unknown."""
        try:
            known = json.loads(_description(self.part).read_bytes())
            usable = known["url"] == self.url and (known["version"] or self.checked)
            return {"version": known["version"], "size": known["size"]} if usable else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)
        _description(self.part).unlink(missing_ok=True)


def _digest(path: Path, like: str) -> str:
    kind = like.partition(":")[0]
    with open(path, "rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def _version(headers: Any) -> str | None:
    """Identify the version of a file: by its strong ETag, otherwise by its date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _range(headers: Any) -> tuple[int | None, int | None]:
    """The start of the range that is sent, and the size of the whole file; None if the server does not specify them."""
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    return (None, None) if match is None else (_integer(match[1]), _integer(match[3]))


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _blocks(response: Any) -> Iterator[bytes]:
    while True:
        try:
            block = response.read1(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(_reason(error)) from error
        if not block:
            return
        yield block


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _description(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


@contextlib.contextmanager
def _written(target: Path) -> Iterator[None]:
    """Convert an OSError to a ValueError with a message of one line."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{target}: it cannot be written ({error.strerror or error}); "
            "what was received is kept: run it again to resume"
        ) from None
