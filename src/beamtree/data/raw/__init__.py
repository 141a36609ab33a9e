"""The original files of the data sets: where they come from, and how they are found and read, also in archives.

    raw = find(SOURCES["sst"])
    for line in raw.lines("train.txt"): ...

`sources` lists the addresses, `finding` searches folders, and `reading` reads files and archives.
"""

from beamtree.data.raw.finding import NotFound, copy_to, default_roots, download_folder, find
from beamtree.data.raw.reading import Folder, RawFiles
from beamtree.data.raw.sources import SOURCES, Download, File, Source

__all__ = [
    "SOURCES",
    "Download",
    "File",
    "Folder",
    "NotFound",
    "RawFiles",
    "Source",
    "copy_to",
    "default_roots",
    "download_folder",
    "find",
]
