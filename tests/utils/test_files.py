"""Files: written completely or not at all, and read back as they were written."""

import errno
import os

import pytest

from beamtree.utils import files


def message(call, *arguments):
    """The error message for a mistake, which is one line."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path, monkeypatch, error):
    path = tmp_path / "file"
    files.write_atomically(path, "before")
    files.write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert path.stat().st_mode & 0o777 == 0o644

    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((ValueError, KeyboardInterrupt)) as caught:
        files.write_atomically(path, "after")
    if isinstance(error, OSError):
        assert str(caught.value).startswith(f"{path}: it cannot be written (No space left on device)")
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_not_there_cannot_be_written_to(tmp_path):
    assert "it cannot be written" in message(files.write_json, tmp_path / "none" / "x.json", {})
    assert "it cannot be written" in message(files.append_json_line, tmp_path / "none" / "x.jsonl", {})


def test_lines_are_appended_and_an_incomplete_line_is_replaced(tmp_path):
    path = tmp_path / "metrics.jsonl"
    files.append_json_line(path, {"epoch": 0, "note": "ü\n\udc80"})
    files.append_json_line(path, {"epoch": 1})
    with open(path, "ab") as file:
        file.write(b'{"epoch": 2, "tra')  # a killed process may leave this
    assert files.read_json_lines(path) == [{"epoch": 0, "note": "ü\n\udc80"}, {"epoch": 1}]
    files.append_json_line(path, {"epoch": 2})
    assert [line["epoch"] for line in files.read_json_lines(path)] == [0, 1, 2]
    path.write_text('{"epoch": 0}\nx\n{"epoch": 1}\n')
    assert "metrics.jsonl, line 2: it is not JSON" in message(files.read_json_lines, path)


def test_json_is_read_as_it_was_written(tmp_path):
    value = {"b": [1, 2.5, None], "a": {"ü": "\udc80"}}
    files.write_json(tmp_path / "x.json", value)
    assert files.read_json(tmp_path / "x.json") == value
    (tmp_path / "x.json").write_text('{"b": [1, 2.5')
    assert "x.json: it is not JSON" in message(files.read_json, tmp_path / "x.json")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_permissions_of_the_users_other_files(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        files.write_atomically(tmp_path / "file", "text")
        (tmp_path / "other").write_text("text")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == (tmp_path / "other").stat().st_mode & 0o777 == mode


def test_a_file_appears_under_its_name_when_the_block_ends(tmp_path):
    path = tmp_path / "file"
    with files.open_atomically(path) as file:
        file.write(b"one ")
        assert not path.exists()
        file.write(b"two")
    assert path.read_bytes() == b"one two"
    with pytest.raises(TypeError), files.open_atomically(path) as file:
        file.write("not bytes")
    assert path.read_bytes() == b"one two"
    assert os.listdir(tmp_path) == ["file"]
