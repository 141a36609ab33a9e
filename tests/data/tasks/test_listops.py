"""ListOps: values and gold trees, a sampler that is equivalent to rejection sampling, the paper's splits, the files."""

import hashlib
import lzma
import math
import os
import random
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import real_files
from beamtree.data.tasks import listops
from beamtree.data.tasks.listops import (
    PRESETS,
    Example,
    Spec,
    depth,
    evaluate,
    generate,
    gold_tree,
    preset,
    splits,
    to_brackets,
)
from beamtree.data.tasks.listops.sampling import Grammar, Sampler
from beamtree.trees import Tree

OPERATORS = ["[MIN", "[MAX", "[MED", "[SM"]

# Run-time type checks make sampling ten times slower, and there are no shapes to check here.
FULL_SPEED = pytest.mark.usefixtures("shape_checks_off")

D20S = Spec(operator_probability=0.25, max_args=5, max_depth=20, max_length=1000, count=50)

Shape = int | tuple["Shape", ...]  # a digit is 0, a list the tuple of its arguments
EXPRESSIONS: st.SearchStrategy[list[str]] = st.recursive(
    st.sampled_from([[digit] for digit in "0123456789"]),
    lambda arguments: st.builds(
        lambda operator, inner: [operator, *(token for argument in inner for token in argument), "]"],
        st.sampled_from(OPERATORS),
        st.lists(arguments, min_size=1, max_size=6),
    ),
    max_leaves=30,
)


def value_by_recursion(tokens: list[str]) -> int:
    """The value by recursive descent and the standard library's median."""

    def node(position: int) -> tuple[int, int]:
        if not tokens[position].startswith("["):
            return int(tokens[position]), position + 1
        operator, values = tokens[position], []
        position += 1
        while tokens[position] != "]":
            value, position = node(position)
            values.append(value)
        functions: dict[str, Callable[[list[int]], float]] = {
            "[MIN": min,
            "[MAX": max,
            "[MED": statistics.median,
            "[SM": lambda values: sum(values) % 10,
        }
        return int(functions[operator](values)), position + 1

    return node(0)[0]


def value_of_tree(tree: Tree) -> int:
    """The value by folding the binary tree: an open list collects its arguments one by one, and `]` applies it."""
    if tree.is_leaf:
        return int(tree.leaves[0])

    def fold(tree: Tree) -> int | list[str]:
        if tree.left is None or tree.right is None:
            return list(tree.leaves) if tree.leaves[0].startswith("[") else int(tree.leaves[0])
        left = fold(tree.left)
        assert isinstance(left, list), "the left child is always the open list"
        if tree.right.leaves == ("]",):
            return value_by_recursion([*left, "]"])
        right = fold(tree.right)
        assert isinstance(right, int), "a list is a constituent before it is an argument"
        return [*left, str(right)]

    value = fold(tree)
    assert isinstance(value, int)
    return value


def gold_actions(tokens: list[str]) -> list[int]:
    """The published rule: merge the first pair of an operator-like symbol and one that is not, until one is left."""
    symbols, actions = list(tokens), []
    while len(symbols) > 1:
        first = next(j for j in range(len(symbols) - 1) if "[" in symbols[j] and "[" not in symbols[j + 1])
        symbols[first : first + 2] = ["value" if symbols[first + 1] == "]" else "["]
        actions.append(first)
    return actions


@given(EXPRESSIONS)
def test_values_are_those_of_the_definition(tokens: list[str]) -> None:
    assert evaluate(tokens) == value_by_recursion(tokens)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MED 1 4 ]", 2),
        ("[MED 9 0 5 ]", 5),
        ("[SM 9 9 ]", 8),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MIN 5 [SM 5 5 ] ]", 0),
        ("[MED 3 ]", 3),
    ],
)
def test_a_few_values_by_hand(text: str, value: int) -> None:
    assert evaluate(text.split()) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the expression is empty"),
        ("[MAX 1 2", "not closed at the end, token 3"),
        ("1 ]", "complete before ']' at token 1"),
        ("] 1", "the ']' at token 0 closes no list"),
        ("[MAX 1 [MIN ] ]", "'\\[MIN' that ends at token 3 has no arguments"),
        ("[MAX 1 [SUM 2 ] ]", "unknown token '\\[SUM' at token 2"),
        ("[MAX 1 ] 2", "complete before '2' at token 3"),
    ],
)
def test_a_malformed_expression_is_refused_at_its_token(text: str, complaint: str) -> None:
    for function in (evaluate, gold_tree, to_brackets):
        with pytest.raises(ValueError, match=complaint):
            function(text.split())


