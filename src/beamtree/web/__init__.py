"""The page that shows what models read in a text: served by `beamtree serve`, or written into one HTML file.

The page draws documents, as `beamtree.answers.as_json` makes them. Its parts lie beside this file: page.html, view.css
and the scripts, which are plain scripts and no modules, since a page that is opened as a file may not import any.
"""

from importlib import resources

STYLE = "view.css"
SCRIPTS = ("dom.js", "tree.js", "chart.js", "steps.js", "panel.js", "view.js")  # each uses those before it


def read(name: str) -> str:
    """A part of the page, by its file's name."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
