"""Your own tables: with or without header, quotes, the same content in three formats, an error if it is ambiguous."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import real_files
from beamtree.data import tables
from beamtree.data.samples import Sample
from beamtree.data.tables import Kind
from beamtree.trees import Tree

# A prefix, since otherwise the first text could be the name of a column, or all texts could be numbers.
WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"])).map(lambda word: f"x{word}")
TEXT = st.lists(WORD, min_size=1, max_size=6).map(" ".join)
CSV_TEXT = st.lists(st.one_of(WORD, st.sampled_from(['"', ",", "\n", 'a"b'])), min_size=1).map(
    lambda w: f"x {' '.join(w)}"
)
LABEL = st.sampled_from(["good", "bad", "so so"])


def read(text: str, kind: Kind = "tsv") -> list[Sample]:
    return list(tables.read(text.split("\n"), "own", kind))


def samples(rows: list[tuple[str, str]]) -> list[Sample]:
    return [Sample(tuple(text.split()), label) for text, label in rows]


GOOD = samples([("a fine film", "good"), ("not so fine", "bad")])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tsv", "a fine film\tgood\nnot so fine\tbad"),
        ("tsv", "text\tlabel\na fine film\tgood\nnot so fine\tbad"),
        ("tsv", "Sentiment\tText\ngood\ta fine film\nbad\tnot so fine"),
        ("tsv", 'Source\tTarget\n"a fine film"\tgood\nnot so fine\t"bad"'),
        ("csv", "a fine film,good\nnot so fine,bad"),
        ("csv", "id, Sentence , LABEL\n1,a fine film,good\n2,not so fine, bad "),
        ("csv", '"text","label"\n"a fine film","good"\n"not\nso fine","bad"'),
        ("csv", "\ufefftext,label\n\na fine film,good\n  \nnot so fine,bad\n"),
        ("tsv", "\ufeffa fine film\tgood\n\nnot so fine\tbad\n"),
        ("jsonl", '{"text": "a fine film", "label": "good"}\n{"text": "not so fine", "label": "bad"}'),
        ("jsonl", '{"Target": "good", "id": 1, "premise": "a fine film"}\n\n{"text": "not so fine", "label": "bad"}\n'),
    ],
)
def test_the_same_samples_in_many_forms(kind: Kind, text: str) -> None:
    assert read(text, kind) == GOOD


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tsv", "it rains\tit is wet\tentailment"),
        ("csv", "gold_label,sentence1,sentence2\nentailment,it rains,it is wet"),
        ("csv", "hypothesis,label,premise\nit is wet,entailment,it rains"),
        ("jsonl", '{"label": "entailment", "text": "it rains", "text2": "it is wet"}'),
    ],
)
def test_pairs(kind: Kind, text: str) -> None:
    assert read(text, kind) == [Sample(("it", "rains"), "entailment", ("it", "is", "wet"))]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tsv", "text\ttree\tlabel\na b c\t(a (b c))\tx"),
        ("tsv", "label\ttrees\nx\t( a ( b c ) )"),
        ("csv", "Tree1,label\n(a(b c)),x"),
        ("jsonl", '{"tree": "(a (b c))", "label": "x"}'),
        ("jsonl", '{"label": "x", "sentence": "a b c", "tree": "(((a)) (b c))"}'),
    ],
)
def test_gold_trees_have_a_column_and_may_be_the_text(kind: Kind, text: str) -> None:
    assert read(text, kind) == [Sample(("a", "b", "c"), "x", tree=Tree.parse("(a (b c))"))]


@pytest.mark.parametrize("texts", [("text\ttext2\t", "a b c\td e\t"), ("", "")])
def test_pairs_have_a_gold_tree_for_each_text(texts: tuple[str, str]) -> None:
    [sample] = read(f"{texts[0]}tree1\ttree2\tlabel\n{texts[1]}((a b) c)\t(d e)\tx")
    assert sample == Sample(("a", "b", "c"), "x", ("d", "e"), Tree.parse("((a b) c)"), Tree.parse("(d e)"))


def test_brackets_of_more_than_two_constituents_branch_to_the_left() -> None:
    [sample] = read("tree\tlabel\n(a (b c d) e)\tx")
    assert sample.tree == Tree.parse("((a ((b c) d)) e)")


def test_leaves_are_compared_with_the_tokens_of_the_tokenizer() -> None:
    lines = ["text\ttree\tlabel", 'It isn\'t "so" (bad)\t(It is n\'t " so " -LRB- bad -RRB-)\tx']
    [sample] = tables.read(lines, "own", "tsv", "words")
    assert sample.tokens == ("it", "is", "n't", "``", "so", "''", "(", "bad", ")")
    assert sample.tree is not None
    assert sample.tree.leaves == sample.tokens
    [of_leaves] = tables.read(["tree\tlabel", "(Don't (Stop .))\tx"], "own", "tsv", "words")
    assert of_leaves.tokens == ("don't", "stop", "."), "leaves are tokens: they are not divided again"
    with pytest.raises(ValueError, match=r"^own, line 2: leaf 0 of the tree is 'It', but token 0 of the text is 'it'"):
        list(tables.read(["text\ttree\tlabel", "it rains\t(It rains)\tx"], "own", "tsv", "spaces"))


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        ("tsv", "text\ttree\tlabel\na b\t(a b)\tx\na b\t(a c)\tx", "line 3: leaf 1 of the tree is 'c', but token 1 of"),
        (
            "tsv",
            "text\ttree\tlabel\na b c\t(a b)\tx",
            "line 2: the tree has 2 leaves and the text 3 tokens: the leaves",
        ),
        ("tsv", "text\ttree\tlabel\na b\t(a b\tx", "line 2: the tree: unbalanced brackets: the '(' at character 0"),
        (
            "tsv",
            "text\ttree\tlabel\na b\ta b\tx",
            "line 2: the tree: the brackets are complete before 'b' at character",
        ),
        ("tsv", "tree\tlabel\n(a b)\tx\n\tx", "line 3: the tree: a bracketing needs at least one leaf, got none"),
        ("tsv", "tree\tlabel\n(a ())\tx", "line 2: the tree: the bracket from character 3 to 4 is empty"),
        (
            "tsv",
            "text\ttext2\ttree\tlabel\na\tb\ta\tx",
            "line 1: 2 texts and 1 tree: every text needs a tree, in the col",
        ),
        ("tsv", "text\ttree\ttree2\tlabel\na\ta\tb\tx", "line 1: 1 text and 2 trees: every text needs a tree"),
        ("tsv", "tree\ttree1\tlabel\na\ta\tx", "line 1: 'tree' and 'tree1' are names for the same column"),
        ("tsv", "tree\tclass\n(a b)\tx", "line 1: 'tree' is the name of a column, but a header must name both a text"),
        ("jsonl", '{"tree": 3, "label": "x"}', "line 1: the tree is 3: it must be brackets such as '((a b) c)'"),
        (
            "jsonl",
            '{"text": "a", "tree": "a", "label": "x"}\n{"text": "a", "label": "x"}',
            "line 2: 1 of the trees expected, as in line 1, found 0",
        ),
    ],
)
def test_a_tree_that_does_not_fit_is_refused_with_its_place(kind: Kind, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'own, {complaint}')}") as refused:
        read(text, kind)
    assert "\n" not in str(refused.value)


def test_labels_of_json_may_be_numbers() -> None:
    lines = [json.dumps({"text": "a", "label": label}) for label in (3, 0.5, True, "3 ")]
    assert [sample.label for sample in tables.read(lines, "own", "jsonl")] == ["3", "0.5", "true", "3"]


def test_the_tokenizer_is_the_caller_s() -> None:
    [sample] = tables.read(["Wet\tyes"], "own", "tsv", lambda text: list(text.lower()))
    assert sample == Sample(("w", "e", "t"), "yes")


@given(st.lists(st.tuples(TEXT, LABEL), min_size=1))
def test_a_tsv_is_read_as_it_was_written(rows: list[tuple[str, str]]) -> None:
    assert read("\n".join(["text\tlabel", *(f"{text}\t{label}" for text, label in rows)])) == samples(rows)


@given(st.lists(st.tuples(st.one_of(TEXT, CSV_TEXT), LABEL), min_size=1))
def test_a_csv_is_read_as_it_was_written(rows: list[tuple[str, str]]) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("text", "label"), *rows])
    assert read(file.getvalue(), "csv") == samples(rows)


@given(st.lists(st.tuples(st.one_of(TEXT, CSV_TEXT), LABEL), min_size=1))
def test_a_jsonl_is_read_as_it_was_written(rows: list[tuple[str, str]]) -> None:
    assert read("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows), "jsonl") == samples(rows)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ('"He said ""no"""', 'He said "no"'),
        ('"No," he said', '"No," he said'),
        ('"Yes" and "no"', '"Yes" and "no"'),
        ('5" floppy', '5" floppy'),
        ('"', '"'),
        ('""""', '"'),
    ],
)
def test_quotes_in_a_tsv_are_text_unless_they_enclose_the_cell(cell: str, text: str) -> None:
    assert read(f"text\tlabel\n{cell}\tgood") == samples([(text, "good")])


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        ("tsv", "text\tlabel\na\tgood\nb", "line 3: 2 columns expected, as in line 1, found 1"),
        ("tsv", "a\tgood\n\nb\tbad\tworse", "line 3: 2 columns expected, as in line 1, found 3"),
        ("csv", 'text,label\n"a\nb",good\nc,', "line 4: the label is empty"),
        ("csv", "text,label\n , good", "line 2: the text is ' ', which has no tokens"),
        ("csv", 'text,label\na,good\n"b,bad\nc,bad', "line 3: invalid CSV (unexpected end of data)"),
        ("csv", 'text,label\n"a" b,good', "line 2: invalid CSV (',' expected after '\"')"),
        ("tsv", "", "line 1: the file has no samples"),
        ("csv", "text,label", "line 1: the file has no samples"),
        ("jsonl", "", "line 1: the file has no samples"),
        ("csv", "a\nb", "line 1: 1 column and no header"),
        ("csv", "1,a,good,x", "line 1: 4 columns and no header"),
        ("csv", "review,sentiment\na fine film,good", "line 1: 'sentiment' is the name of a column, but a header must"),
        ("csv", "a,b,c,label", "line 1: 'label' is the name of a column, but a header must name both a text"),
        ("csv", "text,label,gold_label\na,b,c", "line 1: 'label' and 'gold_label' are names for the same column"),
        (
            "jsonl",
            '{"text": "a", "label": "x"}\n{"text": "a"}',
            "line 2: a text (text, sentence, sentence1, premise, so",
        ),
        ("jsonl", "{}", "line 1: a text (text, sentence, sentence1, premise, source) and a label (label, gold_label"),
        ("jsonl", '{"text": "a", "label": null}', "line 1: the label is null: it must be a string or a number"),
        ("jsonl", '{"text": 3, "label": "x"}', "line 1: the text is 3: it must be a string"),
        ("jsonl", '{"text": "a", "label": "x"', "line 1: invalid JSON at character 26"),
        ("jsonl", '{"text": "a", "label": NaN}', "line 1: invalid JSON: NaN is not a JSON value"),
        ("jsonl", '"a"', "line 1: a JSON object in braces expected"),
        (
            "jsonl",
            '{"text": "a", "label": "x"}\n{"text": "a", "text2": "b", "label": "x"}',
            "line 2: 1 of the texts expected, as in line 1, found 2",
        ),
    ],
)
def test_a_bad_line_is_refused_with_its_place(kind: Kind, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"own, {complaint}")) as refused:
        read(text, kind)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("good\ta fine film\nbad\tnot so fine", "the last column looks like a text rather than a label"),
        ("good\ta fine film", "the last column looks like a text rather than a label"),
        ("good\tfine\nbad\tawful\ngood\tnice", "the last column looks like a text rather than a label"),
        ("yes\tit rains\tit is wet\nno\tit rains\tit snows", "the last column looks like a text rather than a label"),
        (
            "it rains a lot\tyes\tit is wet\nit is dry\tno\tit snows",
            "the last column looks like a text rather than a label",
        ),
        ("1\tfine\n0\tawful", "a column before the last has only numbers instead of texts"),
        ("1\ta fine film\tgood\n2\tnot so fine\tbad", "a column before the last has only numbers"),
    ],
)
def test_columns_in_another_order_need_a_header(text: str, complaint: str) -> None:
    with pytest.raises(
        ValueError, match=f"own, line 1: {complaint}.* no header: add a header line such as label<TAB>t"
    ):
        read(text)
    width = text.split("\n")[0].count("\t") + 1
    header = "\t".join([f"column {number}" for number in range(width - 2)] + ["text", "label"])
    assert len(read(f"{header}\n{text}")) == len(text.split("\n"))


