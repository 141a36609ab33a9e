"""Downloading, so that an interruption costs little: what has come so far stays, and the next attempt goes on from it.

    get(SOURCES["sst"])

While it comes, a file is `<name>.part`, and `<name>.part.json` tells which version of it that is, so that parts of two
versions are never joined. Only a complete file with the right checksum gets the name itself.
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
_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before each new attempt; the count begins anew whenever something came
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that may be another one in a moment
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class _Broken(Exception):
    """The connection broke; it is worth another attempt."""


def get(
    source: Source,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[Download, int, int | None], None] | None = None,
) -> list[Path]:
    """Download all files of a source, those that are there already excepted; where they are then.

    `folder` is that of `download_folder` unless another is given. `progress` is told the file, how many bytes of it
    are there, and how many it has, if that is known.
    """
    folder = download_folder(source) if folder is None else Path(folder)
    by_hand = f"get {source.name} from {source.homepage} and put it into {folder}"
    if not source.downloads:
        raise ValueError(f"{source.name} cannot be downloaded by a program: {by_hand}")
    paths = []
    for download in source.downloads:
        told = None if progress is None else functools.partial(progress, download)
        paths.append(folder / download.file)
        try:
            fetch(download.url, paths[-1], checksum=download.checksum, progress=told)
        except ValueError as error:
            raise ValueError(f"{error}; if that goes on, {by_hand}") from None
    return paths


def fetch(
    url: str,
    target: str | os.PathLike[str],
    *,
    checksum: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    timeout: float = 30.0,
) -> None:
    """Download a file, going on from where an earlier attempt stopped; nothing to do if it is there already.

    The checksum is "sha256:…" or "md5:…". A file that is there is downloaded again only if it has another checksum.
    Processes that fetch the same file wait for one another.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url}: only addresses that begin with http:// or https:// can be downloaded")
    if checksum is not None and not re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", checksum):
        raise ValueError(f"the checksum is {checksum!r}: it must be 'sha256:' or 'md5:' and hexadecimal digits")
    target = Path(target)
    part = target.with_name(f"{target.name}.part")
    with _written(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(part.with_name(f"{part.name}.lock")) as alone:
            if target.exists() and (checksum is None or _digest(target, checksum) == checksum):
                return
            # Where there are no locks others may be at it too: then a part of our own, which ends with us.
            own = part if alone else target.with_name(f"{target.name}.{os.getpid()}.part")
            transfer = _Transfer(url, own, checksum is not None, progress or (lambda done, size: None), timeout)
            try:
                transfer.run()
                if checksum is not None and (found := _digest(own, checksum)) != checksum:
                    transfer.forget()
                    raise ValueError(
                        f"{url}: the file that came has the checksum {found}, not {checksum}: it was deleted"
                    )
                os.replace(own, target)
                transfer.forget()
            finally:
                if not alone:
                    transfer.forget()


class _Transfer:
    """One download into a part; `run` returns when it is complete."""

    def __init__(
        self, url: str, part: Path, checked: bool, progress: Callable[[int, int | None], None], timeout: float
    ) -> None:
        self.url, self.part, self.checked, self.progress, self.timeout = url, part, checked, progress, timeout
        # As urllib.request.urlopen, but without the handlers for files and FTP, to which a server could redirect.
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
        begun = False
        pauses = iter(_PAUSES)
        while True:
            before = _size(self.part)
            try:
                self._attempt()
                return
            except _Broken as broken:
                if _size(self.part) > before:
                    begun, pauses = True, iter(_PAUSES)
                pause = next(pauses, None)
                # Where not even the name is known there is no network, and nothing to wait for.
                hopeless = isinstance(broken.__cause__, socket.gaierror | ConnectionRefusedError) and not begun
                if pause is None or hopeless:
                    kept = _size(self.part)
                    rest = f"; {kept:,} bytes have come and are kept: run it again to go on" if kept else ""
                    raise ValueError(f"{self.url}: the download failed ({broken}){rest}") from None
                time.sleep(pause)

    def _attempt(self) -> None:
        """Ask for what is missing and write what comes; _Broken if that is not all."""
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
                self._past_the_end(error.headers, offset)
                return
            if error.code in _PASSING:
                raise _Broken(f"{error.code} {error.reason}") from None
            raise ValueError(f"{self.url}: the server answered {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            cause = error.reason if isinstance(error.reason, BaseException) else error
            if not isinstance(cause, OSError):
                raise ValueError(f"{self.url}: it cannot be downloaded ({cause})") from None
            raise _Broken(_why(cause)) from cause
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(_why(error)) from error
        with response:
            self._receive(response, offset, known)

    def _receive(self, response: Any, offset: int, known: dict[str, Any] | None) -> None:
        if response.headers.get_content_type() == "text/html" and ".html" not in self.part.suffixes:
            raise ValueError(f"{self.url}: the server sent a web page and not the file: open the address in a browser")
        version, size = _version(response.headers), _number(response.headers.get("Content-Length"))
        if response.status == 206:
            begin, size = _range(response.headers)
            old = known or {"version": None, "size": None}
            changed = old["size"] not in (None, size) or (version and old["version"] not in (None, version))
            if begin != offset or changed:
                self._start_anew()
            version = version or old["version"]  # the answer for a part need not repeat it
        else:
            offset = 0  # all of it comes
        with open(self.part, "r+b" if offset else "wb") as file:
            # After the old part is gone, and before there is a new one: they must never be of two versions.
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
            self._start_anew()

    def _past_the_end(self, headers: Any, offset: int) -> None:
        """There is nothing after what we have: it is all, or it is not of this file."""
        _, size = _range(headers)
        if size != offset:
            self._start_anew()
        self.progress(offset, size)

    def _start_anew(self) -> NoReturn:
        self.forget()
        raise _Broken("the file has changed on the server")

    def _known(self) -> dict[str, Any] | None:
        """What is known of the part; None if it cannot be gone on with, as its version could not be told."""
        try:
            known = json.loads(_description(self.part).read_bytes())
            usable = known["url"] == self.url and (known["version"] or self.checked)
            return {"version": known["version"], "size": known["size"]} if usable else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        self.part.unlink(missing_ok=True)
        _description(self.part).unlink(missing_ok=True)


def _digest(path: Path, like: str) -> str:
    kind = like.partition(":")[0]
    with open(path, "rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def _version(headers: Any) -> str | None:
    """What tells one version of a file from the next: its strong tag, else its date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _range(headers: Any) -> tuple[int | None, int | None]:
    """Where the part begins that comes, and how long the whole file is, as far as the server says it."""
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    return (None, None) if match is None else (_number(match[1]), _number(match[3]))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _blocks(response: Any) -> Iterator[bytes]:
    while True:
        try:
            block = response.read1(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(_why(error)) from error
        if not block:
            return
        yield block


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _description(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


@contextlib.contextmanager
def _written(target: Path) -> Iterator[None]:
    """Within it, an error of the disk is a ValueError of one line; what has been written stays for another attempt."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{target}: it cannot be written ({error.strerror or error}); what has come is kept: run it again to go on"
        ) from None
