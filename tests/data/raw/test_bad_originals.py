"""An error in an original file is reported in one line, with file and line number, and leaves nothing in the cache."""

import re
from pathlib import Path

import pytest

from beamtree.data import load
from beamtree.data.cache import entries
from toy_originals import ORIGINALS, SICK, pair, table, write

LOGIC = "propositionallogic"
MATCHED, MISMATCHED = (f"multinli_1.0/multinli_1.0_dev_{side}.jsonl" for side in ("matched", "mismatched"))

BAD: list[tuple[str, str, str, list[str] | bytes, str]] = [
    ("logic", "train", f"{LOGIC}/train3", ["=\ta\ta", "=\ta"], ", line 2: 3 columns expected, relation<TAB>formula"),
    ("logic", "dev", f"{LOGIC}/train6", ["=\ta\ta", "?\ta\ta"], ", line 2: unknown label '?'; known: =, <, >"),
    (
        "logic",
        "4",
        f"{LOGIC}/test4",
        ["=\ta\t( not a"],
        ", line 1: unbalanced brackets: 1 '(' not closed at the end, token 3",
    ),
    ("logic", "4", f"{LOGIC}/test4", ["=\ta\tg"], ", line 1: at token 0: unknown token 'g'; known: (, ), a"),
    ("logic", "4", f"{LOGIC}/test4", [], ", line 1: the file is empty: each line should be relation<TAB>"),
    ("logic-c", "C", f"{LOGIC}/train0", [], ", line 1: the file is empty: each line should be relation<TAB>"),
    ("sst5", "dev", "trees/dev.txt", ["(2 (2 a) (2 b)"], ", line 1: unbalanced brackets: the '(' at character 0"),
    ("sst2", "iid", "trees/test.txt", ["(2 a)", "(7 b)"], ", line 2: the label at character 1 is '7': it must be 0"),
    ("sst5", "train", "trees/train.txt", [], ", line 1: the file is empty: each line should be a tree"),
    ("sst5", "dev", "trees/dev.txt", b"(2 a)\n(2 \xff)\n", ", line 2: this is not UTF-8 text"),
    ("imdb", "con-ood", "contrast/test_contrast.tsv", table("Good ok"), ", line 2: unknown sentiment 'Good'; known"),
    ("imdb", "dev", "contrast/dev_original.tsv", table("Positive"), ", line 2: 2 columns expected, Sentiment<TAB>Text"),
    ("imdb", "count-ood", "counterfactual/new/test.tsv", [], ", line 1: the file has no reviews"),
    ("imdb", "train", "aclImdb/train/pos/0_9.txt", ["<br />"], ", line 1: the review is ' \\n', which has no tokens"),
    ("imdb", "iid", "aclImdb/test/pos/0_7.txt", b"\xff", ": this is not UTF-8 text (invalid start byte at byte 0)"),
    ("mnli", "M", MATCHED, ["{", ""], ", line 1: invalid JSON at character 1"),
    ("mnli", "len-m-ours", MATCHED, [], ", line 1: the file is empty: each line should be a JSON object"),
    ("mnli", "MM", MISMATCHED, [pair("maybe", "A", "B")], ", line 1: unknown label 'maybe'; known: entailment"),
    ("snli", "dev", "snli_1.0/snli_1.0_dev.jsonl", ["{}"], ", line 1: the field 'gold_label' is missing"),
    (
        "sick",
        "train",
        "SICK/SICK.txt",
        [SICK[0], SICK[1] + "\t7"],
        ", line 2: 6 columns expected, as in line 1, found 7",
    ),
    ("sick", "train", "SICK/SICK.txt", [SICK[0], SICK[1].replace("ENT", "")], ", line 2: unknown label 'AILM'"),
    ("sick", "dev", "SICK/SICK.txt", [SICK[0], SICK[2].replace("No dog runs", " ")], ", line 2: the sentence is ' '"),
    ("sick", "test", "SICK/SICK.txt", SICK[1:], ", line 1: the header should name the columns sentence_A, sentence_B"),
    ("sick", "test", "SICK/SICK.txt", [], ", line 1: the header should name the columns sentence_A, sentence_B"),
    ("listops-original", "near-iid", "listops/test_d20s.tsv", ["3\t3", "4\t3"], ", line 2: the label is '4', but the"),
    ("listops-original", "near-iid", "listops/test_d20s.tsv", ["3\t3\t3"], ", line 1: 2 columns expected, label<TAB>"),
    ("listops-original", "train", "listops/train_d20s.tsv", ["3\t( ( [MAX 3 ) ]"], ", line 1: unbalanced brackets"),
    ("listops-original", "dev", "listops/train_d20s.tsv", [], ", line 1: the file has no examples"),
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data", ORIGINALS)
    return tmp_path / "data"


@pytest.mark.parametrize(("name", "split", "file", "content", "complaint"), BAD)
def test_a_bad_file_is_refused_with_its_line_and_leaves_nothing(
    root: Path, name: str, split: str, file: str, content: list[str] | bytes, complaint: str
) -> None:
    write(root, {file: content})
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        load(name, split, roots=[root])
    message = str(caught.value)
    assert type(caught.value) is ValueError
    assert "\n" not in message
    # If a folder is read as a whole, the path of the folder and the file in it are separated by a colon.
    assert message.replace(":", "/").startswith(f"{root}/{file}")
    assert not entries()
    assert not list(root.parent.glob("cache/prepared/.*"))


@pytest.mark.parametrize(("name", "split", "file"), sorted({case[:3] for case in BAD}))
def test_once_it_is_mended_it_is_read(root: Path, name: str, split: str, file: str) -> None:
    write(root, {file: []})
    with pytest.raises(ValueError, match=re.escape(Path(file).name)):
        load(name, split, roots=[root])
    write(root, {file: ORIGINALS[file] * 1001 if file == "listops/train_d20s.tsv" else ORIGINALS[file]})
    assert len(load(name, split, roots=[root])) > 0


def test_a_file_without_a_sample_for_the_split_is_refused(root: Path) -> None:
    write(root, {"SICK/SICK.txt": SICK[:2], "snli_1.0/snli_1.0_dev.jsonl": [pair("-", "A", "B")]})
    with pytest.raises(ValueError, match=r"^sick: the split test has no samples$"):
        load("sick", "test", roots=[root])
    with pytest.raises(ValueError, match=r"^snli: the split dev has no samples$"):
        load("snli", "dev", roots=[root])
