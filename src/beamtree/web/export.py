"""Export of the page as a single HTML file that needs no server, for example for the supplement of a paper."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from beamtree.web import MAIN, STYLES, read, script


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """Create a self-contained page that shows documents from `beamtree.models.answers.as_json`.

    The file loads nothing: its content security policy allows only the embedded script and style, and no requests.
    """
    if not documents:
        raise ValueError("there are no documents to show: give at least one")
    style, code = "\n".join(map(read, STYLES)), script()
    # The page creates PNG files from images with "data:" URLs, which load nothing.
    policy = (
        f"default-src 'none'; script-src {_digest(code)}; style-src {_digest(style)}; img-src data:; base-uri 'none'"
    )
    # The documents are inserted last, so that nothing in texts of users is replaced.
    text = _replaced(
        read("page.html"),
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
    )
    links = "\n".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
    text = _replaced(text, links, f"<style>{style}</style>")
    text = _replaced(text, '<link rel="icon" href="icon.svg">\n', "")
    before, after = _split(text, f'<script type="module" src="{MAIN}"></script>')
    data = f'<script type="application/json" id="documents">{_embedded(documents)}</script>'
    return f'{before}{data}\n<script type="module">{code}</script>{after}'


def _embedded(documents: Sequence[Mapping[str, Any]]) -> str:
    """JSON that cannot end the script element, and that escapes the line separators of JavaScript."""
    text = json.dumps(list(documents), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _digest(text: str) -> str:
    """The hash of a script or style for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _replaced(text: str, old: str, new: str) -> str:
    return new.join(_split(text, old))


def _split(text: str, mark: str) -> tuple[str, str]:
    before, *after = text.split(mark)
    assert len(after) == 1, f"page.html has {mark!r} {len(after)} times, not once"
    return before, after[0]
