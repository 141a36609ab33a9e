"""IMDB: reviews from folders in any order, tables with quotes, the splits of the published code, the real files."""

import csv
import io
import random
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import real_files
from beamtree.data.samples import Sample
from beamtree.data.tasks import imdb
from beamtree.data.words import tokenize

FILES = [
    ("aclImdb/train/neg/10_1.txt", "Bad."),
    ("aclImdb/train/neg/9_4.txt", "Poor."),
    ("aclImdb/train/pos/0_7.txt", "Good<br /><br />film."),
    ("aclImdb/test/neg/0_2.txt", "Awful."),
    ("aclImdb/test/pos/3_10.txt", "Great."),
]
OTHERS = [
    ("aclImdb/train/unsup/0_0.txt", "Who knows."),
    ("aclImdb/train/pos/._0_7.txt", "\0"),
    ("aclImdb/train/urls_pos.txt", "http://…"),
    ("aclImdb/imdb.vocab", "the"),
    ("README", "…"),
]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a<br />b", "a b"),
        ("a<br>b<BR/>c< br / >d</br>e", "a b c d e"),
        ("a <i>b</i> <brr> <3<br />", "a <i>b</i> <brr> <3 "),
    ],
)
def test_line_breaks_are_removed_and_words_stay_apart(text: str, cleaned: str) -> None:
    assert imdb.clean(text) == cleaned


