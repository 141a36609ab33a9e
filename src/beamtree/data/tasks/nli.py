"""Natural language inference: does a premise entail a hypothesis, contradict it, or neither?

The original files are JSONL, with the fields `gold_label`, `sentence1` (the premise) and `sentence2` (the hypothesis);
others are ignored. This is the format of MultiNLI (Williams et al. 2018), of SNLI (Bowman et al. 2015) and of the
released stress tests (Naik et al. 2018). SICK (Marelli et al. 2014) is read in this format or in that of its authors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from beamtree.data import fields, holdout
from beamtree.data.samples import Sample, at
from beamtree.data.task import Column, Part, PartInputs, Task
from beamtree.data.tasks import stress
from beamtree.data.words import tokenize
from beamtree.utils.checks import check_integer, unknown

LABELS = ("entailment", "neutral", "contradiction")

_NO_LABEL = "-"  # if the annotators did not agree
_FIELDS = ("gold_label", "sentence1", "sentence2")
_SICK_COLUMNS = ("sentence_A", "sentence_B", "entailment_label", "SemEval_set")
_SICK_PARTS = {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}


def read(lines: Iterable[str], where: object, tokenize: Callable[[str], Sequence[str]]) -> Iterator[Sample]:
    """Read the pairs of a file, except those with label "-", on which the annotators did not agree.

    An empty side is an error: SICK and the dev sets of MultiNLI and SNLI have none.
    """
    number = 0
    for number, line in enumerate(lines, start=1):
        with at(where, number):
            pair = fields.parse(line)
            for name in _FIELDS:
                if name not in pair:
                    raise ValueError(f"the field {name!r} is missing: each line needs {', '.join(_FIELDS)}")
            label = pair["gold_label"]
            if label == _NO_LABEL:
                continue
            if not isinstance(label, str) or label not in LABELS:
                raise ValueError(unknown("label", label, (*LABELS, _NO_LABEL)))
            first, second = (fields.cut(name, pair[name], tokenize) for name in ("sentence1", "sentence2"))
        yield Sample(first, label, second)
    if not number:
        with at(where, 1):
            raise ValueError(f"the file is empty: each line should be a JSON object with {', '.join(_FIELDS)}")


def read_sick(
    lines: Iterable[str], where: object, part: str, tokenize: Callable[[str], Sequence[str]]
) -> Iterator[Sample]:
    """Read the pairs of "train", "dev" or "test" from the table of SICK's authors, which contains all three."""
    set_name = _SICK_PARTS[part]
    rows = (line.split("\t") for line in lines)
    header = next(rows, [])
    indices = [header.index(name) if name in header else -1 for name in _SICK_COLUMNS]
    if -1 in indices:
        with at(where, 1):
            raise ValueError(f"the header should name the columns {', '.join(_SICK_COLUMNS)}, found {header}")
    for number, row in enumerate(rows, start=2):
        with at(where, number):
            if len(row) != len(header):
                raise ValueError(f"{len(header)} columns expected, as in line 1, found {len(row)}")
            premise, hypothesis, label, found = (row[index] for index in indices)
            if found != set_name:
                continue
            if label.lower() not in LABELS:
                raise ValueError(unknown("label", label, LABELS))
            first, second = (fields.cut("the sentence", side, tokenize) for side in (premise, hypothesis))
        yield Sample(first, label.lower(), second)


def hold_out(
    samples: Iterable[Sample], count: int = 10_000, seed: int = 101, max_length: int = 150
) -> tuple[list[Sample], list[Sample]]:
    """Divide the training file of MultiNLI into training and dev set: the original dev sets are the paper's test sets.

    Pairs with a side of `max_length` tokens or more are left out first. Then `count` samples are held out for dev by
    `beamtree.data.holdout.at_random`, or a tenth if there are fewer than 10 × `count`.
    """
    check_integer("max_length", max_length, at_least=1)
    short = [s for s in samples if len(s.tokens) < max_length and len(s.second or ()) < max_length]
    return holdout.at_random(short, count, seed)


def _train(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    train, dev = hold_out(_read(inputs, "multinli", "multinli_1.0_train.jsonl"))
    return {"train": train, "dev": dev}


def _read(inputs: PartInputs, source: str, file: str) -> Iterator[Sample]:
    raw = inputs.raw[source]
    return read(raw.lines(file), raw.label(file), tokenize)


def _part(title: str, source: str, file: str, count: int | None = None, about: str = "") -> Part:
    return Part(
        (Column(title, about, count),), lambda inputs: {title: _read(inputs, source, file)}, (source,), files=(file,)
    )


def _ours(title: str, change: Callable[[Iterable[Sample]], Iterable[Sample]], side: str) -> Part:
    column = Column(f"{title} {side} (ours)", f"our version of {title} {side}: see beamtree.data.tasks.stress")
    return Part((column,), lambda inputs: {column.title: change(inputs.load(side))}, ("multinli",))


def _sick(part: str, count: int) -> Part:
    file = f"sick_{part}.jsonl"

    def make(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
        raw = inputs.raw["sick"]
        if "SICK.txt" in raw.actual(file):
            return {part: read_sick(raw.lines(file), raw.label(file), part, tokenize)}
        return {part: _read(inputs, "sick", file)}

    return Part((Column(part, "", count),), make, ("sick",))


_SIDES = {"M": "matched", "MM": "mismatched"}
# The released stress tests; the paper reports the first two.
_STRESS = {
    "Len": "length_mismatch",
    "Neg": "negation",
    "Antonym": "antonym",
    "Overlap": "taut2",
    "Swap": "dev_gram_swap",
    "Keyboard": "dev_gram_keyboard",
    "Content swap": "dev_gram_contentword_swap_perturbed",
    "Function swap": "dev_gram_functionword_swap_perturbed",
}
_MNLI = (
    Part(
        (
            Column("train", "fewer than 150 tokens on either side"),
            Column("dev", "10,000 pairs of the training file, or a tenth of a smaller one", 10_000),
        ),
        _train,
        ("multinli",),
    ),
    _part("M", "multinli", "multinli_1.0_dev_matched.jsonl", 9815, "the matched dev set"),
    _part("MM", "multinli", "multinli_1.0_dev_mismatched.jsonl", 9832, "the mismatched dev set"),
    *(
        _part(f"{title} {side}", "nli-stress", f"multinli_0.9_{kind}_{word}.jsonl", about="released stress test")
        for title, kind in _STRESS.items()
        for side, word in _SIDES.items()
    ),
    _part("Numerical", "nli-stress", "multinli_0.9_quant_hard.jsonl", about="released stress test"),
    *(_ours("Len", stress.length, side) for side in _SIDES),
    *(_ours("Neg", stress.negation, side) for side in _SIDES),
)
_SNLI = {"train": 549_367, "dev": 9842, "test": 9824}

TASKS = (
    Task(
        "mnli", "inference, MultiNLI (Williams et al. 2018), with stress tests", LABELS, _MNLI, min_count=4, pair=True
    ),
    Task(
        "snli",
        "inference, SNLI (Bowman et al. 2015)",
        LABELS,
        tuple(_part(name, "snli", f"snli_1.0_{name}.jsonl", count) for name, count in _SNLI.items()),
        min_count=4,
        pair=True,
    ),
    Task(
        "sick",
        "inference, SICK (Marelli et al. 2014)",
        LABELS,
        tuple(_sick(part, count) for part, count in (("train", 4439), ("dev", 495), ("test", 4906))),
        pair=True,
    ),
)
