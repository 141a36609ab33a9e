"""The reference: public names are on its pages, their docstrings are complete, and the examples in them run."""

import dataclasses
import doctest
import importlib
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

import beamtree
from beamtree import cli
from beamtree.data import tables
from beamtree.models.answers import answers, as_json
from beamtree.nn import encoders
from beamtree.runs import recipes
from beamtree.runs.settings import Settings, keys, schema
from beamtree.training import train
from doc_pages import DOCS, blocks

PAGES = sorted((DOCS / "reference").glob("*.md"))
DIRECTIVE = re.compile(r"^::: (\S+)\n((?: +.*\n)*)", re.MULTILINE)
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Examples):\n((?: +.*\n?|\n)+)", re.MULTILINE)
WITHOUT_EXAMPLE = (
    "beamtree.evaluation.Outcomes",  # what other functions return and take
    "beamtree.evaluation.records",
    "beamtree.evaluation.views",
    "beamtree.models.heads.Model",  # an abstract class
    "beamtree.nn.encoders.given_tree.GivenTree",  # the same
    "beamtree.runs.settings.Settings",  # its docstring is a description in the JSON Schema
    "beamtree.training.tune.StudySummary",  # made by a search alone
    "beamtree.training.tune.TrialSummary",
)


def shown_on(page: Path) -> dict[str, list[str]]:
    """The import paths that a page shows, each with the members that it shows of it."""
    found = DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    return {path: (yaml.safe_load(options) or {}).get("options", {}).get("members", []) for path, options in found}


SHOWN = {path: members for page in PAGES for path, members in shown_on(page).items()}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def resolve(path: str) -> Any:
    """The object of an import path."""
    value: Any = beamtree
    for depth, name in enumerate(path.split(".")[1:], start=2):
        if not hasattr(value, name):
            importlib.import_module(".".join(path.split(".")[:depth]))
        value = inspect.getattr_static(value, name) if inspect.isclass(value) else getattr(value, name)
    return value.__func__ if isinstance(value, classmethod) else value


def documentation(thing: Any) -> str:
    """The docstring, of a class with that of its constructor."""
    text = inspect.getdoc(thing) or ""
    has_own = inspect.isclass(thing) and thing.__init__.__doc__ != object.__init__.__doc__
    return f"{text}\n\n{inspect.getdoc(thing.__init__)}" if has_own and not _fields(thing) else text


def explained(text: str, section: str) -> list[str]:
    """The names that a section of a docstring explains, without asterisks."""
    bodies = [inspect.cleandoc(body) for name, body in SECTION.findall(text) if name == section]
    return [name for body in bodies for name in re.findall(r"^\*{0,2}(\w+): \S", body, re.MULTILINE)]


