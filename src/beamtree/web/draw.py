"""Drawings of a tree as SVG, PNG, PDF or LaTeX files, the same as those of `beamtree parse`."""

import json
from threading import Lock
from typing import Any, Literal

from pydantic import Field

from beamtree.trees import Tree
from beamtree.trees.drawing import draw_tree
from beamtree.trees.drawing.drawing import Drawing
from beamtree.trees.drawing.scene import DrawingTooLarge
from beamtree.trees.parses import Node
from beamtree.utils.palette import Theme
from beamtree.web.errors import RequestError
from beamtree.web.schemas import ParseRequest

MEDIA_TYPES = {"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf", "tex": "application/x-tex"}
_LOCK = Lock()  # matplotlib is not thread-safe


class DrawRequest(ParseRequest):
    """A request for a drawing of one tree."""

    format: Literal["svg", "png", "pdf", "tex"]
    beam: int = Field(0, description="Index of the tree in the answer of /api/parse.", ge=0)
    side: int = Field(0, description="0, or 1 for the second text of a pair.", ge=0, le=1)
    theme: Theme = "paper"


def draw(answer: bytes, asked: DrawRequest) -> bytes:
    """Draw a tree and return the contents of the file. `answer` is the document of its text as JSON."""
    document = json.loads(answer)
    side = _item(document["sides"], asked.side, "side")
    beam = _item(side["beams"], asked.beam, "beam")
    nodes = [_node(each, document["labels"]) for each in beam["constituents"]]
    probabilities = {(start, end): value for start, end, value in side["chart"]}
    with _LOCK:
        drawing = draw_tree(Tree.parse(beam["tree"]), nodes, probabilities=probabilities, theme=asked.theme)
        try:
            return _content(drawing, asked.format)
        except DrawingTooLarge as error:
            raise RequestError(str(error)) from None


def _content(drawing: Drawing, file_format: str) -> bytes:
    match file_format:
        case "svg":
            return drawing.svg().encode()
        case "png":
            return drawing.png()
        case "pdf":
            return drawing.pdf()
    return drawing.tikz().encode()


def _item(items: list[dict[str, Any]], index: int, name: str) -> dict[str, Any]:
    if index >= len(items):
        raise RequestError(f"{name} {index} does not exist: the answer has {len(items)}, counted from 0")
    return items[index]


def _node(constituent: dict[str, Any], labels: list[str]) -> Node:
    probabilities = dict(zip(labels, constituent["probabilities"] or (), strict=False))
    return Node(**{**constituent, "probabilities": probabilities})