def test_a_thousand_rows_are_enough_to_know_the_columns_and_the_rest_follows() -> None:
    lines = [f"good\tfilm number {number}" for number in range(5000)]
    with pytest.raises(ValueError, match="the last column looks like a text"):
        next(tables.read(lines, "own", "tsv"))
    assert len(list(tables.read([f"film {number}\tgood" for number in range(5000)], "own", "tsv"))) == 5000


def test_phrases_of_one_word_with_long_labels_are_in_order() -> None:
    assert len(read("fine\tvery good\nawful\tvery bad\nnice\tvery good")) == 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.tsv", "tsv"), ("A.CSV", "csv"), ("a.b.jsonl", "jsonl"), ("a.tsv.gz", "tsv"), (Path("x") / "a.csv.xz", "csv")],
)
def test_the_kind_is_in_the_name(name: str | Path, kind: Kind) -> None:
    assert tables.kind_of(name) == kind


@pytest.mark.parametrize("name", ["a.txt", "tsv", "a.json", "a.gz", ".csv", "a.csv.zip", ""])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"it must end in \.tsv, \.csv or \.jsonl"):
        tables.kind_of(name)


@pytest.mark.usefixtures("shape_checks_off")
def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown kind 'json' .*known: tsv, csv, jsonl"):
        list(tables.read([], "own", "json"))


def test_the_real_contrast_sets_are_tables_with_a_header() -> None:
    parts = real_files.lines("imdb/contrast.tar.xz", "dev_contrast.tsv", "test_contrast.tsv", "test_original.tsv")
    found = [list(tables.read(lines, "a real file", "tsv")) for lines in parts]
    assert [len(part) for part in found] == [100, 488, 488]
    assert {sample.label for part in found for sample in part} == {"Positive", "Negative"}
    by_csv = [row[1].split() for row in csv.reader([f"{line}\n" for line in parts[1]], delimiter="\t")]
    assert [list(sample.tokens) for sample in found[1]] == by_csv[1:]
