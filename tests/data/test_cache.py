"""The cache of prepared data: entries are complete or absent, whatever happens to the processes that write them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data import cache
from beamtree.data.cache import Prepared, cache_folder, entries, remove, stored
from beamtree.utils import locks
from subprocesses import NoLocks, starting, until

# Loads the module without its package, whose import of torch would take seconds.
PREFACE = f"""
import importlib.util
import numpy as np
spec = importlib.util.spec_from_file_location("cache", {str(cache.__file__)!r})
cache = importlib.util.module_from_spec(spec)
sys.modules["cache"] = cache
spec.loader.exec_module(cache)
"""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def counting(made: list[int], **arrays: np.ndarray) -> Callable[[], Prepared]:
    """A `make` function that records its calls."""

    def make() -> Prepared:
        made.append(1)
        return Prepared(arrays or {"x": np.arange(10)}, {"labels": ["no", "yes"]})

    return make


def never() -> Prepared:
    raise AssertionError("the entry was there, and was made again")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    with starting(tmp_path, PREFACE) as run:
        yield run


def test_what_was_stored_is_read_back_without_making_it_again(tmp_path: Path) -> None:
    arrays = {
        "ids": np.arange(12, dtype=np.int16).reshape(3, 4),
        "empty": np.zeros((0, 5), dtype=np.float32),
        "scalar": np.array(7),
        "words": np.array(["a", "bcd"]),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "pairs": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    }
    made: list[int] = []
    first = stored("imdb", {"split": "train"}, counting(made, **arrays), tmp_path)
    second = stored("imdb", {"split": "train"}, never, tmp_path)
    assert made == [1]
    for prepared in (first, second):
        assert prepared.about == {"labels": ["no", "yes"]}
        assert list(prepared.arrays) == list(arrays)
        for name, array in arrays.items():
            read = prepared.arrays[name]
            assert (read.dtype, read.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(read, array)
    assert isinstance(second.arrays["ids"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        second.arrays["ids"][0, 0] = 1


@given(parameters=st.dictionaries(st.text(max_size=5), JSON, max_size=4), data=st.data())
def test_the_order_of_parameters_is_of_no_account(parameters: dict[str, Any], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(parameters.items()))))
    assert cache._key("x", parameters) == cache._key("x", shuffled)
    assert cache._key("x", parameters) != cache._key("x", {**parameters, "one more": 1})
    assert cache._key("x", parameters) != cache._key("y", parameters)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"n": 1}, {"n": 2}), ({"n": 1}, {"m": 1}), ({"n": 1}, {"n": "1"}), ({"n": 1}, {"n": True}), ({}, {"n": None})],
)
def test_other_parameters_are_another_entry(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    made: list[int] = []
    stored("x", one, counting(made), tmp_path)
    stored("x", other, counting(made), tmp_path)
    assert len(made) == len(entries(tmp_path)) == 2


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("BEAMTREE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/someone/.cache/beamtree")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert cache_folder() == Path("/var/caches/beamtree")
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path))
    stored("x", {}, counting([]))
    assert [entry.path.parent for entry in entries()] == [tmp_path / "prepared"]


def test_entries_are_listed_and_removed(tmp_path: Path) -> None:
    assert entries(tmp_path) == []
    opened = stored("listops-dg", {"split": "train", "seed": 3}, counting([]), tmp_path)
    (entry,) = entries(tmp_path)
    assert (entry.name, entry.parameters) == ("listops-dg", {"split": "train", "seed": 3})
    assert entry.bytes == sum(file.stat().st_size for file in entry.path.iterdir()) > 80
    remove(entry)
    assert entries(tmp_path) == []
    assert os.listdir(tmp_path / "prepared") == []
    assert opened.arrays["x"].sum() == 45  # an open entry can still be read
    remove(entry)


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "a b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="as it names a file"):
        stored(name, {}, never, tmp_path)
    with pytest.raises(ValueError, match="as it names a file"):
        stored("x", {}, counting([], **{name: np.zeros(1)}), tmp_path)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("value", [Path("x"), float("nan"), {1, 2}])
def test_a_parameter_that_json_cannot_hold_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError, match="the parameters of x cannot be part of a key"):
        stored("x", {"value": value}, never, tmp_path)


def test_a_maker_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def make() -> Prepared:
        raise ValueError("line 17: an unknown label")

    with pytest.raises(ValueError, match=r"^line 17: an unknown label$"):
        stored("x", {}, make, tmp_path)
    with pytest.raises(ValueError, match="Object arrays"):
        stored("x", {}, counting([], good=np.zeros(3), bad=np.array([{}])), tmp_path)
    assert os.listdir(tmp_path / "prepared") == []


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def forget_parameters(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "parameters": None}))


@pytest.mark.parametrize("file", ["x.npy", "about.json"])
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        cut,
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, path.stat().st_size + 8),
        lambda path: path.write_bytes(b"PK" + path.read_bytes()[2:]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"int64", b"int32").replace(b"i8", b"i4")),
    ],
    ids=["missing", "cut", "empty", "longer", "no array", "another type"],
)
def test_a_damaged_entry_is_made_anew(tmp_path: Path, file: str, damage: Callable[[Path], object]) -> None:
    stored("x", {}, counting([]), tmp_path)
    (entry,) = entries(tmp_path)
    damage(entry.path / file)
    made: list[int] = []
    assert stored("x", {}, counting(made), tmp_path).arrays["x"].sum() == 45
    assert made == [1]
    assert stored("x", {}, never, tmp_path).arrays["x"].sum() == 45
    assert os.listdir(tmp_path / "prepared") == [entry.path.name]


def test_a_damaged_entry_is_listed_without_its_parameters(tmp_path: Path) -> None:
    stored("x", {}, counting([]), tmp_path)
    forget_parameters(entries(tmp_path)[0].path / "about.json")
    (entry,) = entries(tmp_path)
    assert (entry.name, entry.parameters) == ("x", None)


@pytest.mark.parametrize("with_locks", [True, False], ids=["locks", "no locks"])
def test_processes_that_prepare_the_same_at_once_all_succeed(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]], with_locks: bool
) -> None:
    """With locks, one of them prepares the entry; without, all do, and all read the same one."""
    code = f"""
