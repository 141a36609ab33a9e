"""Span scores: the same figures as PYEVALB's, by the sentence and over a corpus, whatever counts."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PYEVALB import parser, scorer, summary

from beamtree.trees import Bracketing, Tree
from beamtree.trees.baselines import easy_first, left, right, uniform
from beamtree.trees.scores import COUNTED, Counted, Counts, Scores, count, score

Shape = tuple["Shape", ...]  # () is a leaf

# Brackets of two or more parts: without unary ones, of which PYEVALB would count each.
SHAPES: st.SearchStrategy[Shape] = st.recursive(
    st.just(()), lambda children: st.lists(children, min_size=2, max_size=4).map(tuple), max_leaves=12
)


@st.composite
def corpora(draw: st.DrawFn, n_ary: bool = False) -> list[tuple[int, int, Shape | int]]:
    """Sentences, each by its size, the seed of the predicted tree, and the gold one or its seed."""
    found: list[tuple[int, int, Shape | int]] = []
    for _ in range(draw(st.integers(1, 5))):
        if n_ary:
            shape = draw(SHAPES.filter(bool))
            found.append((brackets(shape).count("w"), draw(st.integers(0, 99)), shape))
        else:
            found.append((draw(st.integers(2, 12)), draw(st.integers(0, 99)), draw(st.integers(0, 99))))
    return found


def brackets(shape: Shape) -> str:
    return f"({' '.join(map(brackets, shape))})" if shape else "w"


def built(corpus: list[tuple[int, int, Shape | int]]) -> list[tuple[Tree, Tree | Bracketing]]:
    pairs: list[tuple[Tree, Tree | Bracketing]] = []
    for size, seed, gold in corpus:
        leaves = ["w"] * size
        standard = easy_first(leaves, gold) if isinstance(gold, int) else Bracketing.parse(brackets(gold))
        pairs.append((uniform(leaves, seed), standard))
    return pairs


def penn(tree: Tree | Bracketing, counted: Counted) -> str:
    """A tree in PYEVALB's format, with one label for all constituents. PYEVALB does not count part-of-speech tags, so a
    leaf has one; if leaves count, each is also in a constituent."""
    spans = tree.spans(leaves=False) if isinstance(tree, Tree) else tree.spans
    pieces = ["(X (T w))" if counted == "all" else "(T w)"] * len(tree)
    for start, end in sorted(spans, key=lambda span: span[1] - span[0]):
        pieces[start] = "(X " + pieces[start]
        pieces[end - 1] += ")"
    return " ".join(pieces)


def evalb(pairs: list[tuple[Tree, Tree | Bracketing]], counted: Counted) -> list[summary.Result]:
    judge = scorer.Scorer()
    read = [[parser.create_from_bracket_string(penn(each, counted)) for each in pair] for pair in pairs]
    return [judge.score_trees(gold, tree) for tree, gold in read]


@pytest.mark.parametrize("counted", ["merged", "all"])
@pytest.mark.parametrize("n_ary", [False, True])
@given(data=st.data())
def test_precision_recall_and_f1_are_pyevalbs(counted: Counted, n_ary: bool, data: st.DataObject) -> None:
    pairs = built(data.draw(corpora(n_ary)))
    results = evalb(pairs, counted)
    for (tree, gold), result in zip(pairs, results, strict=True):
        ours = count(tree, gold).counting(counted, len(tree))
        assert ours == Counts(result.matched_brackets, result.test_brackets, result.gold_brackets)
        assert ours.precision == result.prec
        assert ours.recall == result.recall
    total = summary.summary(results)
    scores = score(*zip(*pairs, strict=True))
    assert 100 * scores.corpus(counted).precision == pytest.approx(total.bracket_prec)
    assert 100 * scores.corpus(counted).recall == pytest.approx(total.bracket_recall)
    assert 100 * scores.corpus(counted).f1 == pytest.approx(total.bracker_fmeasure)
    f1 = [2 * r.prec * r.recall / (r.prec + r.recall) for r in results]
    assert scores.sentence_f1(counted) == pytest.approx(sum(f1) / len(f1))
    if not n_ary:
        assert 100 * scores.exact_match == pytest.approx(total.complete_match)


@pytest.mark.parametrize("n_ary", [False, True])
@given(data=st.data())
def test_without_trivial_spans_pyevalbs_counts_are_less_by_the_root(n_ary: bool, data: st.DataObject) -> None:
    """PYEVALB always counts the root."""
    pairs = built(data.draw(corpora(n_ary)))
    for (tree, gold), result in zip(pairs, evalb(pairs, "merged"), strict=True):
        ours = count(tree, gold).counting("nontrivial", len(tree))
        assert ours == Counts(result.matched_brackets - 1, result.test_brackets - 1, result.gold_brackets - 1)


@given(corpora(n_ary=True))
def test_spans_are_compared_as_sets(corpus: list[tuple[int, int, Shape | int]]) -> None:
    """The oracle is the definition, on pairs."""
    for tree, gold in built(corpus):
        assert isinstance(gold, Bracketing)
        ours, theirs = set(tree.spans(leaves=False)), set(gold.spans)
        assert count(tree, gold) == Counts(len(ours & theirs), len(ours), len(theirs))


def test_the_three_countings_of_one_sentence() -> None:
    predicted, gold = Tree.parse("((a b) (c d))"), Tree.parse("(((a b) c) d)")
    scores = score([predicted], [gold])
    assert scores.corpus("merged") == Counts(2, 3, 3)  # ab, abcd
    assert scores.corpus("nontrivial") == Counts(1, 2, 2)
    assert scores.corpus("all") == Counts(6, 7, 7)
    assert scores.exact_match == 0


def test_the_corpus_weights_constituents_and_the_sentence_level_sentences() -> None:
    short, long = ["a"] * 3, ["a"] * 11
    scores = score([left(short), left(long)], [right(short), left(long)])
    assert scores.corpus().f1 == 11 / 12
    assert scores.sentence_f1() == (1 / 2 + 1) / 2
    assert scores.corpus("nontrivial").f1 == 9 / 10
    assert scores.sentence_f1("nontrivial") == 1 / 2
    assert scores.exact_match == 1 / 2


def test_a_sentence_in_which_nothing_counts_is_left_out_of_the_mean() -> None:
    one, two, three = (Tree.parse(text) for text in ("a", "(a b)", "((a b) c)"))
    other = Tree.parse("(a (b c))")
    scores = score([one, two, three], [one, two, other])
    assert scores.sentence_f1("nontrivial") == 0
    assert scores.sentence_f1("merged") == (1 + 1 / 2) / 2
    assert scores.sentence_f1("all") == (1 + 1 + 4 / 5) / 3
    assert scores.exact_match == 2 / 3
    assert math.isnan(score([one], [one]).sentence_f1())


def test_a_corpus_without_sentences_has_no_scores() -> None:
    for value in (Scores().exact_match, Scores().corpus().f1, Scores().corpus().precision, Scores().sentence_f1()):
        assert math.isnan(value)


@given(SHAPES)
def test_no_binary_tree_beats_the_binarised_gold(shape: Shape) -> None:
    gold = Bracketing.parse(brackets(shape))
    best = score([gold.binarised()], [gold])
    assert best.exact_match == 1
    for seed in range(5):
        for counted in COUNTED:
            found = score([uniform(gold.leaves, seed)], [gold]).corpus(counted)
            assert not found.f1 > best.corpus(counted).f1
    if len(gold) > 1:
        assert best.corpus().f1 == 2 * len(gold.spans) / (len(gold.spans) + len(gold) - 1)


def test_exact_match_against_lists_asks_for_every_list() -> None:
    gold = Bracketing.parse("(a b (c d e))")
    holds, misses = Tree.parse("(a (b (c (d e))))"), Tree.parse("((a b) ((c d) e))")
    assert score([holds, misses, Tree.parse("(((a b) c) (d e))")], [gold] * 3).exact_match == 2 / 3


def test_trees_of_different_sizes_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="a tree of 2 leaves and one of 3 cannot be compared"):
        score([Tree.parse("(a b)")], [Tree.parse("((a b) c)")])


def test_an_unknown_counting_is_answered_with_the_known_ones() -> None:
    # A type error where run-time type checks are on and see it first.
    with pytest.raises((ValueError, TypeError)):
        Scores().sentence_f1("nontrivail")  # type: ignore[arg-type]


def test_chains_of_50_000_leaves_and_thousands_of_trees_take_seconds() -> None:
    leaves = ["a"] * 50_000
    begin = time.perf_counter()
    assert score([left(leaves)], [right(leaves)]).corpus("nontrivial") == Counts(0, 49_998, 49_998)
    several = [uniform(["a"] * 1000, seed) for seed in range(200)]
    assert score(several, several).exact_match == 1
    assert time.perf_counter() - begin < 5
