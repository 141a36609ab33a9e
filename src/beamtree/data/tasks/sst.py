r"""Stanford Sentiment Treebank (Socher et al. 2013): sentences whose every phrase has a label from 0 to 4.

A line of the files is a binary tree, `(3 (2 It) (4 (4 (2 's) (3 nice)) (2 .)))`: a node is `(label word)` or
`(label node node)`. Words are tokens of the Penn Treebank, whose escapes are undone here: `-LRB-` and `-RRB-` become
brackets, `\/` becomes `/`, and `\*` becomes `*`.

Three words of the training file have a no-break space inside, as `8 1\/2` has. Its parts become tokens of their own,
joined from left to right in the gold tree: the phrase and its label stay what they are, and the tokens are those that a
split at whitespace gives.

| | sentences, SST-5 | sentences, SST-2 | phrases, SST-5 | phrases, SST-2 |
|---|---|---|---|---|
| train | 8,544 | 6,920 | 318,582 | 98,794 |
| dev | 1,101 | 872 | 41,447 | 13,142 |
| test | 2,210 | 1,821 | 82,600 | 26,052 |
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from beamtree.data.samples import Sample, at
from beamtree.data.task import Column, Materials, Part, Task
from beamtree.trees import Tree
from beamtree.utils.checks import check_flag

LABELS_5 = ("very negative", "negative", "neutral", "positive", "very positive")
LABELS_2 = ("negative", "positive")

_LINE = "a tree such as (3 (2 It) (4 works))"

# The name of each label in the file; what has a label without a name is dropped.
_NAMES: dict[int, dict[str, str]] = {
    5: dict(zip("01234", LABELS_5, strict=True)),
    2: {"0": "negative", "1": "negative", "3": "positive", "4": "positive"},
}

# A leaf as a whole, the beginning of another node, or the end of one: any other text is an error.
_PIECE = re.compile(r"(?:\( *([0-4])(?: +([^ ()]+) *\)|(?= *[()]))|\)) *")
_OPENING = re.compile(r"\( *([^ ()]*)")


class _Node(NamedTuple):
    """A phrase: its label in the file, its tokens as a half-open span, and how many constituents end in the last."""

    label: str
    start: int
    end: int
    reduces: int


def read(
    lines: Iterable[str], where: object, *, classes: Literal[5, 2] = 5, phrases: bool = False, lower: bool = True
) -> Iterator[Sample]:
    """The sentences of a file with their gold trees and the labels of their phrases.

    With `phrases`: all labelled phrases of every tree as samples of their own.

    The phrases are all the nodes, from the sentence itself down to the single words, in the order of their opening
    brackets. What occurs twice is there twice: the paper's models are trained on all the phrases, as torchtext gives
    them with `train_subtrees=True`, and evaluated on the sentences.

    With `classes=2` neutral samples are dropped, and the two degrees of negative and of positive are joined.
    """
    if classes not in _NAMES:
        raise ValueError(f"classes is {classes!r}: it must be 5, for SST-5, or 2, for SST-2")
    check_flag("phrases", phrases)
    check_flag("lower", lower)
    names = _NAMES[classes]
    known: dict[str, tuple[str, ...]] = {}  # the tokens of each word so far: most words are frequent
    number = 0
    for number, line in enumerate(lines, start=1):
        with at(where, number):
            tokens, reduces, nodes = _parse(line, known, lower)
        labelled = {(node.start, node.end): names[node.label] for node in nodes if node.label in names}
        for node in nodes if phrases else nodes[:1]:
            if node.label in names:
                span = tuple(tokens[node.start : node.end])
                # The tree is a slice of the sentence's, less the constituents around it that end in its last token.
                tree = Tree(span, (*reduces[node.start : node.end - 1], node.reduces))
                yield Sample(span, names[node.label], tree=tree, constituents=None if phrases else labelled)
    if not number:
        with at(where, 1):
            raise ValueError(f"the file is empty: each line should be {_LINE}")


def _parse(line: str, known: dict[str, tuple[str, ...]], lower: bool) -> tuple[list[str], list[int], list[_Node]]:
    """The tokens, the number of constituents that end in each, and the nodes in the order of their brackets."""
    tokens: list[str] = []
    reduces: list[int] = []
    nodes: list[_Node] = []
    opened: list[tuple[int, int]] = []  # of each node still open its place among all, and its character
    held: list[int] = []  # how many nodes each of them holds so far
    position = 0
    while (piece := _PIECE.match(line, position)) and (opened or not tokens):
        label, word = piece.groups()
        if word is not None:
            parts = known.get(word)
            if parts is None:
                parts = known[word] = _tokens(word, lower)
                if not parts:
                    raise ValueError(f"the word at character {piece.start(2)} is blank")
            joins = [0, *[1] * (len(parts) - 1)]
            nodes.append(_Node(label, len(tokens), len(tokens) + len(parts), joins[-1]))
            tokens += parts
            reduces += joins
        elif label is not None:
            opened.append((len(nodes), position))
            held.append(-1)  # it counts itself below
            nodes.append(_Node(label, len(tokens), 0, 0))  # the rest is known at its end
        elif not opened:
            break
        else:
            place, start = opened.pop()
            if held.pop() != 2:
                raise ValueError(f"the node from character {start} to {position} must hold one word or two nodes")
            reduces[-1] += 1
            nodes[place] = nodes[place]._replace(end=len(tokens), reduces=reduces[-1])
        if held:
            held[-1] += 1
        position = piece.end()
    if position < len(line):
        raise ValueError(_complaint(line, position, complete=bool(tokens) and not opened))
    if opened:
        raise ValueError(f"unbalanced brackets: the '(' at character {opened[-1][1]} is never closed")
    if not tokens:
        raise ValueError(f"the line is empty: it should be {_LINE}")
    return tokens, reduces, nodes


def _tokens(word: str, lower: bool) -> tuple[str, ...]:
    word = word.replace("-LRB-", "(").replace("-RRB-", ")").replace("\\/", "/").replace("\\*", "*")
    return tuple((word.lower() if lower else word).split())


def _complaint(line: str, position: int, complete: bool) -> str:
    """What is wrong with the text from this character on, which is no piece of a tree."""
    if line[position] == ")":
        return f"unbalanced brackets: the ')' at character {position} closes no '('"
    if complete:
        return f"the tree is complete before character {position}: give one tree in a line"
    opening = _OPENING.match(line, position)
    if not opening:
        return f"the text at character {position} is in no node of its own: a node is (label word) or (label node node)"
    if opening[1] not in tuple("01234"):
        return f"the label at character {opening.start(1)} is {opening[1]!r}: it must be 0, 1, 2, 3 or 4"
    if ")" not in line[position:]:
        return f"unbalanced brackets: the '(' at character {position} is never closed"
    return f"the node from character {position} must hold one word or two nodes"


def _part(column: Column, file: str, classes: Literal[5, 2]) -> Part:
    def make(m: Materials) -> Mapping[str, Iterable[Sample]]:
        originals = m.originals["sst"]
        lines, where = originals.lines(file), originals.label(file)
        return {column.title: read(lines, where, classes=classes, phrases=column.title == "train")}

    # Splits that were prepared before phrases had labels have another fingerprint.
    return Part((column,), make, ("sst",), fingerprint="" if column.title == "train" else "labelled phrases")


def _task(classes: Literal[5, 2], labels: tuple[str, ...], phrases: int, dev: int, test: int) -> Task:
    return Task(
        f"sst{classes}",
        f"sentiment in {classes} classes, with gold trees: Stanford Sentiment Treebank (Socher et al. 2013)",
        labels,
        (
            _part(Column("train", "all phrases of the training sentences", phrases), "train.txt", classes),
            _part(Column("dev", "", dev), "dev.txt", classes),
            _part(Column("IID", "the test sentences", test), "test.txt", classes),
        ),
    )


TASKS = (_task(5, LABELS_5, 318_582, 1101, 2210), _task(2, LABELS_2, 98_794, 872, 1821))
