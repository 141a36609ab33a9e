"""Files of trees from the server."""

from xml.etree import ElementTree

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from beamtree.models.pretrained import load
from beamtree.trees.drawing.drawing import Drawing
from beamtree.trees.drawing.scene import DrawingTooLarge
from beamtree.utils import palette
from beamtree.web.app import create_app
from web.toy_models import EXPRESSION

STARTS = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF", "tex": b"\\documentclass"}


@pytest.fixture(scope="module")
def client(folder):
    models = {name: load(folder / name) for name in ("one", "pairs")}
    return TestClient(create_app(models, hosts=["testserver"]), raise_server_exceptions=False)


def drawn(client, **asked):
    return client.post("/api/draw", json={"model": "one", "text": EXPRESSION, "format": "svg", **asked})


@pytest.mark.parametrize("kind", STARTS)
def test_a_tree_is_a_file_of_each_format(client, kind):
    answer = drawn(client, format=kind)
    assert answer.status_code == 200
    assert answer.content.startswith(STARTS[kind])


def test_the_beam_the_side_and_the_theme_are_chosen(client):
    assert drawn(client).content != drawn(client, beam=1).content
    assert palette.THEMES["dark"]["ground"] in drawn(client, theme="dark").text
    pair = {"model": "pairs", "text": "( a ( and b ) )", "second": "( not c )"}
    texts = ["".join(each.itertext()) for each in ElementTree.fromstring(drawn(client, **pair, side=1).content).iter()]
    assert "not" in texts
    assert "and" not in texts


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"beam": 99}, "beam 99 does not exist: the answer has"),
        ({"side": 1}, "side 1 does not exist: the answer has 1"),
        ({"format": "exe"}, "format"),
        ({"theme": "pink"}, "theme"),
        ({"beam": -1}, "beam"),
        ({"model": "three"}, "three"),
        ({"text": "[MXA 1 ]"}, "did you mean '[MAX'?"),
    ],
)
def test_the_error_says_what_cannot_be_drawn(client, asked, message):
    answer = drawn(client, **asked)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (DrawingTooLarge("too large for a PNG"), 422, "too large for a PNG"),
        (ValueError("secret"), 500, "internal error"),
    ],
)
def test_only_the_size_of_a_drawing_is_reported(client, monkeypatch, error, status, message):
    def fail(drawing):
        raise error

    monkeypatch.setattr(Drawing, "svg", fail)
    answer = drawn(client)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert "secret" not in answer.text
