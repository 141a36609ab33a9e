"""Code blocks of the documentation.

Blocks in the languages `python` and `bash` are run by a test. Commands in `sh` take long or need a GPU and are only
parsed. `text` is output.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
