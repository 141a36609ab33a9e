r"""Stanford Sentiment Treebank (Socher et al. 2013): sentences in which every phrase has a label from 0 to 4.

A line of the files is a binary tree, `(3 (2 It) (4 (4 (2 's) (3 nice)) (2 .)))`: a node is `(label word)` or
`(label node node)`. Words are tokens of the Penn Treebank. Its escapes are decoded: `-LRB-` and `-RRB-` become
brackets, `\/` becomes `/`, and `\*` becomes `*`.

Three words of the training file contain a no-break space, as in `8 1\/2`. They are split into several tokens, which are
left-branching in the gold tree: the phrase and its label are unchanged, and tokens contain no whitespace.

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
from beamtree.data.task import Column, Part, PartInputs, Task
from beamtree.trees import Tree
from beamtree.utils.checks import check_flag

LABELS_5 = ("very negative", "negative", "neutral", "positive", "very positive")
LABELS_2 = ("negative", "positive")

_LINE = "a tree such as (3 (2 It) (4 works))"

# The name of each label in the file; phrases whose label has no name are dropped.
_NAMES: dict[int, dict[str, str]] = {
    5: dict(zip("01234", LABELS_5, strict=True)),
    2: {"0": "negative", "1": "negative", "3": "positive", "4": "positive"},
}

# A complete leaf, the start of another node, or the end of one: any other text is an error.
_PIECE = re.compile(r"(?:\( *([0-4])(?: +([^ ()]+) *\)|(?= *[()]))|\)) *")
_OPENING = re.compile(r"\( *([^ ()]*)")


class _Node(NamedTuple):
    """A phrase: its label in the file, its span [start, end), and how many constituents end with its last token."""

    label: str
    start: int
    end: int
    reduces: int


def read(
    lines: Iterable[str], where: object, *, classes: Literal[5, 2] = 5, phrases: bool = False, lower: bool = True
) -> Iterator[Sample]:
    """Read the sentences of a file with their gold trees and the labels of their phrases.

    With `phrases`, every labelled phrase is a sample.

    The phrases are all nodes, from the sentence itself to single words, in the order of their opening brackets,
    including duplicates: the paper's models are trained on all phrases, as returned by torchtext with
    `train_subtrees=True`, and evaluated on sentences.

    With `classes=2`, neutral samples are dropped, and the two degrees of negative and of positive are combined.
    """
    if classes not in _NAMES:
        raise ValueError(f"classes is {classes!r}: it must be 5, for SST-5, or 2, for SST-2")
    check_flag("phrases", phrases)
    check_flag("lower", lower)
    names = _NAMES[classes]
    known: dict[str, tuple[str, ...]] = {}  # a cache of the tokens of each word
    number = 0
    for number, line in enumerate(lines, start=1):
        with at(where, number):
            tokens, reduces, nodes = _parse(line, known, lower)
        labelled = {(node.start, node.end): names[node.label] for node in nodes if node.label in names}
        for node in nodes if phrases else nodes[:1]:
            if node.label in names:
                span = tuple(tokens[node.start : node.end])
                # A slice of the sentence's tree, without the enclosing constituents that end with its last token.
                tree = Tree(span, (*reduces[node.start : node.end - 1], node.reduces))
                yield Sample(span, names[node.label], tree=tree, constituents=None if phrases else labelled)
    if not number:
        with at(where, 1):
            raise ValueError(f"the file is empty: each line should be {_LINE}")


def _parse(line: str, known: dict[str, tuple[str, ...]], lower: bool) -> tuple[list[str], list[int], list[_Node]]:
    """The tokens, the number of constituents that end with each, and the nodes in the order of their '('."""
    tokens: list[str] = []
    reduces: list[int] = []
    nodes: list[_Node] = []
    opened: list[tuple[int, int]] = []  # the index in `nodes` and the first character of each open node
    children: list[int] = []  # the number of children of each open node so far
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
            children.append(-1)  # the increment below counts the node itself
            nodes.append(_Node(label, len(tokens), 0, 0))  # end and reduces are set when it is closed
        elif not opened:
            break
        else:
            index, start = opened.pop()
            if children.pop() != 2:
                raise ValueError(f"the node from character {start} to {position} must have one word or two nodes")
            reduces[-1] += 1
            nodes[index] = nodes[index]._replace(end=len(tokens), reduces=reduces[-1])
        if children:
            children[-1] += 1
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
    """The error message for text at this character that is not part of a tree."""
    if line[position] == ")":
        return f"unbalanced brackets: the ')' at character {position} closes no '('"
    if complete:
        return f"the tree is complete before character {position}: there must be one tree per line"
    opening = _OPENING.match(line, position)
    if not opening:
        return f"the text at character {position} is not a node: a node is (label word) or (label node node)"
    if opening[1] not in tuple("01234"):
        return f"the label at character {opening.start(1)} is {opening[1]!r}: it must be 0, 1, 2, 3 or 4"
    if ")" not in line[position:]:
        return f"unbalanced brackets: the '(' at character {position} is never closed"
    return f"the node from character {position} must have one word or two nodes"


def _part(column: Column, file: str, classes: Literal[5, 2]) -> Part:
    def make(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
        raw = inputs.raw["sst"]
        lines, where = raw.lines(file), raw.label(file)
        return {column.title: read(lines, where, classes=classes, phrases=column.title == "train")}

    # Part of the cache key, since earlier versions cached these splits without labels of phrases.
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