@given(EXPRESSIONS)
def test_the_gold_tree_is_the_published_rule_s(tokens: list[str]) -> None:
    assert gold_tree(tokens) == Tree.from_actions(gold_actions(tokens), tokens)


@given(EXPRESSIONS)
def test_folding_the_gold_tree_gives_the_value(tokens: list[str]) -> None:
    assert value_of_tree(gold_tree(tokens)) == evaluate(tokens)


@given(EXPRESSIONS)
def test_brackets_are_those_of_the_gold_tree(tokens: list[str]) -> None:
    assert Tree.parse(to_brackets(tokens)) == gold_tree(tokens)


def test_depth_counts_nested_operators() -> None:
    assert [depth(text.split()) for text in ("3", "[SM 1 2 ]", "[SM 1 [MIN 2 [MAX 3 3 ] ] [MIN 1 1 ] ]")] == [0, 1, 3]


def test_nesting_of_any_depth_is_no_problem() -> None:
    tokens = ["[MAX"] * 5000 + ["1"] + ["]"] * 5000
    assert (evaluate(tokens), depth(tokens), len(gold_tree(tokens))) == (1, 5000, 10_001)
    assert to_brackets(tokens).count(")") == 10_000


def shape(tokens: Iterable[str]) -> Shape:
    lists: list[list[Shape]] = [[]]
    for token in tokens:
        if token.startswith("["):
            lists.append([])
        elif token == "]":
            done = tuple(lists.pop())
            lists[-1].append(done)
        else:
            lists[-1].append(0)
    return lists[0][0]


def shape_length(shape: Shape) -> int:
    return 1 if isinstance(shape, int) else 2 + sum(map(shape_length, shape))


def shape_depth(shape: Shape) -> int:
    return 0 if isinstance(shape, int) else 1 + max(map(shape_depth, shape))


@cache
def shapes(p: float, max_args: int, levels: int) -> dict[Shape, float]:
    """Every shape of the grammar with its probability, by enumeration."""
    if levels == 1:
        return {0: 1.0}
    below = shapes(p, max_args, levels - 1)
    found: dict[Shape, float] = {0: 1 - p}
    for number in range(2, max_args + 1):
        for arguments in product(below, repeat=number):
            found[arguments] = p / (max_args - 1) * math.prod(below[argument] for argument in arguments)
    return found


def sampler(grammar: Grammar, seed: int = 0) -> Sampler:
    return Sampler(grammar, random.Random(seed).random)


def assert_chi_square(observed: Counter[Hashable], expected: dict[Hashable, float]) -> None:
    """Counts agree with the probabilities, within five standard deviations; rare outcomes are grouped."""
    total = sum(observed.values())
    assert set(observed) <= set(expected)
    rare = {outcome for outcome, probability in expected.items() if probability * total < 10}
    pairs = [(observed[outcome], expected[outcome] * total) for outcome in expected if outcome not in rare]
    lumped = sum(expected[outcome] for outcome in rare) * total
    if lumped >= 10:
        pairs.append((sum(observed[outcome] for outcome in rare), lumped))
    statistic = sum((count - mean) ** 2 / mean for count, mean in pairs)
    freedom = len(pairs) - 1
    assert statistic <= freedom + 5 * math.sqrt(2 * freedom), (statistic, freedom)