if not {with_locks}:
    without_locks()
def make():
    say("made")
    time.sleep(0.3)
    return cache.Prepared({{"x": np.full(1000, os.getpid())}}, {{}})
say("ready")
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.001)
say(int(cache.stored("x", {{}}, make, folder).arrays["x"][999]))
"""
    processes = [start(code) for _ in range(4)]
    for process in processes:
        until(process, "ready")
    (tmp_path / "go").touch()
    said = []
    for process in processes:
        output, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        said.append(output.split())
    assert len({words[-1] for words in said}) == 1  # all read what one of them wrote
    assert sum(words.count("made") for words in said) == (1 if with_locks else 4)
    assert os.listdir(tmp_path / "prepared") == [entries(tmp_path)[0].path.name]


KILLED = {
    "making": """
def make():
    say("now")
    time.sleep(60)
cache.stored("x", {}, make, folder)
""",
    "writing": """
write = cache._write_array
def slow(path, array):
    if path.name == "y.npy":
        say("now")
        time.sleep(60)
    return write(path, array)
cache._write_array = slow
cache.stored("x", {}, lambda: cache.Prepared({"x": np.ones(5), "y": np.ones(5)}, {}), folder)
""",
}


@pytest.mark.parametrize("when", KILLED)
@pytest.mark.parametrize("next_name", ["x", "another"])
def test_a_killed_process_leaves_nothing_for_long(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]], when: str, next_name: str
) -> None:
    process = start(KILLED[when])
    until(process, "now")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert entries(tmp_path) == []
    assert len(os.listdir(tmp_path / "prepared")) == (2 if when == "writing" else 1)  # its lock, its temporary folder
    stored(next_name, {}, counting([]), tmp_path)
    assert os.listdir(tmp_path / "prepared") == [entries(tmp_path)[0].path.name]


def test_a_waiting_process_takes_over_from_a_killed_one(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    killed = start(KILLED["making"])
    until(killed, "now")
    waiting = start(
        'say("here")\n'
        'say(int(cache.stored("x", {}, lambda: cache.Prepared({"x": np.arange(4)}, {}), folder).arrays["x"].sum()))'
    )
    until(waiting, "here")
    time.sleep(0.2)
    assert waiting.poll() is None
    killed.kill()
    assert waiting.communicate(timeout=30)[0].strip() == "6"


def test_what_a_living_process_writes_is_not_swept(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    writing = start(KILLED["writing"].replace("60", "0.5") + 'say("done")')
    until(writing, "now")
    stored("another", {}, counting([]), tmp_path)
    until(writing, "done")
    assert [entry.name for entry in entries(tmp_path)] == ["another", "x"]


def test_without_locks_only_an_old_temporary_folder_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks.filelock, "FileLock", NoLocks)
    old, new = (tmp_path / "prepared" / f".x-0.{name}.tmp" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    stored("x", {}, counting([]), tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def one_line(error: pytest.ExceptionInfo[ValueError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"prepared data cannot be stored there .*BEAMTREE_CACHE") as caught:
        stored("x", {}, never, tmp_path / "file")
    assert str(tmp_path / "file") in one_line(caught)


def test_a_read_only_cache_can_be_read_but_not_added_to(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    """In another process, which drops root privileges: permissions do not apply to root."""
    stored("x", {}, counting([]), tmp_path)
    tmp_path.chmod(0o755)
    (tmp_path / "prepared").chmod(0o555)
    process = start("""
os.chdir(folder)  # its parents may be closed to others
cache.stored("x", {}, None, ".")  # may import, which the other user perhaps may not
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
say(cache.stored("x", {}, None, ".").arrays["x"].sum())
try:
    cache.stored("y", {}, lambda: cache.Prepared({"y": np.zeros(1)}, {}), ".")
except ValueError as error:
    say(error)
""")
    output, errors = process.communicate(timeout=30)
    (tmp_path / "prepared").chmod(0o755)
    assert output.startswith("45\nprepared: prepared data cannot be stored there (Permission denied)"), output + errors


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    """A limit on the size of files simulates a full disk."""
    process = start("""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    cache.stored("x", {}, lambda: cache.Prepared({"small": np.zeros(10), "large": np.zeros(100_000)}, {}), folder)
except ValueError as error:
    say(error)
""")
    output, errors = process.communicate(timeout=30)
    assert "prepared data cannot be stored there (" in output, errors
    assert output.count("\n") == 1
    assert os.listdir(tmp_path / "prepared") == []


def test_opening_takes_milliseconds(tmp_path: Path) -> None:
    arrays = {"flat": np.zeros(20_000_000, dtype=np.int32), "offsets": np.zeros(50_001, dtype=np.int64)}
    stored("imdb", {}, counting([], **arrays), tmp_path)
    best = min(_seconds(lambda: stored("imdb", {}, never, tmp_path)) for _ in range(5))
    assert best < 0.02


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
