"""A drawing in hand: in a notebook and in a file."""

import pytest

from beamtree.trees.drawing import draw_beams, draw_tree
from trees.drawing.parses import chain, make_parses


def test_a_notebook_shows_the_svg_and_scrolls_it():
    drawing = draw_tree(chain(3))
    assert drawing._repr_svg_() == drawing.svg()
    assert drawing._repr_html_().startswith('<div style="overflow: auto')
    assert drawing.svg() in drawing._repr_html_()
    assert make_parses("abc")._repr_html_() == draw_beams(make_parses("abc"))._repr_html_()


def test_a_file_is_what_its_name_says(tmp_path):
    pytest.importorskip("matplotlib")
    drawing = draw_tree(chain(3))
    drawing.save(tmp_path / "tree.svg")
    drawing.save(str(tmp_path / "tree.PNG"))
    assert (tmp_path / "tree.svg").read_text() == drawing.svg()
    assert (tmp_path / "tree.PNG").read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_answered_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"tree.jpg' must end in .svg or .png"):
        draw_tree(chain(3)).save(tmp_path / "tree.jpg")
    with pytest.raises(ValueError, match="cannot be written"):
        draw_tree(chain(3)).save(tmp_path / "none" / "tree.svg")


def test_its_repr_is_short():
    assert repr(draw_tree(chain(300))).startswith("<Drawing of a tree over 300 leaves, ")
