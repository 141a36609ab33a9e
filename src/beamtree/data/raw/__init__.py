"""The originals: where each data set comes from, and how its files are found and read, packed or unpacked.

    originals = find(SOURCES["sst"])
    for line in originals.lines("train.txt"): ...

`sources` is the table of addresses, `finding` knows the folders, `reading` the archives.
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