def _fields(kind: type) -> list[str]:
    """The fields of a dataclass or of a named tuple."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(getattr(kind, "_fields", ()))


def test_every_public_name_is_on_a_page():
    for name in beamtree.__all__:
        is_module = isinstance(getattr(beamtree, name), ModuleType)
        assert any(path.startswith(f"beamtree.{name}.") if is_module else path == f"beamtree.{name}" for path in SHOWN)
        assert name in (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    for name in ("load", "Data", "Split", "Vocabulary", "Batch", "Batches", "Buckets"):
        assert f"beamtree.data.{name}" in SHOWN


def test_every_registered_encoder_is_in_the_table():
    text = (DOCS / "reference" / "encoders.md").read_text(encoding="utf-8")
    for name in beamtree.encoders():
        kind = type(beamtree.encoder(name, dim=16)).__name__
        [row] = [line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert f"(#beamtree.{kind})" in row


@every_page
def test_docstrings_have_all_sections(page):
    for path, members in shown_on(page).items():
        for name in (path, *(f"{path}.{member}" for member in members)):
            check_docstring(name, resolve(name))


def check_docstring(path: str, thing: Any) -> None:
    text = documentation(thing)
    if inspect.ismodule(thing):
        assert text, path
        return
    first, _, rest = text.partition("\n")
    assert first.endswith("."), f"{path} needs a summary in one line"
    assert not rest or rest.startswith("\n"), f"{path} needs a blank line after its summary"
    if not inspect.isclass(thing) and not inspect.isfunction(thing):  # a property
        return
    if inspect.isclass(thing) and (fields := _fields(thing)):
        assert explained(text, "Attributes") == fields, path
    elif not getattr(thing, "_is_protocol", False) and thing is not Settings:
        parameters = [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]
        assert explained(text, "Args") == parameters, path
    if inspect.isfunction(thing) and inspect.signature(thing).return_annotation not in (None, "None"):
        assert re.search(r"^Returns:\n    \S", text, re.MULTILINE), f"{path} needs a section Returns"


@every_page
def test_examples_run(page, monkeypatch):
    """Those of classes, of their constructors and of the members that are shown of them."""
    monkeypatch.setattr(encoders, "_ENCODERS", dict(encoders._ENCODERS))  # an example registers an encoder
    printed: list[str] = []
    for path, members in shown_on(page).items():
        thing = resolve(path)
        if inspect.ismodule(thing):
            continue
        assert ">>> " in documentation(thing) or path in WITHOUT_EXAMPLE, f"{path} needs an example"
        for name in (path, *(f"{path}.{member}" for member in members)):
            names = {"beamtree": beamtree, "torch": torch}
            test = doctest.DocTestParser().get_doctest(documentation(resolve(name)), names, name, None, 0)
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            doctest.DocTestRunner(optionflags=flags).run(test, out=printed.append)
    assert not printed, "".join(printed)


@every_page
def test_blocks_of_the_pages_run(page):
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(block, names)


def documented_keys(heading: str) -> list[set[str]]:
    """The keys in each of the tables of a section of the page of files."""
    text = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    [section] = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    tables = re.findall(r"^\| (?:key|file|column) .*\n\|---.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    return [set(re.findall(r"`([^`]+)`", "".join(row.split("|")[1] for row in rows.splitlines()))) for rows in tables]


def test_the_files_of_a_run_are_those_of_the_page(tmp_path):
    samples = beamtree.data.Data.from_samples(["a fine film", "a dull film"] * 10, ["yes", "no"] * 10)
    (tmp_path / "reviews.tsv").write_text("a\tb\n")
    changes = {"model.dim": 8, "training.max_epochs": 1}
    settings = recipes.load("text", "bt-grc", changes=changes, task=tmp_path / "reviews.tsv")
    folder = tmp_path / "run"
    train(settings, folder, data=samples, device="cpu", loggers=["csv"], progress=False)
    [files] = documented_keys("A run")
    assert {path.name for path in folder.iterdir()} == {name.rstrip("/") for name in files} - {
        "tokenizer.json",
        "parser",
    }
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert set(config) - set(Settings.model_fields) == documented_keys("config.yaml")[0]
    for name in ("metrics.jsonl", "results.json", "environment.json"):
        assert documented_keys(name) == [set(json.loads((folder / name).read_text(encoding="utf-8")))]


def test_the_keys_of_json_are_those_of_the_page():
    [answer] = answers(beamtree.load("listops-bt-grc"), ["[MAX 2 9 ]"], labels=True)
    document = as_json(answer, "listops-bt-grc")
    [side] = document["sides"]
    levels = [document, side, side["beams"][0], side["beams"][0]["constituents"][0]]
    assert documented_keys("JSON") == [set(level) for level in levels]


def test_the_names_of_columns_are_those_of_the_page():
    text = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    names = (tables.TEXT_NAMES, tables.SECOND_NAMES, tables.LABEL_NAMES, tables.TREE_NAMES, tables.SECOND_TREE_NAMES)
    for group in names:
        assert f"| {', '.join(f'`{name}`' for name in group)} |" in text
    assert documented_keys("Recipes") == [set(schema()["properties"])]


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_commands(commands: dict[str, Any], above: str = "beamtree") -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        yield f"{above} {name}", command
        yield from find_commands(getattr(command, "commands", {}), f"{above} {name}")


def test_the_page_of_the_command_line_has_every_command_and_option(hooks):
    sections = dict(re.findall(r"^#+ (beamtree .+)\n\n((?:(?!#).*\n)+)", hooks.command_line(), re.MULTILINE))
    commands = dict(find_commands({name: cli.load_command(name) for name in cli.COMMANDS}))
    assert list(sections) == list(commands)
    for path, command in commands.items():
        text = sections[path].replace("\\", "")
        assert text.startswith(command.help)
        for param in command.params:
            for spelling in (*param.opts, *param.secondary_opts) if param.param_type_name == "option" else ():
                assert re.search(rf"^\| `[^`]*{re.escape(spelling)}\b", text, re.MULTILINE)
            if param.param_type_name == "argument":
                assert re.search(
                    rf"^\| `{re.escape(param.metavar)}`.* \| {re.escape(param.help)} \|", text, re.MULTILINE
                )
            if isinstance(param.show_default, str):
                assert f"| {param.show_default} |" in text


def test_the_page_of_settings_has_every_key_with_its_meaning(hooks):
    page = hooks.settings_page().replace("\\", "")
    for key in keys(Settings):
        [row] = re.findall(rf"^\| `{re.escape(key)}`.* \| .*\|$", page, re.MULTILINE)
        group, _, name = key.rpartition(".")
        section = Settings.model_fields[group].annotation if group else Settings
        assert section.model_fields[name].description in row
    assert "| Learning rate. | a number above 0 | `1e-3` | `1e-3` |" in page


def test_links_of_the_changelog_are_to_pages_of_the_site(hooks):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", hooks.changelog())
    assert all((DOCS / link).is_file() for link in links)


def test_generated_pages_are_not_stored(hooks):
    assert not any((DOCS / page).exists() for page in hooks.PAGES)


def test_the_usage_of_a_command_is_that_of_its_help(hooks):
    shown = CliRunner().invoke(cli.app, ["parse", "--help"], prog_name="beamtree", env={"COLUMNS": "80"})
    [usage] = re.findall(r"Usage: (beamtree parse .*?) *\n", shown.stdout)
    assert f"```text\n{usage}\n```" in hooks.command_line()
