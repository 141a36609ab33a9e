"""What a line of a user's file is made of: a JSON object, and a field that is cut into tokens."""

import json
from collections.abc import Callable, Sequence
from typing import NoReturn


def parse(line: str) -> dict[str, object]:
    """The object that a line of JSONL holds."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"broken JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise ValueError("broken JSON: it is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object in braces expected, found {line.strip()[:20]!r}")
    return value


def cut(name: str, value: object, tokenize: Callable[[str], Sequence[str]]) -> tuple[str, ...]:
    """The tokens of a text, of which there must be at least one: no encoder can take less."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shown(value)}: it must be a string")
    tokens = tuple(tokenize(value))
    if not tokens:
        raise ValueError(f"{name} is {value!r}, which has no words: fill it in, or remove the line")
    return tokens


def shown(value: object) -> str:
    """A value in a message: as JSON, or as Python shows it if JSON does not have it."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities, which Python would read, are no JSON; as labels they are missing values."""
    raise ValueError(f"broken JSON: {constant} is not a value of JSON")
