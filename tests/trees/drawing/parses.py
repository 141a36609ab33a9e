"""Helpers of the tests of drawings: parses with labels, and reading SVG."""

import random
import re
from xml.etree import ElementTree

from hypothesis import strategies as st

from beamtree.trees import Tree
from beamtree.trees.parses import Node, Parse, Parses

SVG = "{http://www.w3.org/2000/svg}"
DIGITS = tuple("0123456789")
SENTIMENT = ("very negative", "negative", "neutral", "positive", "very positive")
CATEGORIES = ("sport", "spam", "news")
WORDS = ("a", "[MAX", "中文", "<b>", "&%$#_{}~^\\", "🌲", "שלום", "é́", "x" * 400, "Film", "--", "\x1b[1m", "\u0301")


def make_parses(leaves, count=3, seed=0):
    """Random trees, each half as probable as the one before it."""
    source = random.Random(seed)
    total = sum(0.5**number for number in range(count))
    parses = Parses()
    for number in range(count):
        tree = Tree.from_actions([source.randrange(left) for left in range(len(leaves) - 1, 0, -1)], leaves)
        parses.append(Parse(tree, 0.5**number / total, tuple(tree.spans(leaves=False))))
    return parses


def chain(size, leaf="w"):
    """A left-branching tree."""
    return Tree((leaf,) * size, (0, *[1] * (size - 1)))


def nodes(tree, labels, all_labels, expected=None):
    """Nodes with a label each, in the order of `tree.spans()`; `expected` is by span."""
    probabilities = {label: 1 / len(all_labels) for label in all_labels}
    spans = zip(tree.spans(), labels, strict=True)
    return tuple(Node(*span, label, probabilities, expected=(expected or {}).get(span)) for span, label in spans)


def listops():
    """The inner list has its value, 4; the outer one has 5, and should have 4."""
    tree = Tree.parse("((([MAX 2) ((([MIN 4) 7) ])) ])")
    return tree, nodes(tree, "0000000" + "123" + "4" + "6" + "5", DIGITS, {(2, 6): "4", (0, 7): "4"})


@st.composite
def shapes(draw, words=WORDS, max_size=9):
    """Merges and leaves, for `Tree.from_actions`. Strategies build no trees: checks of types draw random numbers."""
    leaves = draw(st.lists(st.sampled_from(words), min_size=1, max_size=max_size))
    return [draw(st.integers(0, left - 2)) for left in range(len(leaves), 1, -1)], leaves


@st.composite
def labelled(draw, words=WORDS, max_size=9):
    """For `make_labelled`: labels are values, grades of sentiment or categories, or absent; some are expected."""
    shape = draw(shapes(words, max_size))
    all_labels = draw(st.sampled_from([(), DIGITS, ("12345678901", "7"), SENTIMENT, CATEGORIES]))
    if not all_labels:
        return shape, (), (), {}
    size = 2 * len(shape[1]) - 1
    labels = draw(st.lists(st.sampled_from(all_labels), min_size=size, max_size=size))
    return shape, labels, all_labels, draw(st.dictionaries(st.integers(0, size - 1), st.sampled_from(all_labels)))


def make_labelled(drawn):
    """A tree, and its nodes if there are labels."""
    shape, labels, all_labels, expected = drawn
    tree = Tree.from_actions(*shape)
    spans = tree.spans()
    known = {spans[index]: label for index, label in expected.items()}
    return tree, nodes(tree, labels, all_labels, known) if all_labels else ()


def read(svg):
    return ElementTree.fromstring(svg)


def titles(svg):
    return [element.text for element in read(svg).iter(f"{SVG}title")]


def spans(svg):
    """(start, end) → probability or None, from the titles."""
    found = {}
    for each in titles(svg):
        start, end, probability = re.match(r"\[(\d+), (\d+)\)(?:, probability ([\d.]+))?: ", each).groups()
        found[int(start), int(end)] = None if probability is None else float(probability)
    return found


def texts(svg):
    return [element.text for element in read(svg).iter(f"{SVG}text")]


def size(svg):
    return tuple(float(read(svg).get(side)) for side in ("width", "height"))