@pytest.mark.parametrize(
    ("min_length", "max_length", "min_nesting", "max_nesting"),
    [
        (1, 60, 0, 3),
        (8, 14, 0, 3),
        (9, 9, 0, 3),
        (1, 60, 0, 2),
        (1, 60, 2, 2),
        (10, 16, 2, 3),
        (1, 18, 3, 3),
        (5, 60, 1, 2),
    ],
)
def test_every_shape_has_the_probability_of_plain_rejection(
    min_length: int, max_length: int, min_nesting: int, max_nesting: int
) -> None:
    p, draws = 0.4, 5000
    grammar = Grammar(
        operator_probability=p,
        min_args=2,
        max_args=3,
        max_depth=4,
        min_length=min_length,
        max_length=max_length,
        min_nesting=min_nesting,
        max_nesting=max_nesting,
    )
    kept = {
        shape: probability
        for shape, probability in shapes(p, 3, 4).items()
        if min_length <= shape_length(shape) <= max_length and min_nesting <= shape_depth(shape) <= max_nesting
    }
    acceptance = math.fsum(kept.values())
    source = sampler(grammar)
    assert source.acceptance == pytest.approx(acceptance, rel=1e-12)
    drawn: Counter[Hashable] = Counter(shape(source.draw()) for _ in range(draws))
    assert_chi_square(drawn, {shape: probability / acceptance for shape, probability in kept.items()})


def by_rejection(grammar: Grammar, count: int) -> list[list[str]]:
    """The generator as published: rejection sampling."""
    rng = random.Random(1)

    def node(level: int) -> list[str]:
        if level == grammar.max_depth or rng.random() >= grammar.operator_probability:
            return [str(rng.randrange(10))]
        arguments = [node(level + 1) for _ in range(rng.randint(grammar.min_args, grammar.max_args))]
        return [rng.choice(OPERATORS), *(token for argument in arguments for token in argument), "]"]

    kept: list[list[str]] = []
    while len(kept) < count:
        tokens = node(1)
        if (
            grammar.min_length <= len(tokens) <= grammar.max_length
            and grammar.min_nesting <= depth(tokens) <= grammar.max_nesting
        ):
            kept.append(tokens)
    return kept


@FULL_SPEED
@pytest.mark.parametrize(
    ("min_length", "min_nesting", "max_nesting"),
    # From 130 tokens on, the first splits are longer than those that the sampler caches.
    [(20, 4, 6), (130, 0, 19), (130, 9, 12)],
)
def test_long_expressions_are_distributed_as_by_plain_rejection(
    min_length: int, min_nesting: int, max_nesting: int
) -> None:
    grammar = Grammar(
        operator_probability=0.25,
        min_args=2,
        max_args=5,
        max_depth=20,
        min_length=min_length,
        max_length=400,
        min_nesting=min_nesting,
        max_nesting=max_nesting,
    )
    count = 1500
    plain = by_rejection(grammar, count)
    source = sampler(grammar)
    ours = [list(source.draw()) for _ in range(count)]
    measures: dict[str, Callable[[list[str]], int | str]] = {
        "length": lambda tokens: len(tokens) // 8,
        "depth": depth,
        "root operator": lambda tokens: tokens[0],
        "root arguments": lambda tokens: len(shape(tokens)),
        "operators": lambda tokens: sum(token in OPERATORS for token in tokens),
        "first argument": lambda tokens: shape_length(shape(tokens)[0]),
        "last argument": lambda tokens: shape_length(shape(tokens)[-1]),
        "last digit": lambda tokens: [token for token in tokens if token.isdigit()][-1],
        "value": evaluate,
    }
    for name, measure in measures.items():
        left, right = Counter(map(measure, ours)), Counter(map(measure, plain))
        outcomes = left.keys() | right.keys()
        common = [outcome for outcome in outcomes if left[outcome] + right[outcome] >= 20]
        # Two samples of one size: the sum of (a - b)² / (a + b) is χ² with a degree of freedom for each outcome.
        statistic = sum((left[outcome] - right[outcome]) ** 2 / (left[outcome] + right[outcome]) for outcome in common)
        assert len(common) > 2, name
        assert statistic <= len(common) + 5 * math.sqrt(2 * len(common)), (name, statistic, len(common))


