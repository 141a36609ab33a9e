"""The ListOps splits of the paper, and their generator: the same seed gives the same bytes on any machine.

A plain name is the split that the paper's text describes, `...-official` the one that the published code makes where
that differs. Where the text is silent (operator probability, smallest length, the grammar's depth limit above the
filter) the plain name takes the code's value. Depth is the paper's: the number of nested operators. Bounds include
both ends.

| split | paper's text: plain name | published code: `-official` |
|---|---|---|
| d20s-train, -dev, -test | lengths <= 1000 | no bound on length (cut at 3000: one draw in 6e12 is longer) |
| 200-300 ... 900-1000 | strictly between the two bounds | the same |
| iid-args | not in the text: the code's, depth <= 8, lengths 100 to 1000 | the same |
| args-10, args-15 | depth <= 10 | depth <= 8 |
| lra | lengths 501 to 1999, depth <= 9 | the same |
| dg-train | depth <= 6, lengths <= 100 | depth <= 5, lengths 20 to 100 |
| dg-dev | depth 7, lengths <= 100 | depth 7, lengths 20 to 500 |
| dg-test | depth 8 to 10, lengths <= 100 | depth 8 to 9, lengths 20 to 100 |
| dg1-train, -dev, -test | depth <= 6, 7, 8 to 10; lengths 10 to 50 | depth 1 to 5, 6, 7 to 8; length exactly 50 |
| dg2-train, -dev, -test | depth <= 6, 7, 8 to 10; lengths <= 100 | depth 1 to 5, 6, 7 to 8; lengths 20 to 100 |
| dg2-deep, dg-extra | not in the text | `-official` only; made by the code, used by no experiment |
| speed-50 | not in the text: 100 of d20s-train, lengths <= 50 | the same |
| speed-200-250, -500-600, -900-1000 | 100 of each length | the same |

"10 arguments" is read as "up to 10" in both: the paper uses the same words for LRA, where that is what they mean; a
`Spec` with `min_args=10` gives the other reading. The code's split of depth 21 to 24 with operator probability .8 is
left out: without a bound on length its expressions fill any memory.

d20s is one pool of 100,000 distinct expressions, cut at random into test, dev and train as the original was. That
matters: there are only 10 expressions of one token and 400 of four, so that a pool of another size, or a test set drawn
on its own, has another share of short ones. The training set is what the pool's last part has of at most 100 tokens.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

from beamtree.data.tasks.listops.expressions import evaluate
from beamtree.data.tasks.listops.sampling import Grammar, Sampler

# So many draws in a row without a new expression mean that there are (all but) no more of them.
_HOPELESS = 1_000_000

_PROGRESS_EVERY = 1_000


class Example(NamedTuple):
    tokens: tuple[str, ...]
    label: int


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A split: the grammar, what is kept of it, and how many. All bounds include both ends."""

    operator_probability: float
    max_args: int
    max_depth: int  # of the grammar: the root is at depth 1, and at max_depth there are only digits
    max_length: int
    count: int
    min_args: int = 2
    min_length: int = 1
    min_nesting: int = 0
    max_nesting: int | None = None  # None: as the grammar has it, max_depth - 1
    # A split may be cut from a pool of so many distinct expressions, shuffled: from which of them, and of what is cut
    # only the expressions up to kept_length. count is then the most there can be.
    pool: int | None = None
    pool_part: tuple[int, int] = (0, 0)  # half open
    kept_length: int | None = None

    def __post_init__(self) -> None:
        def need(holds: bool, what: str) -> None:
            if not holds:
                raise ValueError(f"{what}, got {self}")

        need(0 <= self.operator_probability <= 1, "operator_probability must be from 0 to 1")
        need(1 <= self.min_args <= self.max_args, "arguments need 1 <= min_args <= max_args")
        need(self.max_depth >= 1, "max_depth must be at least 1, the root's depth")
        need(1 <= self.min_length <= self.max_length, "lengths need 1 <= min_length <= max_length")
        need(0 <= self.min_nesting <= self.nesting_limit, "nesting needs 0 <= min_nesting <= max_nesting < max_depth")
        need(self.count >= 0, "count must not be negative")
        start, stop = self.pool_part
        need(0 <= start <= stop <= (self.pool or 0), "pool_part needs 0 <= start <= stop <= pool")
        need(self.pool is not None or self.kept_length is None, "kept_length needs a pool: use max_length")

    @property
    def nesting_limit(self) -> int:
        """The most operators that can be nested."""
        return self.max_depth - 1 if self.max_nesting is None else min(self.max_nesting, self.max_depth - 1)


