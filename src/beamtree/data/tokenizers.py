"""Tokenizers: divide a text into tokens, with the offsets of each in the text.

    tokenizer = make_tokenizer("words")
    tokenizer.words("It isn't.")                # ['it', 'is', "n't", '.']
    tokenizer.tokenize("It isn't.")[2]          # Token(text="n't", start=5, end=8)
    from_json(tokenizer.to_json())              # the same tokenizer

`make_tokenizer` takes a name ("words", "spaces"), the path of a `tokenizer.json`, a `tokenizers.Tokenizer` of Hugging
Face, or any function from a text to a list of strings. Offsets refer to characters of the given text, before it is
lower-cased or otherwise normalised. A token is a non-empty string without whitespace, like the words of a vocabulary
and the leaves of a tree.
"""

import hashlib
import importlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from beamtree.data import words as english
from beamtree.utils.checks import check_choice, check_flag

_SPACE_TOKEN = re.compile(r"\S+")
# Of formal languages: an operator with its bracket, a bracket, or anything between brackets and spaces.
_FORMAL_TOKEN = re.compile(r"\[[^\s\[\]()]*|[\]()]|[^\s\[\]()]+")
_LINE_BREAK = re.compile(r"<\s*/?\s*br\s*/?\s*>", re.IGNORECASE)
_SHOWN = 60  # characters of a text in a message


class Token(NamedTuple):
    """A token and its offsets in the text.

    Attributes:
        text: the token.
        start: index of its first character in the text.
        end: index after its last character.

    Examples:
        >>> beamtree.data.make_tokenizer("words").tokenize("It isn't.")[2]
        Token(text="n't", start=5, end=8)
    """

    text: str
    start: int
    end: int


class Tokenizer(ABC):
    """Base class of tokenizers, which divide texts into tokens. Calling one is the same as `words`.

    Attributes:
        name: the kind of tokenizer.
        lower: whether the tokens are in lower case.

    Examples:
        >>> tokenizer = beamtree.data.make_tokenizer("spaces")
        >>> tokenizer("A fine film")
        ['A', 'fine', 'film']
    """

    name: ClassVar[str]
    lower: ClassVar[bool] = False

    @abstractmethod
    def tokenize(self, text: str) -> list[Token]:
        """Divide a text into tokens with their offsets.

        Args:
            text: the text.

        Returns:
            The tokens.
        """

    def words(self, text: str) -> list[str]:
        """Divide a text into tokens without offsets, which is faster for most tokenizers.

        Args:
            text: the text.

        Returns:
            The tokens as strings.
        """
        return [token.text for token in self.tokenize(text)]

    def __call__(self, text: str) -> list[str]:
        return self.words(text)

    def of_leaves(self, leaves: Sequence[str]) -> list[str]:
        """Convert the leaves of a tree to tokens.

        Args:
            leaves: the leaves.

        Returns:
            The tokens as strings.
        """
        return self.words(" ".join(leaves))

    def to_json(self) -> dict[str, Any]:
        """Convert to types of JSON, for `beamtree.data.tokenizers.from_json`.

        Returns:
            A document.

        Raises:
            ValueError: if the tokenizer is a function, which cannot be stored.
        """
        return {"name": self.name}

    @property
    def fingerprint(self) -> str | None:
        """A hash that is equal for equal tokenizers, in every process; None for a function."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokenizer):
            return NotImplemented
        return self is other or (self.fingerprint is not None and self.fingerprint == other.fingerprint)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<Tokenizer {self.name}>"


class Words(Tokenizer):
    """English words and punctuation in lower case, as `beamtree.data.words` defines them.

    Args:
        line_breaks: whether `<br />` in any spelling is a separator and not text, as in the reviews of IMDB.
    """

    name = "words"
    lower = True

    def __init__(self, line_breaks: bool = False) -> None:
        check_flag("line_breaks", line_breaks)
        self.line_breaks = line_breaks

    def tokenize(self, text: str) -> list[Token]:
        return [Token(*token) for token in english.tokenize_with_offsets(self._without_breaks(text))]

    def words(self, text: str) -> list[str]:
        return english.tokenize(self._without_breaks(text))

    def of_leaves(self, leaves: Sequence[str]) -> list[str]:
        return [leaf.lower() for leaf in leaves]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "line_breaks": self.line_breaks}

    def _without_breaks(self, text: str) -> str:
        # As many spaces as the break has characters, so that the offsets do not change.
        return _LINE_BREAK.sub(lambda found: " " * len(found[0]), text) if self.line_breaks else text


class Spaces(Tokenizer):
    """Splits at whitespace; tokens are unchanged."""

    name = "spaces"

    def tokenize(self, text: str) -> list[Token]:
        return [Token(found[0], *found.span()) for found in _SPACE_TOKEN.finditer(text)]

    def words(self, text: str) -> list[str]:
        return text.split()


class Formal(Tokenizer):
    """Tokens of ListOps and of propositional logic, with or without spaces between them.

    Args:
        parentheses: whether ( and ) are tokens. Otherwise they are ignored, since those of ListOps files are of the
            gold tree.
    """

    name = "formal"

    def __init__(self, parentheses: bool = True) -> None:
        check_flag("parentheses", parentheses)
        self.parentheses = parentheses

    def tokenize(self, text: str) -> list[Token]:
        found = (Token(match[0], *match.span()) for match in _FORMAL_TOKEN.finditer(text))
        return [token for token in found if self.parentheses or token.text not in ("(", ")")]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "parentheses": self.parentheses}


@runtime_checkable
class SupportsEncode(Protocol):
    """The methods of a `tokenizers.Tokenizer` that are used."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any: ...

    def to_str(self) -> str: ...


