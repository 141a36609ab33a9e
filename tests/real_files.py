"""The original files of the benchmarks, where they are at hand."""

import lzma
import os
import tarfile
from pathlib import Path

import pytest

FOLDERS = [*os.environ.get("BEAMTREE_DATA", "").split(os.pathsep), str(Path(__file__).parents[2] / "shared" / "data")]


def find(name):
    """The path of an original such as "sst/trees.tar.xz"; where it is absent the test is skipped."""
    for folder in FOLDERS:
        path = Path(folder) / name
        if folder and path.exists():
            return path
    pytest.skip(f"the original {name} is in no folder that BEAMTREE_DATA names")


def lines(name, *members):
    """The lines, without their ends, of each of these files of an archive."""
    with tarfile.open(find(name)) as archive:
        files = {Path(file.name).name: file for file in archive.getmembers()}
        return [_split(archive.extractfile(files[member]).read()) for member in members]


def lines_of_one(name):
    """The lines, without their ends, of a file that is packed by itself."""
    with lzma.open(find(name)) as file:
        return _split(file.read())


def _split(content):
    return content.decode().removesuffix("\n").split("\n")  # splitlines would cut at more than line ends
