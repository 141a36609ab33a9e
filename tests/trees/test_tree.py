"""Trees: one flat form behind brackets, spans and merge actions, at any depth."""

import copy
import dataclasses
import pickle
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.trees import Tree

Nested = str | tuple["Nested", "Nested"]
Merges = tuple[list[int], list[str]]  # actions and leaves
Node = tuple[tuple[int, int], int]  # the span and the height of a constituent

TOKENS = st.text(alphabet="ab0[é-()", min_size=1, max_size=4)
NESTED: st.SearchStrategy[Nested] = st.recursive(
    st.sampled_from(["a", "b", "[MAX"]), lambda children: st.tuples(children, children), max_leaves=12
)

LONG = 50_000
# Far above what linear work takes on a slow machine, far below what quadratic Python takes on a fast one.
SECONDS = 5.0


@st.composite
def merges(draw: st.DrawFn) -> Merges:
    """Random actions over random tokens, brackets among them: what `Tree.from_actions` takes.

    The tree itself is built in the test: run-time type checks look at a random item of a sequence, and
    hypothesis forbids the use of `random` while it draws.
    """
    leaves = draw(st.lists(TOKENS, min_size=1, max_size=12))
    return [draw(st.integers(0, size - 2)) for size in range(len(leaves), 1, -1)], leaves


def brackets(nested: Nested) -> str:
    return nested if isinstance(nested, str) else f"({brackets(nested[0])} {brackets(nested[1])})"


def nodes(nested: Nested, start: int = 0) -> tuple[list[Node], list[Node]]:
    """Leaves and parents of nested pairs by plain recursion: the oracle for spans and heights."""
    if isinstance(nested, str):
        return [((start, start + 1), 0)], []
    left_leaves, left_parents = nodes(nested[0], start)
    middle = start + len(left_leaves)
    right_leaves, right_parents = nodes(nested[1], middle)
    leaves = left_leaves + right_leaves
    height = 1 + max((left_parents or left_leaves)[-1][1], (right_parents or right_leaves)[-1][1])
    return leaves, [*left_parents, *right_parents, ((start, start + len(leaves)), height)]


def merge(actions: list[int]) -> list[tuple[int, int]]:
    """The span that each action creates, by definition: elements j and j+1 are replaced by their parent."""
    sequence = [(position, position + 1) for position in range(len(actions) + 1)]
    made = []
    for action in actions:
        made.append((sequence[action][0], sequence[action + 1][1]))
        sequence[action : action + 2] = made[-1:]
    return made


def all_spans(size: int) -> list[tuple[int, int]]:
    return [(start, end) for start in range(size) for end in range(start + 1, size + 1)]


@given(merges())
def test_parsing_the_printed_tree_gives_it_back(built: Merges) -> None:
    tree = Tree.from_actions(*built)
    assert Tree.parse(str(tree)) == tree


@given(NESTED)
def test_printing_a_parsed_text_gives_it_back(nested: Nested) -> None:
    assert str(Tree.parse(brackets(nested))) == brackets(nested)


@pytest.mark.parametrize("text", ["( ( a b ) c )", "((a b)c)", "\n((a\tb)\n c) ", "((a b) c)"])
def test_whitespace_around_brackets_is_free(text: str) -> None:
    assert str(Tree.parse(text)) == "((a b) c)"


def test_a_single_token_is_a_tree() -> None:
    tree = Tree.parse("a")
    assert (tree.leaves, len(tree), tree.is_leaf, tree.height) == (("a",), 1, True, 0)
    assert (tree.spans(), tree.spans(leaves=False), tree.actions()) == ([(0, 1)], [], [])
    assert (tree.left, tree.right) == (None, None)


def test_escapes_stand_for_brackets() -> None:
    assert Tree.parse("(-LRB- (a -RRB-))").leaves == ("(", "a", ")")


def test_brackets_among_the_leaves_print_as_escapes() -> None:
    assert str(Tree.from_actions([0, 0], ["(", ":)", "a"])) == "((-LRB- :-RRB-) a)"


@given(NESTED)
def test_leaves_keep_their_order(nested: Nested) -> None:
    text = brackets(nested)
    tree = Tree.parse(text)
    assert list(tree.leaves) == text.replace("(", " ").replace(")", " ").split()
    assert len(tree) == len(tree.leaves)


