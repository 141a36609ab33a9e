"""Parse what a line of a data file consists of: JSON objects, and texts that are divided into tokens."""

import json
from collections.abc import Callable, Sequence
from typing import NoReturn


def parse(line: str) -> dict[str, object]:
    """Parse a line of JSONL, which must be a JSON object."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise ValueError("invalid JSON: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object in braces expected, found {line.strip()[:20]!r}")
    return value


def cut(name: str, value: object, tokenize: Callable[[str], Sequence[str]]) -> tuple[str, ...]:
    """Divide a text into tokens. There must be at least one: encoders do not accept empty sequences."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shown(value)}: it must be a string")
    tokens = tuple(tokenize(value))
    if not tokens:
        raise ValueError(f"{name} is {value!r}, which has no tokens: fill it in, or remove the line")
    return tokens


def shown(value: object) -> str:
    """Format a value for a message: as JSON if possible, otherwise as its `repr`."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _refuse(constant: str) -> NoReturn:
    """Reject NaN and infinities, which Python accepts: they are not JSON, and as labels they are missing values."""
    raise ValueError(f"invalid JSON: {constant} is not a JSON value")