def preset(name: str) -> Spec:
    if name not in PRESETS:
        raise ValueError(f"unknown ListOps split {name!r}: there are {', '.join(PRESETS)}")
    return PRESETS[name]


def generate(
    spec: Spec | str,
    seed: int,
    exclude: Iterable[Example] = (),
    progress: Callable[[int], None] | None = None,
) -> list[Example]:
    """The examples of a split, distinct, in random order, none of whose expressions is among `exclude`.

    Splits of one pool have nothing in common if they have the same seed; from such a split `exclude` is removed, so
    that it may become smaller. Any other split keeps its count. `progress` is called now and then with the number of
    expressions found so far.
    """
    if isinstance(spec, str):
        spec = preset(spec)
    if spec.pool is not None:
        return generate_parts([spec], seed, exclude, progress)[0]
    excluded = {example.tokens for example in exclude}
    return _labelled(_distinct(spec, seed, spec.count, excluded, progress), excluded)


def generate_parts(
    specs: Sequence[Spec],
    seed: int,
    exclude: Iterable[Example] = (),
    progress: Callable[[int], None] | None = None,
) -> list[list[Example]]:
    """The examples of several splits of one pool, as `generate` gives them one by one."""
    if not specs or specs[0].pool is None or len({_pool(spec) for spec in specs}) > 1:
        raise ValueError(f"these splits are not parts of one pool: {list(specs)}")
    pool = _distinct(specs[0], seed, specs[0].pool, set(), progress)
    excluded = {example.tokens for example in exclude}
    parts = []
    for spec in specs:
        start, stop = spec.pool_part
        longest = spec.max_length if spec.kept_length is None else spec.kept_length
        chosen = [tokens for tokens in pool[start:stop] if len(tokens) <= longest and tokens not in excluded]
        parts.append(_labelled(chosen[: spec.count], excluded))
    return parts


def _pool(spec: Spec) -> Spec:
    """What all splits of a pool have in common."""
    return replace(spec, count=0, pool_part=(0, 0), kept_length=None)


def _labelled(chosen: list[tuple[str, ...]], excluded: set[tuple[str, ...]]) -> list[Example]:
    if not excluded.isdisjoint(chosen) or len(set(chosen)) != len(chosen):
        raise AssertionError("a split repeats an expression, or has one that was excluded")
    return [Example(tokens, evaluate(tokens)) for tokens in chosen]


def _distinct(
    spec: Spec, seed: int, count: int, excluded: set[tuple[str, ...]], progress: Callable[[int], None] | None
) -> list[tuple[str, ...]]:
    """`count` different expressions outside `excluded`, shuffled: short ones come up early, so order would tell."""
    grammar = Grammar(
        operator_probability=spec.operator_probability,
        min_args=spec.min_args,
        max_args=spec.max_args,
        max_depth=spec.max_depth,
        min_length=spec.min_length,
        max_length=spec.max_length,
        min_nesting=spec.min_nesting,
        max_nesting=spec.nesting_limit,
    )
    # Different grammars get unrelated streams from one seed. `Random.random` is the one method whose sequence Python
    # promises to keep, so every choice here and in the sampler is made from it.
    key = hashlib.sha256(f"{seed} {count} {astuple(grammar)}".encode()).digest()
    uniform = random.Random(int.from_bytes(key, "big")).random
    sampler = Sampler(grammar, uniform)
    if count and not sampler.acceptance:
        raise ValueError(f"no expression satisfies {spec}: widen the bounds on length or nesting")
    seen = set(excluded)
    found: list[tuple[str, ...]] = []
    misses = 0
    while len(found) < count:
        tokens = sampler.draw()
        if tokens in seen:
            misses += 1
            if misses == _HOPELESS:
                raise ValueError(
                    f"only {len(found)} of {count} different expressions turned up, then none in {misses:,} draws: "
                    f"ask for fewer or widen the bounds of {spec}"
                )
            continue
        misses = 0
        seen.add(tokens)
        found.append(tokens)
        if progress is not None and len(found) % _PROGRESS_EVERY == 0:
            progress(len(found))
    for last in range(count - 1, 0, -1):
        other = int(uniform() * (last + 1))
        found[last], found[other] = found[other], found[last]
    return found


