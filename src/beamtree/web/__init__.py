"""The web page that shows a model's trees and predictions: served by `beamtree serve`, or one HTML file.

The page draws documents made by `beamtree.models.answers.as_json`. Its parts are in this folder: page.html, view.css
and the scripts. They are plain scripts, not modules: browsers refuse module imports in a page opened from a file.
"""

from importlib import resources

STYLE = "view.css"
SCRIPTS = ("dom.js", "tree.js", "chart.js", "steps.js", "panel.js", "view.js")  # each uses those before it


def read(name: str) -> str:
    """The contents of a file of the page."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
