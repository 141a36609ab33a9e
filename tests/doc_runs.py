"""Runs the code blocks of a documentation page, and compares what the page shows with what they print and return.

`python` blocks share one namespace. In `bash` blocks the program is called in this process, other commands in a shell.
What follows a block as `text` is its output; "…" stands for anything. A comment behind an expression that begins with
a bracket, a quote, a digit, True, False or None is its value, or the shape of a tensor; words may follow after ": ".
"""

import ast
import io
import os
import re
import shlex
import subprocess
import tokenize
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from typer.testing import CliRunner

from beamtree.cli import app

VALUE = re.compile(r"[(\[{'\"\d]|True|False|None")
Compare = Callable[[str, str], bool]


def run_page(page: Path, quick: Callable[[list[str]], list[str]] = list, exact: bool = True) -> dict[str, object]:
    """Run the blocks of a page in their order, and return the names that the Python blocks defined.

    quick: changes the arguments of a command, to train for a short time.
    exact: compare output and values; if False, as after a short training, only words of the output and shapes.
    """
    names: dict[str, object] = {"__name__": "page"}
    printed = None
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if language == "text":
            if printed is not None:
                check_output(text, printed, exact)
            printed = None
        elif language == "python":
            printed = run_python(text, names, exact) or None  # a block that prints nothing has no output to show
        elif language == "bash":
            printed = "".join(run_command(line, quick) for line in commands(text))
        else:
            printed = None
    return names


def commands(text: str) -> list[str]:
    """The commands of a block, without comments."""
    lines = (re.split(r"(?:^| )#", line)[0].strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line]


def run_command(line: str, quick: Callable[[list[str]], list[str]]) -> str:
    program, *arguments = shlex.split(line)
    if program == "beamtree":
        done = CliRunner().invoke(app, quick(arguments), prog_name="beamtree", env={"COLUMNS": "80"})
        assert done.exit_code == 0, f"{line}\n{done.output}"
        return done.output
    environment = {**os.environ, "LC_ALL": "C"}  # the order in which ls sorts
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True).stdout


def run_python(code: str, names: dict[str, object], exact: bool) -> str:
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    output = io.StringIO()
    with redirect_stdout(output):
        for statement in ast.parse(code).body:
            if not isinstance(statement, ast.Expr):
                exec(compile(ast.Module([statement], []), "page", "exec"), names)
                continue
            value = eval(compile(ast.Expression(statement.value), "page", "eval"), names)
            comment = comments.get(statement.end_lineno or 0, "")
            if VALUE.match(comment):
                check_value(ast.unparse(statement), value, comment, exact)
    return output.getvalue()


def check_value(expression: str, value: object, comment: str, exact: bool) -> None:
    shape = getattr(value, "shape", None)
    if shape is None and not exact:
        return
    found = [repr(value), str(value), *([] if shape is None else [str(tuple(shape))])]
    if isinstance(value, tuple):
        found.append(repr(value)[1:-1])  # a comment may leave out the outer brackets
    if isinstance(value, float) and (decimals := re.match(r"\d+\.(\d+)", comment)):
        found.append(f"{value:.{len(decimals[1])}f}")
    shown = {comment, comment.split(": ")[0]}
    assert any(matches(each, text) for each in shown for text in found), f"{expression} is {found}, the page: {comment}"


def check_output(shown: str, printed: str, exact: bool) -> None:
    if exact:
        assert matches(shown.rstrip(), printed.rstrip()), f"the page shows\n{shown}\nprinted was\n{printed}"
    else:
        missing = words(shown) - words(printed)
        assert not missing, f"the page shows {missing}, printed was\n{printed}"


def words(text: str) -> set[str]:
    """All words, except the label that a model gives a text."""
    return set(re.findall(r"[A-Za-z]{2,}", re.sub(r"^label [^,]*", "label", text, flags=re.MULTILINE)))


def matches(shown: str, printed: str) -> bool:
    """Whether the text is the one shown, in which "…" stands for any characters, and on a line of its own for lines."""
    pattern = "".join(
        r"(?:[^\n]*\n)*" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", "[^\n]*") + "[ ]*\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None
