"""ListOps (Nangia & Bowman 2018): nested operations over lists of digits, and every split the paper makes of it.

`evaluate`, `values`, `depth` and `gold_tree` say what an expression means, `generate` draws the splits of `PRESETS`,
and `read` and `write` handle the original files. How the presets follow the paper:
`beamtree.data.tasks.listops.splits`.
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
