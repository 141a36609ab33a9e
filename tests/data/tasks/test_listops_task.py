"""The tasks of ListOps: no expression of a training or dev set is in a test set, and the seed determines all splits."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from beamtree.data import Split, load
from beamtree.data.task import PartInputs, Task
from beamtree.data.tasks.listops import PRESETS, Spec, depth, evaluate, generate, generate_parts, to_brackets
from beamtree.data.tasks.listops import task as listops_task
from beamtree.data.tasks.listops.task import TASKS, may_meet
from beamtree.trees import Tree

GENERATED = [task for task in TASKS if task.name != "listops-original"]
EVERY_TASK = pytest.mark.parametrize("task", GENERATED, ids=[task.name for task in GENERATED])
OFFICIAL = pytest.mark.parametrize("official", [False, True], ids=["paper", "official"])

POOL = Spec(operator_probability=0.25, max_args=5, max_depth=20, max_length=60, count=300, pool=300)

# Run-time type checks make sampling ten times slower, and there are no shapes to check here.
pytestmark = pytest.mark.usefixtures("shape_checks_off")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))


def crowded(spec: Spec) -> Spec:
    """The preset with at most 5 tokens. There are only 4410 such expressions, so any two sets of them overlap.

    Presets of 100 tokens and more get exactly 5 tokens, the maximum of the others.
    """
    shortest = 5 if spec.min_length >= 100 else 1
    spec = replace(spec, min_length=shortest, max_length=5, min_nesting=0, max_nesting=None)
    if spec.pool is None:
        return replace(spec, count=min(spec.count // 8, 1000))
    part = {0: (0, 500), 10_000: (500, 1000), 11_000: (1000, 1500)}[spec.pool_part[0]]
    return replace(spec, pool=1500, pool_part=part, kept_length=None if spec.kept_length is None else 5, count=500)


def few(spec: Spec) -> Spec:
    """A preset with a hundredth of its expressions, within its own bounds."""
    if spec.pool is None:
        return replace(spec, count=min(spec.count // 100, 500))
    start, stop = spec.pool_part
    return replace(spec, pool=spec.pool // 100, pool_part=(start // 100, stop // 100))


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops_task, "PRESETS", {name: crowded(spec) for name, spec in PRESETS.items()})


@pytest.fixture
def handful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops_task, "PRESETS", {name: few(spec) for name, spec in PRESETS.items()})


def expressions(split: Split) -> set[tuple[str, ...]]:
    return {tuple(split.words[place] for place in split.tokens[index].tolist()) for index in range(len(split))}


def overlaps(name: str, official: bool) -> dict[tuple[str, str], int]:
    """How many expressions each training or dev set has in common with each set that must be disjoint from it."""
    data = load(name, official=official)
    sets = {split: expressions(data[split]) for split in data}
    train, dev, *tests = data.splits
    pairs = [(train, dev), *product((train, dev), tests)]
    return {(first, second): len(sets[first] & sets[second]) for first, second in pairs}


@EVERY_TASK
@OFFICIAL
@pytest.mark.usefixtures("crowd")
def test_no_expression_for_training_or_dev_is_in_a_test_set(task: Task, official: bool) -> None:
    found = overlaps(task.name, official)
    assert len(found) == 2 * (len(task.columns) - 2) + 1
    assert set(found.values()) == {0}


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("name", ["listops", "listops-dg"])
def test_without_care_they_would_meet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops_task, "may_meet", lambda first, second: False)
    found = overlaps(name, official=False)
    one_pool = {("train", "dev"), ("train", "near-iid"), ("dev", "near-iid")} if name == "listops" else set()
    assert {pair for pair, count in found.items() if not count} == one_pool


@EVERY_TASK
@OFFICIAL
def test_a_test_set_looks_at_whatever_it_may_meet(task: Task, official: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the real bounds, for which generating enough expressions to overlap would take too long."""
    monkeypatch.setattr(listops_task, "generate", lambda spec, seed, exclude, progress: list(exclude))
    base = "d20s" if task.name == "listops" else task.name.removeprefix("listops-")

    def spec(name: str) -> Spec:
        return PRESETS.get(f"{name}-official", PRESETS[name]) if official else PRESETS[name]

    asked: list[str] = []

    def no_samples(split: str) -> Split:
        asked.append(split)
        return Split.from_samples([], task.labels)

    materials = PartInputs({}, {"seed": 0, "official": official}, no_samples, lambda what, done, total: None)
    for part in task.parts:
        if len(part.columns) > 1:
            continue  # one pool
        [column] = part.columns
        asked.clear()
        assert not list(part.make(materials)[column.title])
        if column.name in ("train", "dev"):
            preset = f"{base}-{column.name}"
        else:
            preset = f"{base}-test" if column.name == base else column.name
        others = {"train": [], "dev": ["train"]}.get(column.name, ["train", "dev"])
        met = [other for other in others if may_meet(spec(preset), spec(f"{base}-{other}"))]
        assert asked == met + (["args-10", "args-15", "iid-args", "lra"] if column.name == "args-dev" else [])


