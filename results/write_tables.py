"""Write the tables of `docs/results.md` from the files of the runs: `make results`.

Between `<!-- runs: FOLDER -->` and `<!-- end -->` stands what `beamtree report FOLDER` prints, without its heading. All
figures there come from the files in that folder.
"""

import re
from pathlib import Path

from beamtree import report

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results.md"
BLOCK = re.compile(r"(<!-- runs: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with its tables as the files have them now."""
    return BLOCK.sub(lambda block: f"{block[1]}{tables(block[2])}\n{block[4]}", page)


def tables(folder: str) -> str:
    found = report.find([str(ROOT / folder)])
    text = report.markdown(report.tables(found.runs, mean=False))
    return re.sub(r"^## .*\n\n", "", text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