@given(NESTED)
def test_spans_are_leaves_then_parents_in_post_order(nested: Nested) -> None:
    leaves, parents = nodes(nested)
    tree = Tree.parse(brackets(nested))
    assert tree.spans() == [span for span, _ in leaves + parents]
    assert tree.spans(leaves=False) == [span for span, _ in parents]


@given(NESTED)
def test_heights_are_aligned_with_spans(nested: Nested) -> None:
    leaves, parents = nodes(nested)
    tree = Tree.parse(brackets(nested))
    assert tree.heights() == [height for _, height in leaves + parents]
    assert tree.heights(leaves=False) == [height for _, height in parents]
    assert tree.height == tree.heights()[-1]


@given(st.tuples(NESTED, NESTED))
def test_left_and_right_are_the_subtrees_of_the_root(nested: tuple[Nested, Nested]) -> None:
    tree = Tree.parse(brackets(nested))
    assert not tree.is_leaf
    assert tree.left == Tree.parse(brackets(nested[0]))
    assert tree.right == Tree.parse(brackets(nested[1]))


@given(merges())
def test_actions_rebuild_the_tree(built: Merges) -> None:
    tree = Tree.from_actions(*built)
    assert Tree.from_actions(tree.actions(), tree.leaves) == tree


@given(merges())
def test_every_action_makes_a_constituent_of_the_tree(built: Merges) -> None:
    actions, leaves = built
    assert sorted(merge(actions)) == sorted(Tree.from_actions(actions, leaves).spans(leaves=False))


@given(merges())
def test_canonical_actions_follow_the_order_of_spans(built: Merges) -> None:
    tree = Tree.from_actions(*built)
    assert merge(tree.actions()) == tree.spans(leaves=False)


@given(merges(), st.data())
def test_the_order_of_independent_merges_does_not_matter(built: Merges, data: st.DataObject) -> None:
    tree = Tree.from_actions(*built)
    wanted, sequence, actions = set(tree.spans()), tree.spans()[: len(tree)], []
    while len(sequence) > 1:
        parents = [(left[0], right[1]) for left, right in pairwise(sequence)]
        action = data.draw(st.sampled_from([j for j, parent in enumerate(parents) if parent in wanted]))
        sequence[action : action + 2] = [parents[action]]
        actions.append(action)
    assert Tree.from_actions(actions, tree.leaves) == tree


def test_leaves_default_to_their_positions() -> None:
    assert str(Tree.from_actions([1, 0])) == "(0 (1 2))"
    assert str(Tree.from_actions([])) == "0"


@given(merges(), st.data())
def test_spans_in_any_order_rebuild_the_tree(built: Merges, data: st.DataObject) -> None:
    """With or without the leaves' spans, and however often a span is repeated."""
    tree = Tree.from_actions(*built)
    spans = tree.spans(leaves=data.draw(st.booleans()))
    shuffled = data.draw(st.permutations(spans + spans[::2]))
    assert Tree.from_spans(shuffled, tree.leaves) == tree


@given(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.sampled_from(all_spans(n))))))
def test_spans_are_a_tree_or_an_error(case: tuple[int, set[tuple[int, int]]]) -> None:
    """Whatever set of spans is accepted is the tree's own set of spans, nothing added or lost."""
    size, spans = case
    leaves = ["x"] * size
    try:
        tree = Tree.from_spans(spans, leaves)
    except ValueError:
        parents = {span for span in spans if span[1] - span[0] > 1}
        crossing = any(a < c < b < d for a, b in parents for c, d in parents)
        assert crossing or len(parents) != size - 1
    else:
        assert set(tree.spans()) == spans | {(i, i + 1) for i in range(size)}


@given(merges())
def test_new_leaves_keep_the_shape(built: Merges) -> None:
    tree = Tree.from_actions(*built)
    renamed = tree.with_leaves([f"w{position}" for position in range(len(tree))])
    assert renamed.spans() == tree.spans()
    assert renamed.with_leaves(tree.leaves) == tree


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 1), (3, 2), (4, 5), (5, 14), (6, 42)])
def test_all_orders_of_merges_make_catalan_many_trees(size: int, count: int) -> None:
    """Trees are equal if and only if their shapes are, whatever the merge order."""
    orders = product(*(range(choices) for choices in range(size - 1, 0, -1)))
    assert len({Tree.from_actions(actions) for actions in orders}) == count


