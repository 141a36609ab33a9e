"""What tests of drawings share: parses of a text, and an SVG read back."""

import random
import re
from xml.etree import ElementTree

from beamtree.trees import Tree
from beamtree.trees.parses import Parse, Parses

SVG = "{http://www.w3.org/2000/svg}"


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
    """Left-branching."""
    return Tree((leaf,) * size, (0, *[1] * (size - 1)))


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


def points(svg):
    """The corners of every line."""
    for path in read(svg).iter(f"{SVG}path"):
        yield [tuple(map(float, pair.split())) for pair in path.get("d")[1:].split(" L")]
