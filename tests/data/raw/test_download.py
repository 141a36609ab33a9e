"""Downloads from a local server that drops connections, refuses requests, sends wrong data and changes files."""

import hashlib
import http.server
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.data.raw import Download, Source, download
from beamtree.data.raw.download import fetch, get
from beamtree.utils import locks
from subprocesses import NoLocks, starting

CONTENT = bytes(range(256)) * 4000  # about a megabyte
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@dataclass
class Site:
    """The behaviour of the server. Lists are consumed, one item per response."""

    address: str = ""
    content: bytes = CONTENT
    tag: str | None = '"first"'
    ranges: bool = True  # whether it supports ranges
    heeds_versions: bool = True  # whether it sends the whole file if If-Range is another version
    repeats_version: bool = True  # whether a partial response includes the version
    announces_size: bool = True
    kind: str = "application/octet-stream"
    break_after: list[int] = field(default_factory=list)  # bytes after which the connection is dropped
    statuses: list[int] = field(default_factory=list)  # errors instead of the file
    redirect: str | None = None
    stalls: threading.Event | None = None  # the event that it waits for before it ends the response
    asked: list[str | None] = field(default_factory=list)  # the Range of each request

    def url(self, name: str = "file.bin") -> str:
        return f"{self.address}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        site = self.site
        wanted = self.headers.get("Range")
        site.asked.append(wanted)
        self.close_connection = True
        if site.statuses and (status := site.statuses.pop(0)):
            self.send_error(status)
            return
        if site.redirect:
            self.send_response(302)
            self.send_header("Location", site.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, begin = site.content, 0
        changed = self.headers.get("If-Range") not in (None, site.tag)
        if wanted and site.ranges and not (changed and site.heeds_versions):
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if site.tag and (begin == 0 or site.repeats_version):
            self.send_header("ETag", site.tag)
        self.send_header("Content-Type", site.kind)
        if site.announces_size:
            self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        length = site.break_after.pop(0) if site.break_after else len(content)
        self.wfile.write(content[begin : begin + length])
        self.wfile.flush()
        if site.stalls:
            site.stalls.wait(10)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def site(server: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "_PAUSES", (0.0, 0.0, 0.0))
    Handler.site = Site(f"http://127.0.0.1:{server.server_port}")
    return Handler.site


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "file.bin"


def refused(complaint: str, *arguments: object, **options: object) -> str:
    with pytest.raises(ValueError, match=complaint) as caught:
        fetch(*arguments, **options)  # type: ignore[arg-type]
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)
    return str(caught.value)


def alone(target: Path) -> bool:
    """Whether the folder contains nothing but the file."""
    return os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("checksum", [None, SHA256, MD5])
@pytest.mark.parametrize("announces_size", [True, False])
def test_a_file_comes_whole_and_leaves_nothing_else(
    site: Site, target: Path, checksum: str | None, announces_size: bool
) -> None:
    site.announces_size = announces_size
    told: list[tuple[int, int | None]] = []
    fetch(site.url(), target, checksum=checksum, progress=lambda done, size: told.append((done, size)))
    assert target.read_bytes() == CONTENT
    assert alone(target)
    assert {size for _, size in told} == {len(CONTENT) if announces_size else None}
    assert [done for done, _ in told] == sorted({0, *(done for done, _ in told)})
    assert told[-1][0] == len(CONTENT)


