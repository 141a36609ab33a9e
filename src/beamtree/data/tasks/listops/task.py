"""The tasks of ListOps, generated; `listops-original` is read from the original files.

No expression of a training or dev set is in a test set. Most splits are disjoint because of their lengths or depths, or
as parts of one pool. If two could overlap, the test set is generated without the expressions of the other.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from beamtree.data.samples import Sample
from beamtree.data.split import Split
from beamtree.data.task import Column, Part, PartInputs, Task
from beamtree.data.tasks.listops.expressions import TOKENS, gold_tree, values
from beamtree.data.tasks.listops.files import parse
from beamtree.data.tasks.listops.splits import PRESETS, Example, Spec, generate, generate_parts

_LABELS = tuple("0123456789")
_OPTIONS = ("seed", "official")
_LENGTHS = [f"{shortest}-{shortest + 100}" for shortest in range(200, 1000, 100)]
_DEV = 1000  # the first lines of the original training file are for dev
_MAX_TRAIN_LENGTH = 100
_ORIGINAL_TRAINING = {"train": "d20s-train", "dev": "d20s-dev"}  # splits of `listops` with their presets


def _spec(name: str, inputs: PartInputs) -> Spec:
    """The preset of the paper's text, or with `official` that of the published code."""
    return PRESETS.get(f"{name}-official", PRESETS[name]) if inputs.options["official"] else PRESETS[name]


def _samples(examples: Iterable[Example]) -> Iterator[Sample]:
    return (Sample(tokens, str(label)) for tokens, label in examples)


def _examples(split: Split, min_length: int) -> Iterator[Example]:
    """The examples of a split of at least this length. The others, most of up to a million, are not decoded."""
    for index in np.flatnonzero(split.lengths >= min_length).tolist():
        sample = split[index]
        yield Example(sample.tokens, int(sample.label))


def may_meet(first: Spec, second: Spec) -> bool:
    """Whether the lengths and depths of two splits allow a common expression."""
    shortest, longest = max(first.min_length, second.min_length), min(_longest(first), _longest(second))
    lowest, highest = max(first.min_nesting, second.min_nesting), min(first.nesting_limit, second.nesting_limit)
    return shortest <= longest and lowest <= highest


def _longest(spec: Spec) -> int:
    return spec.max_length if spec.kept_length is None else spec.kept_length


def _pool(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    """Generate training, dev and test set of the original ListOps."""
    names = {"train": "d20s-train", "dev": "d20s-dev", "near-IID": "d20s-test"}
    specs = [_spec(name, inputs) for name in names.values()]
    size = specs[0].pool
    parts = generate_parts(
        specs, inputs.options["seed"], progress=lambda found: inputs.progress("expressions", found, size)
    )
    return {title: _samples(part) for title, part in zip(names, parts, strict=True)}


def _generated(title: str, preset: str, about: str = "", apart_from: Mapping[str, str] | None = None) -> Part:
    """A split that is generated separately, disjoint from the splits in `apart_from`, given with their presets."""

    def make(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
        spec = _spec(preset, inputs)
        others = [split for split, other in (apart_from or {}).items() if may_meet(spec, _spec(other, inputs))]
        exclude = (example for split in others for example in _examples(inputs.load(split), spec.min_length))
        progress = None if spec.count < 10_000 else (lambda found: inputs.progress("expressions", found, spec.count))
        return {title: _samples(generate(spec, inputs.options["seed"], exclude, progress))}

    return Part((Column(title, about, PRESETS[preset].count),), make, options=_OPTIONS)


def _generalisation(apart_from: Mapping[str, str]) -> Iterator[Part]:
    """The test sets of all ListOps tasks, disjoint from the training data of each."""
    for length in _LENGTHS:
        yield _generated(length, length, f"{length} tokens, the bounds excluded", apart_from)
    yield _generated("Args 10", "args-10", "up to 10 arguments, 100 to 1000 tokens", apart_from)
    yield _generated("Args 15", "args-15", "up to 15 arguments, 100 to 1000 tokens", apart_from)
    yield _generated("IID args", "iid-args", "up to 5 arguments, 100 to 1000 tokens", apart_from)
    yield _generated("LRA", "lra", "up to 10 arguments, 501 to 1999 tokens", apart_from)


def _task(name: str, about: str, *parts: Part) -> Task:
    options: dict[str, bool | int | str] = {"seed": 0, "official": False}
    return Task(name, f"ListOps: {about}", _LABELS, parts, options, gold_tree, values, TOKENS)


def _depth_task(name: str, about: str) -> Task:
    apart_from = {"train": f"{name}-train", "dev": f"{name}-dev"}
    return _task(
        f"listops-{name}",
        about,
        _generated("train", f"{name}-train", "depth up to 6"),
        _generated("dev", f"{name}-dev", "depth 7", {"train": f"{name}-train"}),
        _generated(name.upper(), f"{name}-test", "depth 8 to 10", apart_from),
        *_generalisation(apart_from),
    )


def _read(inputs: PartInputs, source: str, file: str) -> Iterator[Sample]:
    raw = inputs.raw[source]
    return _samples(parse(raw.lines(file), raw.label(file)))


def _original_train(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    """Read training and dev set. The first lines are for dev, whatever their length."""
    samples = list(_read(inputs, "listops", "train_d20s.tsv"))
    train = [sample for sample in samples[_DEV:] if len(sample.tokens) <= _MAX_TRAIN_LENGTH]
    return {"train": train, "dev": samples[:_DEV]}


def _original(title: str, source: str, file: str, count: int) -> Part:
    return Part(
        (Column(title, "", count),), lambda inputs: {title: _read(inputs, source, file)}, (source,), files=(file,)
    )


TASKS = (
    _task(
        "listops",
        "nested lists of digits to evaluate (Nangia & Bowman 2018), generated",
        Part(
            (
                Column("train", "at most 100 tokens"),
                Column("dev", "", 1000),
                Column("near-IID", "like train, but of any length", 10_000),
            ),
            _pool,
            options=_OPTIONS,
        ),
        *_generalisation(_ORIGINAL_TRAINING),
        # To choose between models without looking at the test splits.
        _generated(
            "Args dev",
            "args-dev",
            "for development: up to 10 arguments, 100 to 1000 tokens",
            {**_ORIGINAL_TRAINING, **{name: name for name in ("args-10", "args-15", "iid-args", "lra")}},
        ),
    ),
    _depth_task("dg", "generalisation to greater depth, 100,000 for training, at most 100 tokens"),
    _depth_task("dg1", "generalisation to greater depth, 1,000,000 for training, at most 50 tokens"),
    _depth_task("dg2", "generalisation to greater depth, 1,000,000 for training, at most 100 tokens"),
    Task(
        "listops-original",
        "ListOps: the original files (Nangia & Bowman 2018; Havrylov et al. 2019; Tay et al. 2021)",
        _LABELS,
        (
            Part(
                (Column("train", "at most 100 tokens"), Column("dev", "", 1000)),
                _original_train,
                ("listops",),
                files=("train_d20s.tsv",),
            ),
            _original("near-IID", "listops", "test_d20s.tsv", 10_000),
            *(
                _original(length, "listops-lengths", f"test_{length.replace('-', '_')}.tsv", 2000)
                for length in _LENGTHS
            ),
            _original("LRA", "listops-lra", "basic_test.tsv", 2000),
        ),
        gold=gold_tree,
        values=values,
        words=TOKENS,
    ),
)