def test_equal_trees_are_one_key_and_other_shapes_and_leaves_are_others() -> None:
    texts = ["((a b) c)", "( ( a b ) c )", "(a (b c))", "((a b) d)"]
    assert len({Tree.parse(text) for text in texts}) == 3


def test_a_tree_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tree.parse("(a b)").leaves = ("c", "d")  # type: ignore[misc]


def test_repr_is_the_call_that_makes_the_tree() -> None:
    assert repr(Tree.parse("((a b) c)")) == "Tree.parse('((a b) c)')"


def test_repr_of_a_long_tree_is_short() -> None:
    assert repr(Tree.from_actions([0] * 99)) == "<Tree of 100 leaves, height 99>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text '' is empty: it must be a tree"),
        (" \n", "is empty: it must be a tree"),
        ("(a b", r"the '\(' at character 0 is never closed"),
        ("(a (b c)", r"the '\(' at character 0 is never closed"),
        (")", r"the '\)' at character 0 closes no '\('"),
        ("(a b))", r"the '\)' at character 5 closes no '\('"),
        ("()", "the bracket from character 0 to 1 holds 0 constituents: it must hold exactly two"),
        ("(a)", "the bracket from character 0 to 2 holds 1 constituent: it must hold exactly two"),
        ("(a (b c d))", "the bracket from character 3 to 9 holds 3 constituents: it must hold exactly two"),
        ("(a b) c", "complete before 'c' at character 6: give one tree"),
        ("(a b)(c d)", r"complete before '\(' at character 5: give one tree"),
        ("a b", "complete before 'b' at character 2: give one tree"),
    ],
)
def test_a_text_that_is_not_one_binary_tree_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.parse(text)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([2, 0], "action 2 at step 0 is out of range: with 3 elements left it must be from 0 to 1"),
        ([0, 1], "action 1 at step 1 is out of range: with 2 elements left it must be from 0 to 0"),
        ([0, -1], "action -1 at step 1 is out of range"),
    ],
)
def test_an_action_out_of_range_is_named_with_its_step(actions: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.from_actions(actions)


@pytest.mark.parametrize("leaves", [[], ["a", "b"], ["a", "b", "c", "d"]])
def test_actions_and_leaves_must_agree_in_number(leaves: list[str]) -> None:
    with pytest.raises(ValueError, match=f"2 actions build a tree of 3 leaves, got {len(leaves)} leaves"):
        Tree.from_actions([0, 0], leaves)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 2), (1, 3), (0, 4)], r"span \(1, 3\) does not join two neighbouring constituents"),
        ([(0, 4)], r"span \(0, 4\) does not join two neighbouring constituents"),
        (
            [(0, 2), (2, 4)],
            "the spans leave 2 separate constituents: a binary tree over 4 leaves has 3 spans",
        ),
        ([(0, 2), (0, 3)], r"the spans leave 2 separate .* the last of them \(0, 4\)"),
        ([], "the spans leave 4 separate constituents"),
        ([(0, 5)], r"span \(0, 5\) is out of range for 4 leaves"),
        ([(-1, 2)], r"span \(-1, 2\) is out of range for 4 leaves"),
        ([(2, 2)], r"span \(2, 2\) is out of range .* needs 0 <= start < end <= 4"),
    ],
)
def test_spans_that_are_not_one_binary_tree_are_refused(spans: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.from_spans(spans, ["a", "b", "c", "d"])


def test_with_leaves_wants_as_many_leaves() -> None:
    with pytest.raises(ValueError, match="a tree of 2 leaves needs as many new leaves, got 3"):
        Tree.parse("(a b)").with_leaves(["a", "b", "c"])


@pytest.mark.parametrize("leaf", ["", " ", "a b", "a\n"])
@pytest.mark.parametrize(
    "build",
    [
        lambda leaves: Tree.from_actions([0], leaves),
        lambda leaves: Tree.from_spans([(0, 2)], leaves),
        lambda leaves: Tree.parse("(a b)").with_leaves(leaves),
    ],
    ids=["from_actions", "from_spans", "with_leaves"],
)
def test_a_leaf_is_a_string_without_whitespace(build: Callable[[Sequence[object]], Tree], leaf: object) -> None:
    with pytest.raises(ValueError, match=r"leaf 1 is .* must be a non-empty string without whitespace"):
        build(["a", leaf])


def test_a_leaf_that_is_no_string_is_refused() -> None:
    # A TypeError where run-time type checks are on and see it first.
    with pytest.raises((ValueError, TypeError)):
        Tree.from_actions([0], [1, 2])  # type: ignore[list-item]


def test_no_leaves_are_no_tree() -> None:
    with pytest.raises(ValueError, match="a tree needs at least one leaf"):
        Tree.from_spans([], [])


@pytest.mark.parametrize("reduces", [(), (1,), (0, 1, 0), (0, 0), (1, 0), (-1, 2)])
def test_a_shape_that_does_not_fit_the_leaves_is_refused(reduces: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="the shape given for 2 leaves is not one binary tree"):
        dataclasses.replace(Tree.parse("(a b)"), reduces=reduces)


@dataclasses.dataclass
class Chain:
    """A tree of 50,000 leaves and as many levels, with its expected properties."""

    text: str
    actions: list[int]
    spans: list[tuple[int, int]]  # of the parents

    def __post_init__(self) -> None:
        self.tree = Tree.parse(self.text)
        self.twin = Tree.parse(self.text)  # equal, but another object


@pytest.fixture(scope="module", params=["left", "right"])
def chain(request: pytest.FixtureRequest) -> Chain:
    if request.param == "left":
        text = "(" * (LONG - 1) + "0" + "".join(f" {i})" for i in range(1, LONG))
        return Chain(text, [0] * (LONG - 1), [(0, end) for end in range(2, LONG + 1)])
    text = "".join(f"({i} " for i in range(LONG - 1)) + str(LONG - 1) + ")" * (LONG - 1)
    actions = list(range(LONG - 2, -1, -1))
    return Chain(text, actions, [(start, LONG) for start in actions])


@pytest.mark.parametrize(
    "holds",
    [
        pytest.param(lambda chain: Tree.parse(chain.text) == chain.tree, id="parse"),
        pytest.param(lambda chain: str(chain.tree) == chain.text, id="str"),
        pytest.param(lambda chain: len(repr(chain.tree)) < 80, id="repr"),
        pytest.param(lambda chain: hash(chain.tree) == hash(chain.twin), id="hash"),
        pytest.param(lambda chain: chain.tree == chain.twin, id="equality"),
        pytest.param(lambda chain: chain.tree.spans()[LONG:] == chain.spans, id="spans"),
        pytest.param(lambda chain: chain.tree.heights(leaves=False) == list(range(1, LONG)), id="heights"),
        pytest.param(lambda chain: chain.tree.height == LONG - 1, id="height"),
        pytest.param(lambda chain: {len(chain.tree.left), len(chain.tree.right)} == {1, LONG - 1}, id="subtrees"),
        pytest.param(lambda chain: chain.tree.actions() == chain.actions, id="actions"),
        pytest.param(lambda chain: Tree.from_actions(chain.actions) == chain.tree, id="from_actions"),
        pytest.param(lambda chain: Tree.from_spans(chain.spans, chain.tree.leaves) == chain.tree, id="from_spans"),
        pytest.param(lambda chain: chain.tree.with_leaves(chain.tree.leaves) == chain.tree, id="with_leaves"),
        pytest.param(lambda chain: pickle.loads(pickle.dumps(chain.tree)) == chain.tree, id="pickle"),
        pytest.param(lambda chain: copy.deepcopy(chain.tree) == chain.tree, id="deepcopy"),
    ],
)
def test_a_chain_of_50_000_leaves_is_no_trouble(chain: Chain, holds: Callable[[Chain], bool]) -> None:
    """Nothing recurses, and nothing takes quadratic time."""
    start = time.perf_counter()
    assert holds(chain)
    assert time.perf_counter() - start < SECONDS


def test_a_notebook_draws_a_tree():
    tree = Tree.parse("((a b) <c>)")
    assert tree._repr_svg_().startswith("<svg")
    assert "&lt;c&gt;" in tree._repr_svg_()
    assert tree._repr_svg_() in tree._repr_html_()