class HuggingFace(Tokenizer):
    """A tokenizer of Hugging Face's `tokenizers`, without special tokens, padding and truncation.

    A space inside a token is replaced by "▁", any other whitespace by its bytes, "<0x0A>".

    Args:
        tokenizer: the contents of its `tokenizer.json`, or what `tokenizers.Tokenizer.to_str` returns, as a mapping.
    """

    name = "huggingface"

    def __init__(self, tokenizer: Mapping[str, Any]) -> None:
        try:
            package = importlib.import_module("tokenizers")
        except ImportError:
            raise ValueError(
                "a tokenizer of Hugging Face needs the package tokenizers: pip install tokenizers"
            ) from None
        self._document = {**tokenizer, "padding": None, "truncation": None}
        try:
            self._tokenizer = package.Tokenizer.from_str(json.dumps(self._document, ensure_ascii=False))
        except Exception as error:  # the package raises no more specific class
            raise ValueError(f"this is not a tokenizer of Hugging Face ({_shortened(str(error))})") from None

    def tokenize(self, text: str) -> list[Token]:
        encoding = self._encode(text)
        return [
            Token(_visible(token), *_trimmed(text, start, end))
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
        ]

    def words(self, text: str) -> list[str]:
        return [_visible(token) for token in self._encode(text).tokens]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "tokenizer": self._document}

    def _encode(self, text: str) -> Any:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # an unpaired surrogate
            raise ValueError(f"{_shortened(text)} cannot be tokenized: it is not valid Unicode") from None


class Custom(Tokenizer):
    """Any function from a text to its tokens. It is not stored with a model: pass it again when the model is loaded.

    Offsets are determined by searching the text for each token, after the previous one, ignoring case. A token that is
    not found gets the span between its neighbours.
    """

    name = "custom"

    def __init__(self, function: Callable[[str], Sequence[str]]) -> None:
        self.function = function

    def words(self, text: str) -> list[str]:
        found = self.function(text)
        if not isinstance(found, Iterable) or isinstance(found, str | bytes):
            raise ValueError(f"the tokenizer returned {_shortened(found)}: it must be a list of tokens")
        tokens = list(found)
        for token in tokens:
            if not isinstance(token, str) or token.split() != [token]:
                raise ValueError(
                    f"the tokenizer returned the token {_shortened(token)}: "
                    "a token must be a non-empty string without whitespace"
                )
        return tokens

    def tokenize(self, text: str) -> list[Token]:
        tokens = self.words(text)
        return [Token(token, *span) for token, span in zip(tokens, _located(tokens, text), strict=True)]

    def to_json(self) -> dict[str, Any]:
        raise ValueError(f"the tokenizer is {self.function!r}: a function cannot be stored with a model")

    @property
    def fingerprint(self) -> str | None:
        return None

    def __hash__(self) -> int:
        return id(self)


TokenizerLike = str | Tokenizer | SupportsEncode | Callable[[str], Sequence[str]]

_NAMED: dict[str, Callable[[], Tokenizer]] = {"words": Words, "spaces": Spaces}
NAMES = tuple(_NAMED)


