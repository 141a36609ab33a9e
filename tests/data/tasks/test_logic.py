"""Propositional logic: valid formulas, gold trees, the splits, and the counts of the real files."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import real_files
from beamtree.data.samples import Sample
from beamtree.data.tasks import logic
from beamtree.trees import Tree

FORMULAS: st.SearchStrategy[list[str]] = st.recursive(
    st.sampled_from([[variable] for variable in "abcdef"]),
    lambda formulas: st.one_of(
        st.builds(lambda inner: ["(", "not", *inner, ")"], formulas),
        st.builds(
            lambda left, operator, right: ["(", *left, "(", operator, *right, ")", ")"],
            formulas,
            st.sampled_from(["and", "or"]),
            formulas,
        ),
    ),
    max_leaves=12,
)

# Run-time type checks make reading several times slower, and there are no shapes to check here.
FULL_SPEED = pytest.mark.usefixtures("shape_checks_off")


def one(line: str) -> Sample:
    [sample] = logic.read([line], "train3")
    return sample


def is_formula(tokens: list[str]) -> bool:
    """By rewriting: every smallest formula in brackets becomes a variable, until nothing changes."""
    text, before = " ".join(tokens), ""
    while text != before:
        text, before = re.sub(r"\( (?:not [a-f]|[a-f] \( (?:and|or) [a-f] \)) \)", "a", text), text
    return re.fullmatch("[a-f]", text) is not None


def gold_actions(tokens: list[str]) -> list[int]:
    """The published rule: merge the first pair of an opening symbol and one that is not, until one is left."""
    symbols, actions = list(tokens), []
    while len(symbols) > 1:
        first = next(j for j in range(len(symbols) - 1) if symbols[j] == "(" and symbols[j + 1] != "(")
        symbols[first : first + 2] = ["value" if symbols[first + 1] == ")" else "("]
        actions.append(first)
    return actions


@given(FORMULAS, st.sampled_from(logic.LABELS), FORMULAS)
def test_a_line_is_read_as_it_was_written(first: list[str], label: str, second: list[str]) -> None:
    assert one(f"{label}\t{' '.join(first)}\t{' '.join(second)}") == Sample(tuple(first), label, tuple(second))


@given(FORMULAS, st.data())
def test_a_formula_with_one_token_changed_is_read_only_if_it_is_a_formula(
    tokens: list[str], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(tokens)))
    removed = data.draw(st.integers(0, 1))
    added = data.draw(st.lists(st.sampled_from(logic.TOKENS), max_size=1))
    changed = [*tokens[:start], *added, *tokens[start + removed :]]
    line = f"#\ta\t{' '.join(changed)}"
    if is_formula(changed):
        assert one(line).second == tuple(changed)
    else:
        with pytest.raises(ValueError, match="train3, line 1: "):
            one(line)


@given(FORMULAS)
def test_the_gold_tree_is_the_published_rule_s(tokens: list[str]) -> None:
    assert logic.gold_tree(tokens) == Tree.from_actions(gold_actions(tokens), tokens)


def test_a_gold_tree_by_hand() -> None:
    tree = logic.gold_tree(["(", "a", "(", "or", "(", "not", "b", ")", ")", ")"])
    assert tree == Tree.parse("(((-LRB- a) (((-LRB- or) (((-LRB- not) b) -RRB-)) -RRB-)) -RRB-)")


def test_nesting_of_any_depth_is_no_problem() -> None:
    tokens = ["(", "not"] * 5000 + ["a"] + [")"] * 5000
    assert (logic.operators(tokens), len(logic.gold_tree(tokens))) == (5000, 15_001)


def test_operators_are_counted() -> None:
    assert [logic.operators(text.split()) for text in ("a", "( not a )", "( ( not a ) ( or ( not b ) ) )")] == [0, 1, 3]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("#\ta", "3 columns expected, relation<TAB>formula<TAB>formula, found 2"),
        ("#\ta\tb\tc", "3 columns expected, relation<TAB>formula<TAB>formula, found 4"),
        ("", "3 columns expected, relation<TAB>formula<TAB>formula, found 1"),
        ("~\ta\tb", "unknown label '~'; known: =, <, >, ^, |, v, #"),
        ("#\ta\t", "the formula is empty"),
        ("#\ta\tg", "at token 0: unknown token 'g'"),
        ("#\t( not  a )\tb", "at token 2: unknown token ''"),
        ("#\t( not a\tb", "unbalanced brackets: 1 '(' not closed at the end, token 3"),
        ("#\ta\t( not a ) )", "unbalanced brackets: the ')' at token 4 closes no '('"),
        ("#\ta b\ta", "the formula is complete before 'b' at token 1"),
        ("#\t( a and b )\ta", "'and' at token 2, where '(' should be"),
        ("#\t( a ( not b ) )\ta", "'not' at token 3, where 'and' or 'or' should be"),
        ("#\t( )\ta", "')' at token 1, where 'not' or a formula should be"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"train3, line 2: {complaint}")):
        list(logic.read(["=\ta\ta", line], "train3"))


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(ValueError, match="train3, line 1: the file is empty: each line should be relation<TAB>formula"):
        list(logic.read([], "train3"))


def test_reading_is_lazy() -> None:
    samples = logic.read(iter(["=\ta\ta", "broken"]), "train3")
    assert next(samples).label == "="


@given(st.integers(0, 50), st.integers(2, 12))
def test_every_nth_sample_is_held_out_and_none_is_lost(count: int, every: int) -> None:
    samples = [Sample((str(number),), "#", ("a",)) for number in range(1, count + 1)]
    train, dev = logic.hold_out(samples, every)
    assert [int(sample.tokens[0]) for sample in dev] == [
        number for number in range(1, count + 1) if number % every == 0
    ]
    assert sorted(train + dev, key=lambda sample: int(sample.tokens[0])) == samples


@given(FORMULAS, FORMULAS, st.sampled_from([("and", "or"), ("and",), ("or",)]))
def test_split_c_is_the_published_pattern_s(first: list[str], second: list[str], operators: tuple[str, ...]) -> None:
    pattern = re.compile(rf".*\( ({'|'.join(operators)}) \( not .* \) \).*")
    matches = any(pattern.match(" ".join(side)) for side in (first, second))
    rest, test = logic.systematicity([Sample(tuple(first), "#", tuple(second))], operators)
    assert (len(rest), len(test)) == ((0, 1) if matches else (1, 0))


def test_split_c_knows_two_operators() -> None:
    with pytest.raises(ValueError, match="unknown operator 'not'; known: and, or"):
        logic.systematicity([], operators=("not",))


@FULL_SPEED
def test_the_real_files_have_the_published_counts() -> None:
    names = [f"{part}{number}" for part in ("train", "test") for number in range(13)]
    sizes: dict[str, int] = {}
    train: list[Sample] = []
    for name, lines in zip(names, real_files.lines("logic/propositionallogic.tar.xz", *names), strict=True):
        samples = list(logic.read(lines, name))
        sizes[name] = len(samples)
        number = int(name.removeprefix("train").removeprefix("test"))
        if number <= 6 and name.startswith("train"):
            train += samples
        if name.startswith("test"):
            counts = {max(logic.operators(s.tokens), logic.operators(s.second or ())) for s in samples}
            assert min(counts) == number
            assert max(counts) == number or number == 12
    test_sizes = [6, 410, 2198, 4104, 5361, 6027, 5816, 4707, 3347, 2230, 1444, 864, 853]
    assert [sizes[f"test{number}"] for number in range(13)] == test_sizes
    assert sum(sizes.values()) == 249_069
    assert [len(part) for part in logic.hold_out(train)] == [121_977, 13_552]
    rest, test = logic.systematicity(train)
    assert [len(part) for part in (*logic.hold_out(rest), test)] == [46_707, 5_189, 83_633]
    assert len(logic.systematicity(train, operators=("and",))[1]) == 47_581
    labels = Counter(sample.label for sample in train)
    assert set(labels) == set(logic.LABELS)
    assert round(labels["#"] / len(train), 2) == 0.54
    assert max(len(side) for sample in train for side in (sample.tokens, sample.second or ())) == 37