Node = int | tuple["Node", ...]  # a digit is 0, a list the tuple of its arguments


@cache
def shapes(min_args: int, max_args: int, levels: int) -> list[Node]:
    """Every shape of the grammar."""
    if levels == 1:
        return [0]
    below = shapes(min_args, max_args, levels - 1)
    return [0, *(list_ for number in range(min_args, max_args + 1) for list_ in product(below, repeat=number))]


def length(shape: Node) -> int:
    return 1 if isinstance(shape, int) else 2 + sum(map(length, shape))


def nesting(shape: Node) -> int:
    return 0 if isinstance(shape, int) else 1 + max(map(nesting, shape))


def members(spec: Spec) -> Iterator[Node]:
    """All expressions that the split may contain, by enumeration."""
    longest = spec.max_length if spec.kept_length is None else spec.kept_length
    for shape in shapes(spec.min_args, spec.max_args, spec.max_depth):
        if spec.min_length <= length(shape) <= longest and spec.min_nesting <= nesting(shape) <= spec.nesting_limit:
            yield shape


# Bounds on arguments, the grammar's depth, bounds on length and on nesting, and the maximum length in a pool.
PAIRS = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(sorted)
BOUNDS = st.tuples(
    st.sampled_from([(1, 2), (2, 2), (2, 3)]),
    st.integers(1, 3),
    PAIRS,
    st.tuples(st.integers(0, 2), st.none() | st.integers(0, 3)),
    st.none() | st.integers(1, 12),
)


def spec_of(bounds: Any) -> Spec:
    (min_args, max_args), max_depth, (min_length, max_length), (min_nesting, max_nesting), kept = bounds
    try:
        return Spec(
            operator_probability=0.5,
            min_args=min_args,
            max_args=max_args,
            max_depth=max_depth,
            min_length=min_length,
            max_length=max_length,
            min_nesting=min_nesting,
            max_nesting=max_nesting,
            count=1,
            pool=None if kept is None else 10,
            kept_length=kept,
        )
    except ValueError:
        assume(False)
        raise


@given(BOUNDS, BOUNDS)
def test_splits_that_have_something_in_common_may_meet(first: Any, second: Any) -> None:
    one, other = spec_of(first), spec_of(second)
    assert may_meet(one, other) == may_meet(other, one)
    if not set(members(one)).isdisjoint(members(other)):
        assert may_meet(one, other)


@given(BOUNDS)
def test_a_split_may_meet_itself_unless_it_has_no_length_left(bounds: Any) -> None:
    spec = spec_of(bounds)
    assert may_meet(spec, spec) == (spec.kept_length is None or spec.min_length <= spec.kept_length)


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        ("d20s-train", "args-10", True),  # in 100 tokens
        ("d20s-train", "200-300", False),
        ("d20s-dev", "200-300", True),
        ("d20s-dev", "lra", True),
        ("200-300", "300-400", False),
        ("dg-train", "dg-dev", False),
        ("dg-train", "args-15-official", True),
        ("dg1-train", "args-10", False),
        ("dg-dev", "dg-test", False),
        ("dg-dev-official", "400-500", True),
        ("dg2-dev-official", "200-300", False),
    ],
)
def test_which_presets_may_meet(first: str, second: str, meet: bool) -> None:
    assert may_meet(PRESETS[first], PRESETS[second]) is meet