def small(name: str) -> Spec:
    """A preset with a few examples instead of thousands."""
    spec = preset(name)
    if spec.pool is None:
        return replace(spec, count=min(spec.count, 30))
    start, stop = spec.pool_part
    return replace(spec, pool=spec.pool // 100, pool_part=(start // 100, stop // 100), count=min(spec.count, 1000))


# lengths, nesting and maximum arguments, by the paper's text and by the published code
BOUNDS = {
    "d20s-train": ((1, 100), (0, 19), 5),
    "d20s-dev": ((1, 1000), (0, 19), 5),
    "d20s-test": ((1, 1000), (0, 19), 5),
    "d20s-train-official": ((1, 100), (0, 19), 5),
    "d20s-dev-official": ((1, 3000), (0, 19), 5),
    "d20s-test-official": ((1, 3000), (0, 19), 5),
    **{f"{lower}-{lower + 100}": ((lower + 1, lower + 99), (0, 19), 5) for lower in range(200, 1000, 100)},
    "iid-args": ((100, 1000), (0, 8), 5),
    "args-10": ((100, 1000), (0, 10), 10),
    "args-10-official": ((100, 1000), (0, 8), 10),
    "args-dev": ((100, 1000), (0, 10), 10),
    "args-dev-official": ((100, 1000), (0, 8), 10),
    "args-15": ((100, 1000), (0, 10), 15),
    "args-15-official": ((100, 1000), (0, 8), 15),
    "lra": ((501, 1999), (0, 9), 10),
    "dg-train": ((1, 100), (0, 6), 5),
    "dg-dev": ((1, 100), (7, 7), 5),
    "dg-test": ((1, 100), (8, 10), 5),
    "dg-train-official": ((20, 100), (0, 5), 5),
    "dg-dev-official": ((20, 500), (7, 7), 5),
    "dg-test-official": ((20, 100), (8, 9), 5),
    "dg1-train": ((10, 50), (0, 6), 5),
    "dg1-dev": ((10, 50), (7, 7), 5),
    "dg1-test": ((10, 50), (8, 10), 5),
    "dg1-train-official": ((50, 50), (1, 5), 5),
    "dg1-dev-official": ((50, 50), (6, 6), 5),
    "dg1-test-official": ((50, 50), (7, 8), 5),
    "dg2-train": ((1, 100), (0, 6), 5),
    "dg2-dev": ((1, 100), (7, 7), 5),
    "dg2-test": ((1, 100), (8, 10), 5),
    "dg2-train-official": ((20, 100), (1, 5), 5),
    "dg2-dev-official": ((20, 100), (6, 6), 5),
    "dg2-test-official": ((20, 100), (7, 8), 5),
    "dg2-deep-official": ((20, 100), (15, 19), 5),
    "dg-extra-official": ((20, 100), (0, 5), 5),
    "speed-50": ((1, 50), (0, 19), 5),
    "speed-200-250": ((201, 250), (0, 19), 5),
    "speed-500-600": ((501, 599), (0, 19), 5),
    "speed-900-1000": ((901, 999), (0, 19), 5),
}


def arguments(shape: Shape) -> set[int]:
    """The numbers of arguments of all lists."""
    return set() if isinstance(shape, int) else {len(shape)}.union(*map(arguments, shape))


def test_every_preset_has_its_bounds_written_down() -> None:
    assert set(BOUNDS) == set(PRESETS)


@FULL_SPEED
@pytest.mark.parametrize("name", BOUNDS)
def test_a_preset_keeps_its_bounds(name: str) -> None:
    (shortest, longest), (shallowest, deepest), most = BOUNDS[name]
    spec = preset(name)
    assert (spec.min_length, spec.kept_length or spec.max_length) == (shortest, longest)
    assert (spec.min_nesting, spec.nesting_limit, spec.max_args) == (shallowest, deepest, most)
    examples = generate(small(name), seed=3)
    assert examples
    for tokens, label in examples:
        assert shortest <= len(tokens) <= longest
        assert shallowest <= depth(tokens) <= deepest
        assert arguments(shape(tokens)) <= set(range(2, most + 1))
        assert label == evaluate(tokens)
    assert len({example.tokens for example in examples}) == len(examples)
    if spec.pool is None:
        assert len(examples) == min(spec.count, 30)


@FULL_SPEED
def test_parts_of_a_pool_are_disjoint_and_make_it_up() -> None:
    parts = [generate(small(f"d20s-{part}"), seed=5) for part in ("train", "dev", "test")]
    expressions = [{example.tokens for example in part} for part in parts]
    assert len(set.union(*expressions)) == sum(map(len, parts))
    assert (len(parts[1]), len(parts[2])) == (10, 100)
    whole = {
        example.tokens for example in generate(replace(small("d20s-test"), pool_part=(0, 1000), count=1000), seed=5)
    }
    assert {tokens for tokens in whole if len(tokens) <= 100} - expressions[1] - expressions[2] == expressions[0]


@FULL_SPEED
def test_excluded_expressions_never_appear() -> None:
    # There are only 4410 expressions of up to 5 tokens, so two random sets of 1500 overlap.
    spec = replace(D20S, max_length=5, count=1500)
    test = generate(spec, seed=1)
    assert {example.tokens for example in test} & {example.tokens for example in generate(spec, seed=2)}
    train = generate(spec, seed=2, exclude=test)
    assert len(train) == 1500
    assert not {example.tokens for example in test} & {example.tokens for example in train}


@FULL_SPEED
def test_excluded_expressions_are_taken_out_of_a_pool_s_part() -> None:
    spec = small("d20s-train")
    everything = generate(spec, seed=5)
    assert generate(spec, seed=5, exclude=everything[::3]) == [e for i, e in enumerate(everything) if i % 3]


def test_all_expressions_there_are_can_be_had_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "_MAX_MISSES", 20_000)  # a million samples take too long under run-time type checks
    spec = replace(D20S, max_length=4, count=410)
    assert len(generate(spec, seed=0)) == 410
    with pytest.raises(ValueError, match="only 410 of 411 distinct expressions were found"):
        generate(replace(spec, count=411), seed=0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"min_length": 2, "max_length": 3}, "no expression satisfies"),
        ({"min_nesting": 5, "max_length": 15}, "no expression satisfies"),
        ({"min_nesting": 20}, "0 <= min_nesting <= max_nesting < max_depth"),
        ({"min_length": 2000}, "1 <= min_length <= max_length"),
        ({"operator_probability": 25.0}, "from 0 to 1"),
        ({"max_args": 1}, "min_args <= max_args"),
        ({"pool": 10, "pool_part": (5, 11)}, "stop <= pool"),
        ({"kept_length": 10}, "needs a pool"),
    ],
)
def test_an_impossible_split_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        generate(replace(D20S, **changes), seed=0)  # type: ignore[arg-type]


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown ListOps split 'd20s'.*d20s-train, .*lra"):
        generate("d20s", seed=0)


