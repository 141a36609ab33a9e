"""Versions, pins, workflows and hooks agree with each other. `tests/check_wheel.py` checks what is built."""

import re
import tomllib

import pytest
import yaml

import beamtree
from doc_pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}


def canonical(requirement):
    """The name of a package, as packaging tools compare names."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def steps(workflow):
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job.get("steps", ())]


def test_the_version_is_the_same_everywhere():
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == beamtree.__version__
    assert len(set(versions)) == len(versions)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == beamtree.__version__


def test_every_requirement_is_pinned():
    pins = {
        canonical(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if re.match(r"[\w.-]+[=>]=", line)
    }
    extras = PROJECT["optional-dependencies"]
    required = {canonical(name) for names in (PROJECT["dependencies"], *extras.values()) for name in names}
    assert required - pins == {"beamtree"}


def test_workflows_run_on_the_versions_of_the_project():
    versions = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", entry)]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    matrices = [
        WORKFLOWS[name]["jobs"][job]["strategy"]["matrix"] for name, job in (("tests", "test"), ("wheel", "install"))
    ]
    assert matrices == [{"python": versions}] * 2


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_few_rights_and_pinned_actions(name):
    """Only publishing may write, and no action follows a branch but PyPI's, which has no tag of a major version."""
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    writing = {job for job, parts in workflow["jobs"].items() if "permissions" in parts}
    assert writing == {"docs": {"deploy"}, "release": {"publish"}}.get(name, set())
    actions = [step["uses"] for step in steps(name) if "uses" in step]
    assert actions
    for action in actions:
        assert re.fullmatch(r"actions/[\w-]+@v\d+|pypa/gh-action-pypi-publish@release/v1", action)


def test_workflows_and_ci_run_targets_of_the_makefile():
    commands = [step["run"] for name in WORKFLOWS for step in steps(name) if "run" in step]
    commands.append((ROOT / ".ci/run").read_text())
    targets = re.findall(r"^make ([a-z-]+)", "\n".join(commands), re.MULTILINE)
    assert {"setup", "test", "test-web", "docs", "dist"} == set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


def test_hooks_run_tools_that_are_installed():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    tools = [re.match(r"\.venv/bin/([a-z]+)", hook["entry"])[1] for hook in local["hooks"]]
    assert tools == ["ruff", "ruff", "mypy", "codespell"]
    assert set(tools) <= {canonical(name) for name in PROJECT["optional-dependencies"]["dev"]}
    for tool in tools:
        assert f"$(BIN)/{tool}" in MAKEFILE


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_issue_forms_have_the_keys_that_github_requires(name):
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    for field in fields:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert "label" in field["attributes"]
