"""The tasks on the real files, if available: how many samples each split has, and of which labels."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import real_files
from beamtree.data import Data, Split, load
from beamtree.data.raw import SOURCES, find
from beamtree.data.tasks import imdb
from beamtree.trees import Tree

# Run-time type checks make reading several times slower, and there are no shapes to check here.
pytestmark = pytest.mark.usefixtures("shape_checks_off")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BEAMTREE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def real(name: str, *files: str) -> Data:
    """The task of these files; the test is skipped if one of them is missing."""
    paths: list[Path] = [real_files.find(file) for file in files]
    return load(name, roots=dict.fromkeys(path.parents[1] for path in paths))


def counts(data: Data) -> dict[str, int]:
    """Of all splits whose files are available."""
    return {split: len(data[split]) for split in data if data.missing(split) is None}


def published(data: Data, *but: str) -> dict[str, int]:
    """The published counts, of the splits whose files are available."""
    return {
        column.name: column.published
        for column in data.task.columns
        if column.published is not None and column.name not in but and data.missing(column.name) is None
    }


def labels(split: Split) -> list[int]:
    return list(split.label_counts().values())


def assert_trees(split: Split) -> None:
    """A few gold trees, the longest sample's among them, are trees over the tokens."""
    for index in (0, -1, int(split.lengths.argmax())):
        tree = split.tree(index)
        assert isinstance(tree, Tree)
        assert tree.leaves == split[index].tokens


def test_logic() -> None:
    data = real("logic", "logic/propositionallogic.tar.xz")
    sizes = [6, 410, 2198, 4104, 5361, 6027, 5816, 4707, 3347, 2230, 1444, 864, 853]
    expected = {"train": 121_977, "dev": 13_552} | {str(operators): size for operators, size in enumerate(sizes)}
    assert counts(data) == expected == published(data)
    for split in ("train", "dev", "6", "12"):
        assert 0.48 < data[split].label_counts()["#"] / len(data[split]) < 0.55, split
        assert_trees(data[split])
    assert round(100 * data["train"].label_counts()["#"] / len(data["train"])) == 54
    assert [int(data[split].lengths.max()) for split in ("train", "12")] == [37, 76]
    assert data["12"].unknown_share(data.vocabulary()) == 0


def test_logic_split_c() -> None:
    data = real("logic-c", "logic/propositionallogic.tar.xz")
    assert counts(data) == {"train": 46_707, "dev": 5_189, "c": 83_633} == published(data)
    assert all(0.53 < data[split].label_counts()["#"] / len(data[split]) < 0.56 for split in data)


def test_sst5() -> None:
    data = real("sst5", "sst/trees.tar.xz")
    assert counts(data) == {"train": 318_582, "dev": 1101, "iid": 2210} == published(data)
    assert labels(data["dev"]) == [139, 289, 229, 279, 165]
    assert labels(data["iid"]) == [279, 633, 389, 510, 399]
    train = labels(data["train"])
    assert train[2] / sum(train) > 0.6, "most phrases are neutral"
    for split in data:
        assert_trees(data[split])


def test_sst2() -> None:
    data = real("sst2", "sst/trees.tar.xz")
    assert counts(data) == {"train": 98_794, "dev": 872, "iid": 1821} == published(data)
    assert (labels(data["dev"]), labels(data["iid"])) == ([428, 444], [912, 909])
    for split in data:
        assert_trees(data[split])


def test_imdb() -> None:
    archives = ("aclImdb_labeled_50k", "contrast", "counterfactual")
    data = real("imdb", *(f"imdb/{archive}.tar.xz" for archive in archives))
    rewritten = dict.fromkeys(("con-ood", "count-ood", "con-originals", "count-originals"), 488)
    assert published(data) == rewritten
    assert counts(data) == {"train": 12_552, "dev": 5_570, "iid": 12_742} | rewritten
    for split in data:
        positive = data[split].label_counts()["positive"] / len(data[split])
        assert abs(positive - 0.5) < 0.02, split
    for turned in ("con", "count"):
        assert labels(data[f"{turned}-ood"]) == labels(data[f"{turned}-originals"])[::-1]
    assert [int(data[split].lengths.max()) for split in ("train", "iid")] == [200, 200]
    vocabulary = data.vocabulary()
    assert data["train"].unknown_share(vocabulary) < data["iid"].unknown_share(vocabulary) < 0.05
    # What is documented of overlaps with the training data.
    train = list(data["train"])
    overlaps = {split: imdb.duplicates(train, data[split]) for split in data if split not in ("train", "dev")}
    assert overlaps == {"iid": 64, "con-ood": 0, "count-ood": 0, "con-originals": 315, "count-originals": 315}
    names = ("dev_original.tsv", "dev_contrast.tsv")
    tables = [imdb.read_tsv(lines, "") for lines in real_files.lines("imdb/contrast.tar.xz", *names)]
    assert [imdb.duplicates(train, table) for table in tables] == [63, 0]


def test_mnli() -> None:
    """The training file may be a subset, and the mismatched dev set a sample, as their names indicate."""
    data = real("mnli", "nli/multinli.tar.xz")
    originals = find(SOURCES["multinli"], data.roots)
    subset = "subset" in originals.actual("multinli_1.0_train.jsonl")
    sample = "sample" in originals.actual("multinli_1.0_dev_mismatched.jsonl")
    found = counts(data)
    expected = published(data, *["dev"] * subset, *["mm"] * sample)
    assert found.items() >= expected.items()
    assert found["m"] == 9815
    if subset:
        # 9,888 lines, less 5 with a side of 150 tokens or more; a tenth is for dev.
        assert (found["train"], found["dev"]) == (8895, 988)
    if sample:
        assert found["mm"] == 1000
    for side in ("m", "mm"):
        assert found[f"len-{side}-ours"] == found[f"neg-{side}-ours"] == found[side]
        assert labels(data[f"len-{side}-ours"]) == labels(data[f"neg-{side}-ours"]) == labels(data[side])
    assert labels(data["m"]) == [3479, 3123, 3213]
    assert all(0.3 < count / found["train"] < 0.37 for count in labels(data["train"]))
    assert max(int(data[split].lengths.max()) for split in ("train", "dev")) < 150


def test_snli() -> None:
    data = real("snli", "nli/snli_1.0_dev.jsonl.xz")
    assert counts(data) == published(data)
    assert (len(data["dev"]), labels(data["dev"])) == (9842, [3329, 3235, 3278])


def test_sick() -> None:
    data = real("sick", "nli/sick.tar.xz")
    assert counts(data) == {"train": 4439, "dev": 495, "test": 4906} == published(data)
    for split in data:
        entailment, neutral, contradiction = (count / len(data[split]) for count in labels(data[split]))
        assert (round(entailment, 1), round(neutral, 1), round(contradiction, 1)) == (0.3, 0.6, 0.1), split


def test_original_listops() -> None:
    data = real("listops-original", "listops/test_d20s.tsv.xz")
    test = data["near-iid"]
    assert counts(data).items() >= published(data).items()
    assert (len(test), int(test.lengths.min()), int(test.lengths.max())) == (10_000, 1, 939)
    assert all(800 < count < 1200 for count in labels(test))
    assert_trees(test)