@FULL_SPEED
def test_progress_tells_how_many_are_found() -> None:
    told: list[int] = []
    generate(replace(D20S, min_length=10, count=2500), seed=0, progress=told.append)
    assert told == [1000, 2000]


@FULL_SPEED
def test_the_same_seed_gives_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """Long lists, deep nesting and a pool, so that the checksum covers every branch of the sampler."""
    digest = hashlib.sha256()
    for name in ("d20s-test", "900-1000", "dg-test", "args-15"):
        listops.write(tmp_path / name, generate(small(name), seed=0))
        digest.update((tmp_path / name).read_bytes())
    assert digest.hexdigest() == "7d095a2d51be0f6ed8644df81d8803ad4ec565d8991ad0abaf8edb59874af3b5"


def test_another_seed_gives_other_examples() -> None:
    spec = replace(D20S, min_length=20)
    assert not {e.tokens for e in generate(spec, seed=0)} & {e.tokens for e in generate(spec, seed=1)}


@pytest.mark.parametrize("layout", ["original", "lra"])
@pytest.mark.parametrize("suffix", ["tsv", "tsv.xz"])
@given(expressions=st.lists(EXPRESSIONS, min_size=1, max_size=5))
def test_reading_what_was_written_gives_it_back(
    tmp_path_factory: pytest.TempPathFactory, layout: listops.FileFormat, suffix: str, expressions: list[list[str]]
) -> None:
    examples = [Example(tuple(tokens), evaluate(tokens)) for tokens in expressions]
    path = tmp_path_factory.mktemp("listops") / f"test.{suffix}"
    listops.write(path, examples, layout)
    assert listops.read(path) == examples
    assert os.listdir(path.parent) == [path.name]


