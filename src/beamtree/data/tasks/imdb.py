"""IMDB movie reviews (Maas et al. 2011), and reviews that people rewrote to reverse the sentiment.

Each review is a file, `train/pos/ID_RATING.txt`. The contrast set (Gardner et al. 2020) and the counterfactual set
(Kaushik et al. 2020), with the originals of both, are tables `Sentiment<TAB>Text`. The splits are those of the
published code: short reviews for training, longer ones and the contrast set's dev reviews for dev.

Some of these sets overlap with the training data, so accuracy on them is partly memorisation. Nothing is removed;
`duplicates` counts the overlap. 123 of the 25,000 test reviews are also in the training set, 64 of them in the splits
below. The reviews that people rewrote were training reviews: 315 of the 488 originals of the test tables and 63 of the
100 originals for dev are in "train".
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from beamtree.data import fields
from beamtree.data.raw import RawFiles
from beamtree.data.samples import Sample, at
from beamtree.data.task import Column, Part, PartInputs, Task
from beamtree.data.words import tokenize
from beamtree.utils.checks import check_flag, unknown

LABELS = ("negative", "positive")
PARTS = ("train", "test")

MAX_LENGTH = 200  # tokens of a review, for training and in the test set "normal"
MAX_DEV_LENGTH = 300  # training reviews longer than MAX_LENGTH and up to this are for dev

_BREAK = re.compile(r"<\s*/?\s*br\s*/?\s*>", re.IGNORECASE)
_REVIEW = re.compile(r"(?:^|[/:])(train|test)/(neg|pos)/([^/.][^/]*)$")
_FILE = re.compile(r"([0-9]+)_([0-9]+)\.txt")
_FOLDERS = {"neg": "negative", "pos": "positive"}
_RATINGS = {"negative": range(1, 5), "positive": range(7, 11)}  # reviews rated 5 and 6 were left out
_HEADER = ["Sentiment", "Text"]

Tokenize = Callable[[str], Sequence[str]]


def clean(text: str) -> str:
    """Replace line breaks, `<br />` in any spelling, by spaces."""
    return _BREAK.sub(" ", text)


def read_folders(
    files: Iterable[tuple[str, str]], where: object, tokenize: Tokenize = tokenize
) -> Iterator[tuple[str, Sample]]:
    """Read the reviews, each with its part, "train" or "test", from the names and texts of files in any order.

    The order of the reviews is always the same: train before test, negative before positive, then by id. Other files,
    such as the unlabelled reviews, are ignored.
    """
    found: list[tuple[int, int, int, str, str]] = []
    for name, text in files:
        place = _REVIEW.search(name)
        if place is None:
            continue
        part, folder, file = place.groups()
        label = _FOLDERS[folder]
        facts = _FILE.fullmatch(file)
        if facts is None:
            raise ValueError(f"{name}: the name of a review's file must be id and rating, as in 127_10.txt")
        review_id, rating = map(int, facts.groups())
        if rating not in _RATINGS[label]:
            low, high = _RATINGS[label][0], _RATINGS[label][-1]
            raise ValueError(f"{name}: its rating is {rating}, but {label} reviews are rated from {low} to {high}")
        found.append((PARTS.index(part), LABELS.index(label), review_id, name, text))
    if not found:
        raise ValueError(f"{where}: it has no reviews: they should be files such as train/pos/127_10.txt")
    found.sort()
    for before, after in pairwise(found):
        if before[:3] == after[:3]:
            raise ValueError(f"{after[3]}: the review is a duplicate of {before[3]}")
    for part_index, label_index, _, name, text in found:
        with at(name, 1):
            tokens = fields.cut("the review", clean(text), tokenize)
        yield PARTS[part_index], Sample(tokens, LABELS[label_index])


def read_tsv(lines: Iterable[str], where: object, tokenize: Tokenize = tokenize) -> Iterator[Sample]:
    """Read the reviews of a table; within double quotes, tabs and line breaks are text and quotes are doubled."""
    # Line ends are restored, since those within quotes separate words. Strict: otherwise an unclosed quote would
    # include the rest of the file.
    reader = csv.reader((line.rstrip("\r\n") + "\n" for line in lines), delimiter="\t", strict=True)
    count = -1  # the header is not a review
    while True:
        number = reader.line_num + 1
        with at(where, number):
            try:
                row = next(reader)
            except StopIteration:
                break
            except csv.Error:
                raise ValueError("a double quote before the text is not closed, or one within is not doubled") from None
            count += 1
            if not count:
                if row != _HEADER:
                    raise ValueError(f"the header should be {'<TAB>'.join(_HEADER)}, found {'<TAB>'.join(row)!r}")
                continue
            if len(row) != len(_HEADER):
                raise ValueError(f"2 columns expected, {'<TAB>'.join(_HEADER)}, found {len(row)}")
            label = row[0].lower()
            if label not in LABELS:
                raise ValueError(unknown("sentiment", row[0], LABELS))
            tokens = fields.cut("the review", clean(row[1]), tokenize)
        yield Sample(tokens, label)
    if count < 1:
        with at(where, 1):
            raise ValueError(f"the file has no reviews: after the header, each line should be {'<TAB>'.join(_HEADER)}")


def splits(
    reviews: Iterable[tuple[str, Sample]],
    dev_original: Iterable[Sample],
    dev_contrast: Iterable[Sample],
    official: bool = False,
) -> dict[str, list[Sample]]:
    """Training set, dev set and the test set "normal"; the other test sets are tables that are used unchanged.

    Dev consists of the training reviews of 201 to 300 tokens and of the contrast set's dev reviews, original and
    rewritten. With `official`, the original ones are added twice instead of the rewritten ones, as in the published
    code.
    """
    check_flag("official", official)
    made: dict[str, list[Sample]] = {"train": [], "dev": [], "normal": []}
    for part, sample in reviews:
        length = len(sample.tokens)
        if length <= MAX_LENGTH:
            made["train" if part == "train" else "normal"].append(sample)
        elif part == "train" and length <= MAX_DEV_LENGTH:
            made["dev"].append(sample)
    original = list(dev_original)
    made["dev"] += original + (original if official else list(dev_contrast))
    return made


def duplicates(train: Iterable[Sample], test: Iterable[Sample]) -> int:
    """Count the samples of `test` whose text is also in `train`, whatever the labels."""
    known = {(sample.tokens, sample.second) for sample in train}
    return sum((sample.tokens, sample.second) in known for sample in test)


def _texts(inputs: PartInputs) -> Iterator[tuple[str, str]]:
    raw = inputs.raw["imdb"]
    for number, (name, content) in enumerate(raw.members()):
        if number % 1000 == 0:
            inputs.progress("reviews", number, 50_000)
        place = f"{raw.where}:{name}"
        try:
            yield place, content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{place}: this is not UTF-8 text ({error.reason} at byte {error.start})") from None


def _table(raw: RawFiles, file: str) -> Iterator[Sample]:
    return read_tsv(raw.text(file), raw.label(file))


def _reviews(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    reviews, contrast = read_folders(_texts(inputs), inputs.raw["imdb"].where), inputs.raw["imdb-contrast"]
    dev_original, dev_contrast = (_table(contrast, f"dev_{side}.tsv") for side in ("original", "contrast"))
    made = splits(reviews, dev_original, dev_contrast, official=inputs.options["official"])
    return {"train": made["train"], "dev": made["dev"], "IID": made["normal"]}


def _rewritten(title: str, about: str, source: str, file: str) -> Part:
    return Part(
        (Column(title, about, 488),), lambda inputs: {title: _table(inputs.raw[source], file)}, (source,), files=(file,)
    )


TASKS = (
    Task(
        "imdb",
        "sentiment of movie reviews (Maas et al. 2011), with contrast and counterfactual sets",
        LABELS,
        (
            Part(
                (
                    Column("train", f"training reviews of at most {MAX_LENGTH} tokens"),
                    Column(
                        "dev", f"longer ones of at most {MAX_DEV_LENGTH} tokens, and the contrast set's dev reviews"
                    ),
                    Column("IID", f"test reviews of at most {MAX_LENGTH} tokens"),
                ),
                _reviews,
                ("imdb", "imdb-contrast"),
                options=("official",),
            ),
            _rewritten("Con. OOD", "the contrast set", "imdb-contrast", "test_contrast.tsv"),
            _rewritten("Count. OOD", "the counterfactual set", "imdb-counterfactual", "new/test.tsv"),
            _rewritten("Con. originals", "what the first was made from", "imdb-contrast", "test_original.tsv"),
            _rewritten("Count. originals", "what the second was made from", "imdb-counterfactual", "orig/test.tsv"),
        ),
        options={"official": False},
        min_count=5,
    ),
)