@given(st.permutations(FILES + OTHERS))
def test_the_order_of_the_files_does_not_matter(files: list[tuple[str, str]]) -> None:
    assert list(imdb.read_folders(files, "aclImdb")) == [
        ("train", Sample(("poor", "."), "negative")),
        ("train", Sample(("bad", "."), "negative")),
        ("train", Sample(("good", "film", "."), "positive")),
        ("test", Sample(("awful", "."), "negative")),
        ("test", Sample(("great", "."), "positive")),
    ]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([], "aclImdb: it has no reviews.*train/pos/127_10.txt"),
        (OTHERS, "aclImdb: it has no reviews"),
        ([("train/pos/review.txt", "Good.")], "train/pos/review.txt: .*must be id and rating, as in 127_10.txt"),
        ([("train/pos/1_4.txt", "Good.")], "train/pos/1_4.txt: its rating is 4, but positive reviews .* from 7 to 10"),
        ([("test/neg/1_5.txt", "Bad.")], "test/neg/1_5.txt: its rating is 5, but negative reviews .* from 1 to 4"),
        ([("test/neg/1_4.txt", " <br />")], "test/neg/1_4.txt, line 1: the review is .* has no tokens"),
        (
            [("a/test/neg/1_4.txt", "x"), ("b/test/neg/01_3.txt", "x")],
            "b/test/neg/01_3.txt: the review is a duplicate of .*a/test/neg/1_4",
        ),
    ],
)
def test_a_bad_folder_is_refused(files: list[tuple[str, str]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        list(imdb.read_folders(files, "aclImdb"))
    assert "\n" not in str(caught.value)


@given(st.lists(st.tuples(st.sampled_from(["Positive", "Negative"]), st.text().map("a {}".format)), min_size=1))
def test_what_a_table_holds_is_read(rows: list[tuple[str, str]]) -> None:
    # The csv module itself does not preserve a zero byte or a lone carriage return in a text.
    rows = [(label, text.replace("\0", "").replace("\r", "")) for label, text in rows]
    table = io.StringIO(newline="")
    csv.writer(table, delimiter="\t", lineterminator="\n").writerows([("Sentiment", "Text"), *rows])
    lines = table.getvalue().split("\n")[:-1]
    assert list(imdb.read_tsv(lines, "test.tsv")) == [
        Sample(tuple(tokenize(imdb.clean(text))), label.lower()) for label, text in rows
    ]


def test_quotes_of_a_table_are_taken_off() -> None:
    lines = ["Sentiment\tText", 'Positive\t"Say ""yes"", on', 'two lines."', "negative\tIt's 5\"."]
    assert [" ".join(sample.tokens) for sample in imdb.read_tsv(lines, "test.tsv")] == [
        "say `` yes '' , on two lines .",
        "it 's 5 '' .",
    ]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "line 1: the file has no reviews"),
        (["Sentiment\tText"], "line 1: the file has no reviews"),
        (["Positive\tGood."], "line 1: the header should be Sentiment<TAB>Text, found 'Positive<TAB>Good.'"),
        (
            ["Sentiment\tText", "Positive\tGood.", "Neutral\tWell."],
            "line 3: unknown sentiment 'Neutral'.*negative, pos",
        ),
        (["Sentiment\tText", "Positive"], "line 2: 2 columns expected, Sentiment<TAB>Text, found 1"),
        (["Sentiment\tText", "Positive\ta\tb"], "line 2: 2 columns expected, Sentiment<TAB>Text, found 3"),
        (["Sentiment\tText", ""], "line 2: 2 columns expected, Sentiment<TAB>Text, found 0"),
        (["Sentiment\tText", "Positive\t<br />"], "line 2: the review is ' ', which has no tokens"),
        (["Sentiment\tText", 'Positive\t"a', 'b"', "Positive"], "line 4: 2 columns"),
        (["Sentiment\tText", "Positive\ta", 'Positive\t"a', "b"], "line 3: a double quote .* not closed"),
        (["Sentiment\tText", 'Positive\t"a" b'], "line 2: a double quote .* not doubled"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(lines: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"bad.tsv, {complaint}") as caught:
        list(imdb.read_tsv(lines, "bad.tsv"))
    assert "\n" not in str(caught.value)


def of_length(length: int, word: str = "a") -> Sample:
    return Sample((word,) * length, "positive")


def test_splits_are_made_by_length() -> None:
    lengths = [1, 200, 201, 300, 301, 2000]
    reviews = [(part, of_length(length, part)) for part in imdb.PARTS for length in lengths]
    original, contrast = [of_length(400, "original")], [of_length(5, "contrast")]
    made = imdb.splits(iter(reviews), iter(original), iter(contrast))
    assert made["train"] == [of_length(1, "train"), of_length(200, "train")]
    assert made["normal"] == [of_length(1, "test"), of_length(200, "test")]
    assert made["dev"] == [of_length(201, "train"), of_length(300, "train"), *original, *contrast]
    official = imdb.splits(iter(reviews), iter(original), iter(contrast), official=True)
    assert official == {**made, "dev": [*made["dev"][:2], *original, *original]}


def test_duplicates_are_the_test_samples_whose_text_is_known() -> None:
    train = [Sample(("a",), "positive"), Sample(("b",), "positive", ("c",))]
    test = [Sample(("a",), "negative"), Sample(("a",), "positive"), Sample(("b",), "positive")]
    assert imdb.duplicates(train, test) == 2
    assert imdb.duplicates(test, train) == 1


@pytest.fixture(scope="module")
def folder() -> Path:
    return real_files.find("imdb/aclImdb_labeled_50k.tar.xz").parent


def members(path: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(path, "r|xz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                yield member.name, content.read().decode()


def test_the_real_reviews_have_their_counts_and_their_overlaps(folder: Path) -> None:
    """Split at spaces: tests/data/test_real_data.py has the tokens, and the splits that depend on their number."""
    files = list(members(folder / "aclImdb_labeled_50k.tar.xz"))
    random.Random(0).shuffle(files)
    reviews = list(imdb.read_folders(files, "aclImdb", str.split))
    counts = Counter((part, sample.label) for part, sample in reviews)
    assert counts == {(part, label): 12_500 for part in imdb.PARTS for label in imdb.LABELS}
    tables = {
        name: list(imdb.read_tsv(text.splitlines(), name))
        for archive in ("contrast", "counterfactual")
        for name, text in members(folder / f"{archive}.tar.xz")
        if name.endswith(".tsv")
    }
    sizes = {"dev_original.tsv": 100, "dev_contrast.tsv": 100}
    sizes |= dict.fromkeys(["test_original.tsv", "test_contrast.tsv", "orig/test.tsv", "new/test.tsv"], 488)
    assert {name: len(tables[name]) for name in sizes} == sizes
    for original, rewritten in (
        ("dev_original", "dev_contrast"),
        ("test_original", "test_contrast"),
        ("orig/test", "new/test"),
    ):
        labels = [Counter(sample.label for sample in tables[f"{name}.tsv"]) for name in (original, rewritten)]
        assert labels[0]["positive"] == labels[1]["negative"], "each label is turned round"
    train, test = ([sample for part, sample in reviews if part == wanted] for wanted in imdb.PARTS)
    assert imdb.duplicates(train, test) == 123
