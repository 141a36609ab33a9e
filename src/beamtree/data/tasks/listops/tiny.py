"""A small ListOps for first experiments: short expressions that a small model learns on a CPU in minutes.

Training, dev and test set are parts of one pool of distinct expressions of at most 14 tokens. The expressions of
`longer` have more tokens than these and are nested deeper: they test whether a model generalises.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from beamtree.data.samples import Sample
from beamtree.data.task import Column, Part, PartInputs, Task
from beamtree.data.tasks.listops.expressions import DIGITS, TOKENS, gold_tree, values
from beamtree.data.tasks.listops.splits import Spec, generate, generate_parts

_POOL = Spec(operator_probability=0.25, max_args=3, max_depth=4, max_length=14, count=30_000, pool=32_000)
SPECS = {
    "train": replace(_POOL, pool_part=(2_000, 32_000)),
    "dev": replace(_POOL, pool_part=(1_000, 2_000), count=1_000),
    "test": replace(_POOL, pool_part=(0, 1_000), count=1_000),
    "longer": replace(_POOL, max_depth=6, min_length=15, max_length=40, count=1_000, pool=None),
}


def _short(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    names = ("train", "dev", "test")
    parts = generate_parts([SPECS[name] for name in names], inputs.options["seed"])
    return {
        name: [Sample(tokens, str(label)) for tokens, label in part] for name, part in zip(names, parts, strict=True)
    }


def _longer(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    return {
        "longer": [Sample(tokens, str(label)) for tokens, label in generate(SPECS["longer"], inputs.options["seed"])]
    }


TASKS = (
    Task(
        "listops-tiny",
        "ListOps: short expressions for a first try, generated",
        DIGITS,
        (
            Part(
                (
                    Column("train", "30,000 of at most 14 tokens"),
                    Column("dev", "1,000 of the same kind"),
                    Column("test", "1,000 of the same kind"),
                ),
                _short,
                options=("seed",),
            ),
            Part((Column("longer", "1,000 of 15 to 40 tokens, nested deeper"),), _longer, options=("seed",)),
        ),
        {"seed": 0},
        gold_tree,
        values,
        TOKENS,
    ),
)