def make_tokenizer(tokenizer: TokenizerLike) -> Tokenizer:
    """Create a tokenizer.

    Args:
        tokenizer: "words" for English words in lower case; "spaces" to split at whitespace; the path of a
            `tokenizer.json`; a `tokenizers.Tokenizer` of Hugging Face, or one of `transformers` that has one; a
            function from a text to a list of tokens; or a `Tokenizer`, which is returned as it is.

    Returns:
        The tokenizer.

    Raises:
        ValueError: if it is none of these.

    Examples:
        >>> beamtree.data.make_tokenizer("words").words("It isn't.")
        ['it', 'is', "n't", '.']
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, str):
        return _read(tokenizer) if tokenizer.endswith(".json") else _of_name(tokenizer)
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)  # an attribute of those of transformers
    if isinstance(tokenizer, SupportsEncode):
        return _of_huggingface(tokenizer)
    if callable(tokenizer):
        return Custom(tokenizer)
    raise ValueError(
        f"tokenizer is {_shortened(tokenizer)}: it must be one of {', '.join(NAMES)}, a function from a text to a list "
        "of tokens, or a tokenizer of Hugging Face"
    )


def task_tokenizer(task: str, formal_words: Container[str] | None) -> Tokenizer:
    """Create the tokenizer of a task of the paper; `formal_words` is the vocabulary of a formal language, or None."""
    if formal_words is not None:
        return Formal(parentheses="(" in formal_words)
    return Words(line_breaks=task == "imdb")


def from_json(document: Any) -> Tokenizer:
    """Create the tokenizer whose `to_json` returned the document."""
    if not isinstance(document, Mapping) or "name" not in document:
        raise ValueError(f"{_shortened(document)} is not a tokenizer: it must be an object with a name")
    name = document["name"]
    options = {key: value for key, value in document.items() if key != "name"}
    check_choice("tokenizer", name, tuple(_STORED))
    try:
        return _STORED[name](**options)
    except TypeError:
        raise ValueError(f"the tokenizer {name} has no options {', '.join(options)}") from None


_STORED: dict[str, Callable[..., Tokenizer]] = {
    Words.name: Words,
    Spaces.name: Spaces,
    Formal.name: Formal,
    HuggingFace.name: HuggingFace,
}


def _of_name(name: str) -> Tokenizer:
    if name in (HuggingFace.name, Custom.name):
        raise ValueError(f"tokenizer is {name!r}, which is a kind of tokenizer: pass the tokenizer itself")
    check_choice("tokenizer", name, NAMES)
    return _NAMED[name]()


def _of_huggingface(tokenizer: SupportsEncode) -> Tokenizer:
    try:
        document = tokenizer.to_str()
    except Exception as error:  # it has components that are written in Python
        raise ValueError(
            f"the tokenizer cannot be stored ({error}): pass the function lambda text: tokenizer.encode(text).tokens"
        ) from None
    return HuggingFace(json.loads(document))


def _read(path: str) -> Tokenizer:
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except OSError as error:
        raise ValueError(f"{path}: it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: it is not JSON: it must be a tokenizer.json of Hugging Face") from None
    try:
        # Documents of `to_json` have a name, those of Hugging Face have none.
        is_ours = not isinstance(document, Mapping) or "name" in document
        return from_json(document) if is_ours else HuggingFace(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _visible(token: str) -> str:
    if token.split() == [token]:
        return token
    return "".join(_escaped(character) if character.isspace() else character for character in token)


def _escaped(space: str) -> str:
    return "▁" if space == " " else "".join(f"<0x{byte:02X}>" for byte in space.encode())


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without surrounding whitespace, which byte-level tokenizers include in a token."""
    inner = text[start:end]
    if not inner.strip():
        return start, end
    return start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())


def _located(tokens: Sequence[str], text: str) -> list[tuple[int, int]]:
    """The span of each token in the text; for one that is not found, the span between its neighbours."""
    folded, origin = _folded(text)
    found: list[tuple[int, int] | None] = []
    position = 0
    for token in tokens:
        wanted, _ = _folded(token)
        start = folded.find(wanted, position)
        if start < 0:
            found.append(None)
        else:
            position = start + len(wanted)
            found.append((origin[start], origin[position - 1] + 1))
    ends = accumulate((span[1] if span else 0 for span in found), max)
    starts = accumulate((span[0] if span else len(text) for span in reversed(found)), min)
    gaps = zip(ends, reversed(list(starts)), strict=True)
    return [span or _trimmed(text, min(gap), gap[1]) for span, gap in zip(found, gaps, strict=True)]


def _folded(text: str) -> tuple[str, list[int]]:
    """The case-folded text, and for each of its characters the index in the original."""
    pieces = [character.casefold() for character in text]
    return "".join(pieces), [index for index, piece in enumerate(pieces) for _ in piece]


def _shortened(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