@pytest.mark.usefixtures("handful")
def test_the_same_seed_gives_the_same_data_and_another_seed_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder, seed in (("first", 0), ("second", 0), ("third", 1)):
        monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / folder))
        data = load("listops", seed=seed)
        found.append({split: list(data[split]) for split in ("train", "dev", "near-iid", "args-10")})
    assert found[0] == found[1]
    for split, samples in found[2].items():
        others = {sample.tokens for sample in found[0][split] if len(sample.tokens) > 10}
        assert others.isdisjoint(sample.tokens for sample in samples), split


@pytest.mark.usefixtures("handful")
def test_seeds_and_official_are_kept_apart_in_the_cache() -> None:
    plain, other, official = (load("listops-dg", "train", **each) for each in ({}, {"seed": 1}, {"official": True}))
    again = load("listops-dg", "train", seed=0, official=False)
    assert list(plain) == list(again)
    assert list(plain) != list(other)
    assert min(plain.lengths) < 20 <= min(official.lengths)
    assert max(depth(sample.tokens) for sample in plain) == 6
    assert max(depth(sample.tokens) for sample in official) == 5


@EVERY_TASK
@pytest.mark.usefixtures("handful")
def test_labels_are_the_values_and_gold_trees_those_of_the_brackets(task: Task) -> None:
    data = load(task.name)
    for split in (*data.splits[:3], "args-15"):
        for index in range(0, len(data[split]), 7):
            tokens, label, second, tree, *_ = data[split][index]
            values = data[split].constituent_labels(index)
            assert values is not None
            assert values.get((0, len(tokens)), tokens[0]) == label
            assert tree is not None
            assert set(values) <= set(tree.spans())
            assert (tree.leaves, second) == (tokens, None)
            assert evaluate(tree.leaves) == int(label)
            assert tree == Tree.parse(to_brackets(tokens))


def test_progress_tells_how_much_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "dg-train": replace(PRESETS["dg-train"], count=10_000),
        "d20s-train": replace(PRESETS["d20s-train"], pool=3000, pool_part=(0, 1000)),
        "d20s-dev": replace(PRESETS["d20s-dev"], pool=3000, pool_part=(1000, 2000)),
        "d20s-test": replace(PRESETS["d20s-test"], pool=3000, pool_part=(2000, 3000)),
    }
    monkeypatch.setattr(listops_task, "PRESETS", PRESETS | small)
    for name, total in (("listops-dg", 10_000), ("listops", 3000)):
        told: list[tuple[str, int, int | None]] = []
        load(name, "train", progress=lambda *news, told=told: told.append(news))
        assert told == [("expressions", done, total) for done in range(1000, total + 1, 1000)]


def test_parts_drawn_together_are_those_drawn_one_by_one() -> None:
    parts = [
        replace(POOL, pool_part=(0, 50)),
        replace(POOL, pool_part=(50, 300), kept_length=20),
        replace(POOL, pool_part=(40, 60), count=7),
    ]
    exclude = generate(parts[0], seed=1)[::5]
    told: list[int] = []
    for excluded in ([], exclude):
        together = generate_parts(parts, 1, excluded, told.append)
        assert together == [generate(part, 1, excluded) for part in parts]
    assert [len(together[0]), len(together[2])] == [40, 7]
    assert max(len(example.tokens) for example in together[1]) <= 20
    assert told == []  # fewer than a thousand


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [replace(POOL, pool=None, max_length=10)],
        [POOL, replace(POOL, pool=299)],
        [POOL, replace(POOL, max_length=61)],
        [POOL, replace(POOL, pool=None)],
    ],
)
def test_parts_of_different_pools_are_refused(specs: list[Spec]) -> None:
    with pytest.raises(ValueError, match="these splits are not parts of one pool"):
        generate_parts(specs, seed=0)
