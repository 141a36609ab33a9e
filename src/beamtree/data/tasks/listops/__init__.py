"""ListOps (Nangia & Bowman 2018): nested operations on lists of digits, and all splits of the paper.

`evaluate`, `values`, `depth` and `gold_tree` define the meaning of an expression, `generate` samples the splits of
`PRESETS`, and `read` and `write` handle the original file formats. `beamtree.data.tasks.listops.splits` documents how
the presets follow the paper.
"""

from beamtree.data.tasks.listops.expressions import OPERATORS, TOKENS, depth, evaluate, gold_tree, to_brackets, values
from beamtree.data.tasks.listops.files import FileFormat, parse, read, write
from beamtree.data.tasks.listops.splits import PRESETS, Example, Spec, generate, generate_parts, preset

__all__ = [
    "OPERATORS",
    "PRESETS",
    "TOKENS",
    "Example",
    "FileFormat",
    "Spec",
    "depth",
    "evaluate",
    "generate",
    "generate_parts",
    "gold_tree",
    "parse",
    "preset",
    "read",
    "to_brackets",
    "values",
    "write",
]