def _presets() -> dict[str, Spec]:
    specs: dict[str, Spec] = {}

    original = Spec(operator_probability=0.25, max_args=5, max_depth=20, max_length=1000, count=10_000, pool=100_000)
    for suffix, pool in {"": original, "-official": replace(original, max_length=3000)}.items():
        specs[f"d20s-train{suffix}"] = replace(pool, count=89_000, pool_part=(11_000, 100_000), kept_length=100)
        specs[f"d20s-dev{suffix}"] = replace(pool, count=1_000, pool_part=(10_000, 11_000))
        specs[f"d20s-test{suffix}"] = replace(pool, pool_part=(0, 10_000))

    for lower in range(200, 1000, 100):
        bucket = replace(original, min_length=lower + 1, max_length=lower + 99, count=2_000, pool=None)
        specs[f"{lower}-{lower + 100}"] = bucket

    iid = replace(original, max_depth=9, min_length=100, count=2_000, pool=None)
    specs["iid-args"] = iid
    for args in (10, 15):
        specs[f"args-{args}"] = replace(iid, max_args=args, max_depth=11)
        specs[f"args-{args}-official"] = replace(iid, max_args=args)
    specs["lra"] = replace(iid, max_args=10, max_depth=10, min_length=501, max_length=1999)

    # The grammar's depth limit shapes what passes the filters too: it is the code's, raised where the text needs it.
    test = Spec(operator_probability=0.3, max_args=5, max_depth=11, max_length=100, min_nesting=8, count=2_000)
    dev = replace(test, max_depth=10, min_nesting=7, max_nesting=7)
    train = replace(test, max_depth=7, min_nesting=0, count=100_000)
    specs["dg-train"] = replace(train, operator_probability=0.25)
    specs["dg-dev"] = dev
    specs["dg-test"] = test
    specs["dg-train-official"] = replace(specs["dg-train"], max_depth=6, min_length=20)
    specs["dg-dev-official"] = replace(dev, min_length=20, max_length=500)
    specs["dg-test-official"] = replace(test, max_depth=10, min_length=20)

    million = replace(train, count=1_000_000)
    for name, (low, high), (low_official, high_official) in (("dg1", (10, 50), (50, 50)), ("dg2", (1, 100), (20, 100))):
        texts = {"train": million, "dev": replace(dev, max_depth=8), "test": test}
        officials = {
            "train": replace(million, max_depth=6, min_nesting=1),
            "dev": replace(dev, max_depth=7, min_nesting=6, max_nesting=6),
            "test": replace(test, max_depth=9, min_nesting=7),
        }
        for part in texts:
            specs[f"{name}-{part}"] = replace(texts[part], min_length=low, max_length=high)
            official = replace(officials[part], min_length=low_official, max_length=high_official)
            specs[f"{name}-{part}-official"] = official
    specs["dg2-deep-official"] = replace(test, max_depth=20, min_length=20, min_nesting=15)
    specs["dg-extra-official"] = replace(train, max_depth=6, min_length=20, count=10_000_000)

    specs["speed-50"] = replace(specs["d20s-train"], kept_length=50, count=100)
    specs["speed-200-250"] = replace(specs["200-300"], max_length=250, count=100)
    specs["speed-500-600"] = replace(specs["500-600"], count=100)
    specs["speed-900-1000"] = replace(specs["900-1000"], count=100)
    return specs


PRESETS = _presets()