def test_a_file_that_is_there_is_not_downloaded_again(site: Site, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    fetch(site.url(), target, checksum=SHA256)
    fetch(site.url(), target)
    assert site.asked == []
    target.write_bytes(b"something else")
    fetch(site.url(), target, checksum=SHA256)
    assert target.read_bytes() == CONTENT


def test_a_broken_connection_is_taken_up_where_it_broke(site: Site, target: Path) -> None:
    site.break_after = [300_000, 0, 0, 1, 500_000]
    fetch(site.url(), target, checksum=SHA256)
    assert target.read_bytes() == CONTENT
    assert site.asked == [None, *(f"bytes={n}-" for n in (300_000, 300_000, 300_000, 300_001, 800_001))]


@settings(max_examples=15)
@given(breaks=st.lists(st.integers(0, len(CONTENT)), max_size=5), ranges=st.booleans(), tagged=st.booleans())
def test_wherever_it_breaks_the_file_is_right_in_the_end(
    server: http.server.ThreadingHTTPServer,
    tmp_path_factory: pytest.TempPathFactory,
    breaks: list[int],
    ranges: bool,
    tagged: bool,
) -> None:
    target = tmp_path_factory.mktemp("downloads") / "file.bin"
    Handler.site = Site(f"http://127.0.0.1:{server.server_port}", ranges=ranges, tag='"tag"' if tagged else None)
    Handler.site.break_after = breaks
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")
        patch.setattr(download, "_PAUSES", (0.0,) * 6)
        fetch(Handler.site.url(), target, checksum=SHA256)
    assert target.read_bytes() == CONTENT
    assert alone(target)


def test_a_later_run_goes_on_from_what_has_come(site: Site, target: Path) -> None:
    site.break_after = [400_000, 0, 0, 0]
    message = refused("the connection ended after 400,000 of 1,024,000 bytes", site.url(), target)
    assert "400,000 bytes were received and are kept" in message
    assert (target.with_name("file.bin.part").stat().st_size, target.exists()) == (400_000, False)
    site.asked.clear()
    told: list[int] = []
    fetch(site.url(), target, progress=lambda done, size: told.append(done))
    assert (site.asked, told[0]) == (["bytes=400000-"], 400_000)
    assert target.read_bytes() == CONTENT
    assert alone(target)


def interrupted(site: Site, target: Path, checksum: str | None = None) -> None:
    """Leave a partial download."""
    site.break_after = [400_000, 0, 0, 0]
    refused("the connection ended", site.url(), target, checksum=checksum)
    site.asked.clear()


@pytest.mark.parametrize("heeds_versions", [True, False])
def test_parts_of_two_versions_are_never_joined(site: Site, target: Path, heeds_versions: bool) -> None:
    interrupted(site, target)
    site.content, site.tag, site.heeds_versions = CONTENT[::-1], '"second"', heeds_versions
    fetch(site.url(), target)
    assert target.read_bytes() == CONTENT[::-1]
    assert site.asked == (["bytes=400000-"] if heeds_versions else ["bytes=400000-", None])


def test_a_file_of_another_length_is_another_version(site: Site, target: Path) -> None:
    interrupted(site, target)
    site.content, site.heeds_versions, site.repeats_version = CONTENT[:0:-1], False, False
    fetch(site.url(), target)
    assert target.read_bytes() == CONTENT[:0:-1]


def test_the_answer_for_a_part_need_not_name_the_version(site: Site, target: Path) -> None:
    site.repeats_version = False
    interrupted(site, target)
    fetch(site.url(), target)
    assert site.asked == ["bytes=400000-"]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_a_part_of_unknown_version_is_used_only_under_a_checksum(site: Site, target: Path, tag: str | None) -> None:
    site.tag = tag
    interrupted(site, target)
    fetch(site.url(), target)
    assert site.asked == [None]
    target.unlink()
    interrupted(site, target, checksum=SHA256)
    fetch(site.url(), target, checksum=SHA256)
    assert site.asked == ["bytes=400000-"]
    assert target.read_bytes() == CONTENT


def test_a_part_of_another_address_or_with_a_damaged_description_is_not_used(site: Site, target: Path) -> None:
    interrupted(site, target)
    fetch(site.url("another"), target)
    assert site.asked == [None]
    target.unlink()
    for damage in ("", "{", "[]", '{"url": 1}'):
        interrupted(site, target)
        target.with_name("file.bin.part.json").write_text(damage)
        fetch(site.url(), target)
        assert site.asked == [None]
        assert target.read_bytes() == CONTENT
        target.unlink()


def test_a_complete_part_is_accepted_without_another_byte(site: Site, target: Path) -> None:
    """This is the state after a process was killed immediately before the last step."""
    interrupted(site, target)
    target.with_name("file.bin.part").write_bytes(CONTENT)
    fetch(site.url(), target)
    assert site.asked == [f"bytes={len(CONTENT)}-"]
    assert alone(target)
    target.unlink()
    interrupted(site, target)
    target.with_name("file.bin.part").write_bytes(CONTENT + b"too long")
    fetch(site.url(), target)
    assert site.asked == [f"bytes={len(CONTENT) + 8}-", None]
    assert target.read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_sends_all_again(site: Site, target: Path) -> None:
    interrupted(site, target)
    site.ranges = False
    fetch(site.url(), target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("checksum", [SHA256, MD5])
def test_wrong_bytes_are_refused_with_both_checksums(site: Site, target: Path, checksum: str) -> None:
    site.content = CONTENT[:-1] + b"!"
    kind = checksum.partition(":")[0]
    found = f"{kind}:{hashlib.new(kind, site.content).hexdigest()}"
    message = refused("the downloaded file has the checksum", site.url(), target, checksum=checksum)
    assert found in message
    assert checksum in message
    assert os.listdir(target.parent) == []


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_told_at_once(site: Site, target: Path, status: int) -> None:
    site.statuses = [status]
    message = refused(f"the server answered {status} ", site.url(), target)
    assert site.url() in message
    assert len(site.asked) == 1
    assert os.listdir(target.parent) == []


def test_a_passing_error_is_waited_out(site: Site, target: Path) -> None:
    site.statuses = [503, 500, 429]
    fetch(site.url(), target)
    assert target.read_bytes() == CONTENT
    target.unlink()
    site.statuses = [503] * 4
    refused("the download failed \\(503 Service Unavailable\\)", site.url(), target)


def test_a_refusal_keeps_what_has_come(site: Site, target: Path) -> None:
    interrupted(site, target)
    site.statuses = [404]
    refused("404", site.url(), target)
    assert target.with_name("file.bin.part").stat().st_size == 400_000


def test_a_web_page_is_not_taken_for_the_file(site: Site, target: Path) -> None:
    site.kind = "text/html; charset=utf-8"
    refused("the server sent a web page instead of the file", site.url(), target)
    assert not target.exists()


def test_redirects_are_followed_to_the_web_only(site: Site, target: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for site.redirect, reason in (
        (f"file://{tmp_path}/secret", "is not allowed"),
        ("ftp://127.0.0.1/secret", "unknown url type: ftp"),
    ):
        assert site.url() in refused(reason, site.url(), target)
    assert not target.exists()


@pytest.mark.parametrize("url", ["ftp://example.org/x", "file:///etc/passwd", "/etc/passwd", "example.org/x"])
def test_only_addresses_of_the_web_are_taken(tmp_path: Path, url: str) -> None:
    refused("the address must start with http:// or https://", url, tmp_path / "x")


def test_a_checksum_must_be_one(tmp_path: Path) -> None:
    refused("the checksum is 'sha256:12'", "https://example.org", tmp_path / "x", checksum="sha256:12")


def test_no_network_is_told_at_once(site: Site, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(download, "_PAUSES", (60.0,))
    with monkeypatch.context() as offline:
        offline.setattr(socket, "getaddrinfo", unknown)
        refused("the download failed \\(Name or service not known\\)", "http://example.org/x", target)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refused("the download failed \\(Connection refused\\)", f"http://127.0.0.1:{free.getsockname()[1]}/x", target)


def test_a_silent_server_is_given_up(site: Site, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSES", ())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        refused("the download failed \\(timed out\\)", address, target, timeout=0.05)


def test_what_came_before_a_server_fell_silent_is_kept(
    site: Site, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_PAUSES", ())
    site.break_after, site.stalls = [100_000], threading.Event()
    refused("timed out.*100,000 bytes were received", site.url(), target, timeout=0.2)
    site.stalls.set()
    fetch(site.url(), target, checksum=SHA256)
    assert site.asked == [None, "bytes=100000-"]


def test_an_interrupt_passes_and_keeps_what_has_come(site: Site, target: Path) -> None:
    def interrupt(done: int, size: int | None) -> None:
        if done > 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(site.url(), target, progress=interrupt)
    kept = target.with_name("file.bin.part").stat().st_size
    assert 300_000 < kept < len(CONTENT)
    fetch(site.url(), target, checksum=SHA256)
    assert site.asked == [None, f"bytes={kept}-"]
    assert alone(target)


# Loads the module without its packages, whose import of torch would take seconds.
PREFACE = f"""
import importlib.util, resource, types
for name in ("beamtree.data", "beamtree.data.raw"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].Download = sys.modules[name].Source = sys.modules[name].download_folder = object
name = "beamtree.data.raw.download"
spec = importlib.util.spec_from_file_location(name, {download.__file__!r})
download = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(download)
download._PAUSES = (0.0,) * 3
target = os.path.join(folder, "file.bin")
"""


@pytest.fixture
def start(target: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    with starting(target.parent, PREFACE) as run:
        yield run


@pytest.mark.parametrize("with_locks", [True, False], ids=["locks", "no locks"])
def test_processes_that_fetch_the_same_file_at_once_all_succeed(
    site: Site, target: Path, start: Callable[[str], subprocess.Popen[str]], with_locks: bool
) -> None:
    site.break_after = [100_000, 300_000, 5]
    code = "" if with_locks else "without_locks()\n"
    code += f"download.fetch({site.url()!r}, target, checksum={SHA256!r})"
    for process in [start(code) for _ in range(3)]:
        errors = process.communicate(timeout=30)[1]
        assert process.returncode == 0, errors
    assert target.read_bytes() == CONTENT
    assert alone(target)
    if with_locks:
        assert len(site.asked) == 4  # three of them were interrupted; the other processes requested nothing


def test_without_locks_a_process_has_a_part_of_its_own(
    site: Site, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks.filelock, "FileLock", NoLocks)
    seen: set[str] = set()
    fetch(site.url(), target, progress=lambda done, size: seen.update(os.listdir(target.parent)))
    assert seen == {f"file.bin.{os.getpid()}.part", f"file.bin.{os.getpid()}.part.json"}
    target.unlink()
    interrupted(site, target)
    assert os.listdir(target.parent) == []


def test_a_full_disk_is_one_line_and_keeps_what_has_come(
    site: Site, target: Path, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    """A limit on the size of files simulates a full disk."""
    process = start(f"""
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
try:
    download.fetch({site.url()!r}, target)
except ValueError as error:
    print(error)
""")
    output, errors = process.communicate(timeout=30)
    assert re.fullmatch(
        r".*file\.bin: it cannot be written \(File too large\); what was received is kept.*\n", output
    ), errors
    fetch(site.url(), target, checksum=SHA256)
    assert site.asked == [None, "bytes=500000-"]


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused("x.bin: it cannot be written", site.url(), tmp_path / "file" / "x.bin")


def toy(site: Site, *files: str, checksum: str | None = None) -> Source:
    downloads = tuple(Download(site.url(file), file, checksum) for file in files)
    return Source("toy", "a toy", "https://example.org/toy", downloads, (), (), ())


def test_all_files_of_a_source_are_got(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path))
    told: dict[str, int] = {}
    source = toy(site, "train0", "new/test.tsv", checksum=SHA256)
    paths = get(source, progress=lambda download, done, size: told.update({download.file: done}))
    assert paths == [tmp_path / "originals" / "toy" / "train0", tmp_path / "originals" / "toy" / "new" / "test.tsv"]
    assert [path.read_bytes() for path in paths] == [CONTENT, CONTENT]
    assert told == {"train0": len(CONTENT), "new/test.tsv": len(CONTENT)}
    assert get(source, tmp_path / "elsewhere") == [tmp_path / "elsewhere" / file for file in ("train0", "new/test.tsv")]
    site.asked.clear()
    assert get(source) == paths
    assert site.asked == []


def test_what_cannot_be_got_is_told_with_where_it_is(site: Site, tmp_path: Path) -> None:
    site.statuses = [0, 404]
    for source in (toy(site, "good", "gone"), toy(site)):
        with pytest.raises(
            ValueError, match=f"get toy from https://example.org/toy and put it into {tmp_path}"
        ) as caught:
            get(source, tmp_path)
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["good"]  # files that were downloaded before are kept
