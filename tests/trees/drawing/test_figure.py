"""PNG and PDF of the same layout, painted with matplotlib."""

import importlib.util
import io
import shutil
import subprocess

import pytest

from beamtree import Tree
from beamtree.trees.drawing import draw_beams, draw_chart, draw_tree
from beamtree.trees.drawing.scene import Dot, DrawingTooLarge, Rectangle, Text
from beamtree.utils.palette import color
from trees.drawing.parses import SENTIMENT, chain, listops, make_parses, nodes

matplotlib = pytest.importorskip("matplotlib")


def image(drawing):
    return matplotlib.image.imread(io.BytesIO(drawing.png()))


def pixel(painted, x, y):
    """The colour at a place of the scene, of which a pixel is three."""
    red, green, blue = (round(255 * value) for value in painted[int(3 * y), int(3 * x), :3])
    return f"#{red:02x}{green:02x}{blue:02x}"


@pytest.fixture(autouse=True)
def reader():
    importlib.import_module("matplotlib.image")


def test_a_png_has_three_pixels_for_one_of_the_scene():
    drawing = draw_beams(make_parses("abcd"))
    height, width, _ = image(drawing).shape
    assert width == pytest.approx(3 * (drawing.scene.width + 20), abs=2)
    assert height == pytest.approx(3 * (drawing.scene.height + 20), abs=2)


@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_shapes_have_their_colours_where_the_scene_has_them(theme):
    chart = draw_chart("ab", make_parses("ab", count=1), theme=theme)
    painted = image(chart)
    cell = [shape for shape in chart.scene.painting_order() if isinstance(shape, Rectangle)][-1]
    for x, y in ((cell.x + 2, cell.y + 2), (cell.x + cell.width - 2, cell.y + cell.height - 2)):
        assert pixel(painted, x, y) == color("heat", theme)
    assert pixel(painted, 0, 0) == color("ground", theme)


@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_dots_cover_the_lines(theme):
    tree = Tree.parse("((a b) c)")
    drawing = draw_tree(tree, nodes(tree, SENTIMENT, SENTIMENT), theme=theme)
    painted = image(drawing)
    dots = [shape for shape in drawing.scene.painting_order() if isinstance(shape, Dot)]
    assert len(dots) == 5
    for dot in dots:
        for x, y in ((0, 0), (1.5, 0), (-1.5, 0), (0, -1.5)):  # lines run through all of these places
            assert pixel(painted, dot.x + x, dot.y + y) == color(dot.style, theme)


def test_a_wrong_value_is_red():
    drawing = draw_tree(*listops())
    (text,) = [shape for shape in drawing.scene.painting_order() if isinstance(shape, Text) and "≠" in shape.text]
    painted = image(drawing)
    around = {pixel(painted, text.x + x / 3, text.y + y / 3) for x in range(-30, 31) for y in range(-12, 13)}
    assert color("wrong") in around


def test_dollars_and_control_characters_are_only_characters():
    assert draw_tree(Tree(("$x^{$", "\x01\ud800", "\\frac"), (0, 1, 1))).png().startswith(b"\x89PNG")


def test_characters_that_the_font_lacks_are_named_once():
    drawing = draw_tree(Tree.parse("(中文 (文 中))"))
    for paint in (drawing.png, drawing.pdf, lambda: drawing.svg("outlines")):
        with pytest.warns(RuntimeWarning, match="DejaVu Sans has no glyphs for 中 文: drawn as boxes") as caught:
            paint()
        assert len(caught) == 1


def test_what_is_too_large_is_refused_before_it_is_painted():
    with pytest.raises(DrawingTooLarge, match="pixels is too large for a PNG file: write an SVG"):
        draw_tree(chain(5000)).png()


def test_a_pdf_is_reproducible_and_has_the_size_of_the_scene():
    drawing = draw_tree(*listops())
    content = drawing.pdf()
    assert content.startswith(b"%PDF")
    assert content == draw_tree(*listops()).pdf()
    assert b"CreationDate" not in content
    box = [float(value) for value in content.split(b"/MediaBox [ ")[1].split(b" ]")[0].split()]
    assert box[2:] == pytest.approx([0.72 * (drawing.scene.width + 20), 0.72 * (drawing.scene.height + 20)], abs=0.1)


def test_the_text_of_a_pdf_can_be_searched(tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext is not installed")
    tree = Tree.parse("((Roger Dodger) (film (naïve $x$)))")
    draw_tree(tree).save(tmp_path / "tree.pdf")
    found = subprocess.run(["pdftotext", tmp_path / "tree.pdf", "-"], capture_output=True, text=True, check=True)
    assert found.stdout.split() == list(tree.leaves)


def test_the_fonts_of_a_pdf_are_embedded_as_truetype():
    content = draw_tree(Tree.parse("((Roger Dodger) film)")).pdf()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content


@pytest.mark.parametrize(
    ("paint", "purpose"), [("png", "a PNG file"), ("pdf", "a PDF file"), ("svg", "SVG with outlines")]
)
def test_without_matplotlib_the_error_tells_what_to_install(monkeypatch, paint, purpose):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    drawing = draw_tree(chain(2))
    with pytest.raises(ValueError, match=f"^{purpose} needs matplotlib, which is not installed: pip install"):
        drawing.svg("outlines") if paint == "svg" else getattr(drawing, paint)()
    assert drawing.svg()
