"""Checks of user arguments. Each error names the argument, its value, and what is allowed."""

import difflib
import importlib.util
from collections.abc import Iterable
from functools import cache
from numbers import Integral, Real

SYNONYMS = {"gpu": "cuda"}  # for suggestions where the spelling is too different


def unknown(kind: str, value: object, known: Iterable[str]) -> str:
    """A message such as "unknown encoder 'bt-gcr' (did you mean 'bt-grc'?); known: …"."""
    names = list(known)
    close = difflib.get_close_matches(SYNONYMS.get(str(value), str(value)), names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {kind} {value!r}{hint}; known: {', '.join(names)}"


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(unknown(name, value, allowed))


def check_integer(name: str, value: object, at_least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} is {value!r}: it must be an integer of at least {at_least}")


def check_rate(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < 1:  # type: ignore[operator]  # ints of any size
        raise ValueError(f"{name} is {value!r}: it must be a number from 0 up to but not including 1")


def check_deviation(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < float("inf"):  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}: it must be a finite number of at least 0")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}: it must be True or False")


@cache
def is_installed(package: str) -> bool:
    """Whether a package can be imported. The result is cached."""
    return importlib.util.find_spec(package) is not None
