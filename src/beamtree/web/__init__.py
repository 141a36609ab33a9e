"""The web page that shows the labels and trees of a text, served by `beamtree serve` or exported as one HTML file.

The page draws documents from `beamtree.models.answers.as_json`. It consists of page.html, view.css and ES modules in
this folder; vendor/ holds D3. The colours in palette.css come from `beamtree.utils.palette`. Browsers do not allow
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
    """Read a file of the page."""
    if name == "palette.css":
        return palette.css()
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def script() -> str:
    """Join all modules into one script. Their top-level names must be unique."""
    joined = "\n".join(_EXPORT.sub("", _IMPORT.sub("", read(name))) for name in SCRIPTS)
    return joined.replace("\nexport { d3 };\n", "\n")
