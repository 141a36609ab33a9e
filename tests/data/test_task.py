"""Tasks: every split has a name and is found by it, every source exists, and options are checked."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data.loading import TASKS
from beamtree.data.raw import SOURCES
from beamtree.data.task import Part, Task, slug
from beamtree.data.tasks.listops import PRESETS

NAMES = [
    *("listops", "listops-dg", "listops-dg1", "listops-dg2", "listops-original", "listops-tiny"),
    *("logic", "logic-c", "sst5", "sst2", "imdb", "mnli", "snli", "sick"),
]
PARTS = [
    pytest.param(task, part, id=f"{task.name}-{part.columns[0].name}") for task in TASKS.values() for part in task.parts
]
EVERY_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)

# The columns of the paper's tables, by the task that has them.
PAPER = {
    "listops": ["near-IID", "200-300", "500-600", "900-1000", "Args 10", "Args 15", "LRA"],
    "listops-dg": ["DG", "200-300", "900-1000"],
    "listops-dg1": ["DG1"],
    "listops-dg2": ["DG2"],
    "logic": ["8", "9", "10", "11", "12"],
    "logic-c": ["C"],
    "sst5": ["IID"],
    "imdb": ["IID", "Con. OOD", "Count. OOD"],
    "mnli": ["M", "MM", "Len M", "Len MM", "Neg M", "Neg MM"],
}


def test_the_tasks_are_those_of_the_paper_and_a_few_more() -> None:
    assert list(TASKS) == NAMES
    assert all(name == task.name for name, task in TASKS.items())


@EVERY_TASK
def test_a_split_is_found_by_its_title_and_by_its_name(task: Task) -> None:
    for column in task.columns:
        for spelling in (column.title, column.name, column.title.upper(), column.name.replace("-", " ")):
            part, found = task.part(spelling)
            assert found is column
            assert column in part.columns


@EVERY_TASK
def test_names_of_splits_and_of_labels_are_unique(task: Task) -> None:
    names = [column.name for column in task.columns]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    assert names[:2] == ["train", "dev"]
    assert task.labels
    assert len(set(task.labels)) == len(task.labels)
    assert task.about


@pytest.mark.parametrize(("name", "titles"), PAPER.items(), ids=PAPER)
def test_every_column_of_the_paper_is_a_split(name: str, titles: list[str]) -> None:
    assert set(titles) <= {column.title for column in TASKS[name].columns}


@pytest.mark.parametrize(("task", "part"), PARTS)
def test_a_part_s_sources_files_and_options_exist(task: Task, part: Part) -> None:
    assert set(part.sources) <= set(SOURCES)
    files = {file.name for source in part.sources for file in SOURCES[source].files}
    assert set(part.files) <= files
    assert set(part.options) <= set(task.options)
    assert part.columns
    assert all(column.published is None or column.published > 0 for column in part.columns)


@EVERY_TASK
def test_every_option_is_heeded_by_some_part(task: Task) -> None:
    assert set(task.options) == {option for part in task.parts for option in part.options}


@EVERY_TASK
def test_a_formal_language_has_all_its_words_and_a_rule_for_gold_trees(task: Task) -> None:
    formal = task.name.startswith(("listops", "logic"))
    assert (task.words is not None, task.gold is not None) == (formal, formal)
    assert task.pair == task.name.startswith(("logic", "mnli", "snli", "sick"))


def test_generated_splits_promise_as_many_samples_as_are_drawn() -> None:
    promised = {column.name: column.published for column in TASKS["listops-dg1"].columns}
    assert (promised["train"], promised["dev"], promised["dg1"], promised["lra"]) == (1_000_000, 2000, 2000, 2000)
    for name, spec in PRESETS.items():
        if name.endswith("-official") and name.removesuffix("-official") in PRESETS:
            assert spec.count == PRESETS[name.removesuffix("-official")].count


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^sst5: unknown split 'tests'; known: train, dev, iid$"):
        TASKS["sst5"].part("tests")
    with pytest.raises(ValueError, match=r"^imdb: unknown split 'cont-ood' \(did you mean 'count-ood'\?\)"):
        TASKS["imdb"].part("cont-ood")


def test_options_that_are_not_given_have_their_defaults() -> None:
    assert TASKS["listops"].settings({}) == {"seed": 0, "official": False}
    assert TASKS["listops"].settings({"seed": 7}) == {"seed": 7, "official": False}
    assert TASKS["sst5"].settings({}) == {}


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("listops", {"sed": 1}, "listops: unknown option 'sed' (did you mean 'seed'?); known: seed, official"),
        ("sst5", {"seed": 1}, "sst5: unknown option 'seed'; known: none"),
        ("listops", {"seed": "1"}, "listops: the option seed is '1': it must be an integer"),
        ("listops", {"seed": True}, "listops: the option seed is True: it must be an integer"),
        ("listops", {"official": 1}, "listops: the option official is 1: it must be true or false"),
        ("logic-c", {"and_only": "yes"}, "logic-c: the option and_only is 'yes': it must be true or false"),
    ],
)
def test_a_wrong_option_is_refused(name: str, options: dict[str, bool | int | str], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        TASKS[name].settings(options)


def test_a_slug_is_the_title_in_small_letters_and_digits() -> None:
    titles = {"Con. OOD": "con-ood", "near-IID": "near-iid", "Len MM (ours)": "len-mm-ours", "900-1000": "900-1000"}
    assert {title: slug(title) for title in titles} == titles


@given(st.text())
def test_a_slug_is_its_own_slug(title: str) -> None:
    assert slug(slug(title)) == slug(title)
    assert re.fullmatch(r"([a-z0-9]+(-[a-z0-9]+)*)?", slug(title))
