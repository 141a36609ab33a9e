"""NLI in JSONL: fields, labels, the pairs without a label, the dev set that is held out, and the real counts."""

import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import real_files
from beamtree.data.samples import Sample
from beamtree.data.tasks import nli, stress

TEXTS = st.text().filter(lambda text: bool(text.split()))


def line(label: object = "neutral", first: object = "it rains", second: object = "wet", **others: object) -> str:
    return json.dumps({"gold_label": label, "sentence1": first, "sentence2": second, **others})


def read(*lines: str) -> list[Sample]:
    return list(nli.read(lines, "dev.jsonl", str.split))


@given(TEXTS, st.sampled_from(nli.LABELS), TEXTS)
def test_a_pair_is_read_as_it_was_written(first: str, label: str, second: str) -> None:
    assert read(line(label, first, second)) == [Sample(tuple(first.split()), label, tuple(second.split()))]


def test_the_tokenizer_is_the_caller_s() -> None:
    [sample] = nli.read([line(first="It rains", second="Wet")], "dev", lambda text: list(text.lower()))
    assert (sample.tokens[:3], sample.second) == (("i", "t", " "), ("w", "e", "t"))


def test_other_fields_are_ignored() -> None:
    assert len(read(line(genre="fiction", annotator_labels=["neutral"], sentence1_parse="(ROOT"))) == 1


def test_a_pair_on_which_the_annotators_did_not_agree_is_dropped() -> None:
    samples = read(line("entailment"), line("-", second=""), line("contradiction"))
    assert [sample.label for sample in samples] == ["entailment", "contradiction"]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ('{"gold_label": "neutral",', "invalid JSON at character 25: Expecting property name"),
        ("", "invalid JSON at character 0: Expecting value"),
        ("[" * 100_000, "invalid JSON: it is nested too deeply"),
        ('{"gold_label": NaN}', "invalid JSON: NaN is not a JSON value"),
        ('["neutral", "a", "b"]', """a JSON object in braces expected, found '["neutral", "a", "b"'"""),
        ('{"gold_label": "neutral", "sentence1": "a"}', "the field 'sentence2' is missing: each line needs gold_label"),
        (line("Neutral"), "unknown label 'Neutral' (did you mean 'neutral'?); known: entailment, neutral,"),
        (line(None), "unknown label None; known: entailment, neutral, contradiction, -"),
        (line(first=" "), "sentence1 is ' ', which has no tokens"),
        (line(second=""), "sentence2 is '', which has no tokens"),
        (line(second=["a"]), 'sentence2 is ["a"]: it must be a string'),
    ],
)
def test_a_bad_line_is_refused_with_its_place(bad: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"dev.jsonl, line 2: {complaint}")):
        read(line(), bad)


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dev\.jsonl, line 1: the file is empty: each line should be a JSON object"):
        read()


def sample(number: int, first: int = 1, second: int = 1) -> Sample:
    return Sample((str(number),) * first, "neutral", ("b",) * second)


def test_pairs_with_a_long_side_are_left_out_before_the_dev_set_is_drawn() -> None:
    lengths = [(149, 149), (150, 1), (1, 150), (1, 1), (300, 300)] * 20
    train, dev = nli.hold_out(sample(number, *sides) for number, sides in enumerate(lengths))
    assert (len(train), len(dev)) == (36, 4)
    assert all(len(s.tokens) < 150 and len(s.second or ()) < 150 for s in train + dev)
    assert len({s.tokens[0] for s in train + dev}) == 40


def test_the_dev_set_is_ten_thousand_and_of_a_subset_a_tenth() -> None:
    everything = [sample(number) for number in range(120_000)]
    assert [len(part) for part in nli.hold_out(everything)] == [110_000, 10_000]
    assert [len(part) for part in nli.hold_out(everything[:9_888])] == [8_900, 988]
    assert nli.hold_out(everything[:100]) == nli.hold_out(everything[:100])
    assert nli.hold_out(everything[:100]) != nli.hold_out(everything[:100], seed=102)


def test_the_real_files_have_their_counts() -> None:
    names = ["multinli_1.0_dev_matched.jsonl", "multinli_1.0_dev_mismatched.sample.jsonl"]
    matched, mismatched = real_files.lines("nli/multinli.tar.xz", *names)
    sick = real_files.lines("nli/sick.tar.xz", "sick_train.jsonl", "sick_dev.jsonl", "sick_test.jsonl")
    snli = real_files.lines_of_one("nli/snli_1.0_dev.jsonl.xz")
    labels = [
        Counter(sample.label for sample in nli.read(lines, "a real file", str.split))
        for lines in (matched, mismatched, *sick, snli)
    ]
    assert [[counts[label] for label in nli.LABELS] for counts in labels] == [
        [3479, 3123, 3213],
        [346, 319, 335],
        [1274, 2524, 641],
        [143, 281, 71],
        [1404, 2790, 712],
        [3329, 3235, 3278],
    ]


def test_stress_tests_of_a_real_file_are_longer_on_one_side() -> None:
    [lines] = real_files.lines("nli/sick.tar.xz", "sick_dev.jsonl")
    samples = list(nli.read(lines, "sick_dev.jsonl", str.split))
    for before, long, negated in zip(samples, stress.length(samples), stress.negation(samples), strict=True):
        assert len(long.tokens) - len(before.tokens) == 20
        assert len(negated.second or ()) - len(before.second or ()) == 5
        assert before.label == long.label == negated.label
