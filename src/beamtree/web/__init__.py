"""The web page that shows a model's trees and predictions: served by `beamtree serve`, or one HTML file.

The page draws documents made by `beamtree.models.answers.as_json`. Its parts are in this folder: page.html, view.css
and ES modules; vendor/ holds D3. The colours, palette.css, are those of `beamtree.utils.palette`. Browsers refuse
module imports in a page that is opened from a file, so `script` joins the modules into one.
"""

import re
from importlib import resources

from beamtree.utils import palette

STYLES = ("palette.css", "view.css")
SCRIPTS = (  # each imports only from those before it
    "vendor/d3.js",
    "dom.js",
    "documents.js",
    "layout.js",
    "marks.js",
    "minimap.js",
    "walk.js",
    "camera.js",
    "tree.js",
    "chart.js",
    "skyline.js",
    "beams.js",
    "steps.js",
    "details.js",
    "compare.js",
    "api.js",
    "download.js",
    "stage.js",
    "address.js",
    "history.js",
    "table.js",
    "browse.js",
    "view.js",
)
MAIN = SCRIPTS[-1]

_IMPORT = re.compile(r'^import \{[^}]*\} from "[^"]+";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class)\b)", re.MULTILINE)


def read(name: str) -> str:
    """The contents of a file of the page."""
    if name == "palette.css":
        return palette.css()
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def script() -> str:
    """All modules as one. They share their top-level names, which therefore differ."""
    joined = "\n".join(_EXPORT.sub("", _IMPORT.sub("", read(name))) for name in SCRIPTS)
    return joined.replace("\nexport { d3 };\n", "\n")