def test_the_two_layouts_are_those_of_the_original_files(tmp_path: Path) -> None:
    examples = [Example(("[SM", "6", "5", "]"), 1), Example(("9",), 9)]
    listops.write(tmp_path / "original", examples)
    assert (tmp_path / "original").read_text() == "1\t( ( ( [SM 6 ) 5 ) ] )\n9\t9\n"
    listops.write(tmp_path / "lra", examples, "lra")
    assert (tmp_path / "lra").read_text() == "Source\tTarget\n( ( ( [SM 6 ) 5 ) ] )\t1\n9\t9\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "line 1: the file has no examples"),
        ("Source\tTarget\n", "line 1: the file has no examples.*expression<TAB>label"),
        ("9\t9\n9\n", "line 2: 2 columns expected, label<TAB>expression, found 1"),
        ("9\t9\t9\n", "line 1: 2 columns expected, label<TAB>expression, found 3"),
        ("Source\tTarget\n9\t9\n\n", "line 3: 2 columns expected, expression<TAB>label, found 1"),
        ("9\t9\n2\t( ( ( [SUM 1 ) 1 ) ] )\n", r"line 2: unknown token '\[SUM' at token 0"),
        ("9\t9\n2\t( ( ( [SM 1 ) 1 ) ]\n", "line 2: unbalanced brackets: there are 3 '\\(' and 2 '\\)'"),
        ("9\t9\n2\t( ( [SM 1 ) 1 )\n", "line 2: unbalanced brackets: 1 '\\[' not closed"),
        ("9\t9\n3\t( ( ( [SM 1 ) 1 ) ] )\n", "line 2: the label is '3', but the expression evaluates to 2"),
        ("x\t9\n", "line 1: the label is 'x', but the expression evaluates to 9"),
        ("9\t\n", "line 1: unknown token ''"),
    ],
)
@pytest.mark.parametrize("suffix", ["tsv", "tsv.xz"])
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: str, complaint: str, suffix: str) -> None:
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(lzma.compress(content.encode()) if suffix.endswith("xz") else content.encode())
    with pytest.raises(ValueError, match=f"bad.{suffix}, {complaint}") as caught:
        listops.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"no xz file", lzma.compress(b"9\t9\n" * 1000)[:-20]])
def test_a_damaged_packed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.xz").write_bytes(content)
    with pytest.raises(ValueError, match="damaged or not an xz file"):
        listops.read(tmp_path / "bad.xz")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("9\t9\n")
    with pytest.raises(ValueError, match="unbalanced"):
        listops.write(path, [Example(("1",), 1), Example(("[SM", "1"), 1)])
    assert (os.listdir(tmp_path), path.read_text()) == ([path.name], "9\t9\n")


@pytest.fixture(scope="module")
def real() -> Path:
    path: Path = real_files.find("listops/test_d20s.tsv.xz")
    return path


def test_the_real_test_set_is_read_and_written_byte_for_byte(real: Path, tmp_path: Path) -> None:
    examples = listops.read(real)  # which re-evaluates every label
    lengths = [len(example.tokens) for example in examples]
    assert (len(examples), min(lengths), max(lengths)) == (10_000, 1, 939)
    assert len({example.tokens for example in examples}) == 10_000
    assert max(depth(example.tokens) for example in examples) == 19
    listops.write(tmp_path / "test.tsv", examples)
    written = (tmp_path / "test.tsv").read_bytes()
    assert hashlib.md5(written).hexdigest() == "a533eeca66c3b8a9ca7ddc47d4e5254b"


@FULL_SPEED
def test_generated_d20s_is_like_the_real_test_set(real: Path) -> None:
    """In length and depth, within four standard errors."""
    theirs, ours = listops.read(real), generate("d20s-test", seed=0)
    measures: list[Callable[[tuple[str, ...]], float]] = [
        len,
        depth,
        lambda tokens: len(tokens) <= 100,
        lambda tokens: len(tokens) <= 6,
        lambda tokens: math.log(len(tokens)),
    ]
    for measure in measures:
        left = [float(measure(example.tokens)) for example in theirs]
        right = [float(measure(example.tokens)) for example in ours]
        error = math.sqrt(statistics.variance(left) / len(left) + statistics.variance(right) / len(right))
        assert abs(statistics.mean(left) - statistics.mean(right)) < 4 * error
