"""The original files of the data sets: where they come from, and how they are found and read, also in archives.

    originals = find(SOURCES["sst"])
    for line in originals.lines("train.txt"): ...

`sources` lists the addresses, `finding` searches folders, and `reading` reads files and archives.
"""

from beamtree.data.raw.finding import NotFound, copy_to, default_roots, download_folder, find
from beamtree.data.raw.reading import Folder, Originals
from beamtree.data.raw.sources import SOURCES, Download, File, Source

__all__ = [
    "SOURCES",
    "Download",
    "File",
    "Folder",
    "NotFound",
    "Originals",
    "Source",
    "copy_to",
    "default_roots",
    "download_folder",
    "find",
]
