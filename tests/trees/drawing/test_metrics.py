"""Widths of text are those of the font that PNG and PDF are painted with."""

import importlib

import pytest

from beamtree.trees.drawing import metrics
from beamtree.trees.drawing.metrics import FONT_SIZE, clean, clip, text_width


def test_the_table_has_the_advance_widths_of_dejavu_sans():
    pytest.importorskip("matplotlib")
    manager = importlib.import_module("matplotlib.font_manager")
    font = manager.get_font(manager.findfont("DejaVu Sans", fallback_to_default=False))
    units = importlib.import_module("matplotlib.ft2font").LoadFlags.NO_SCALE
    assert len(metrics._WIDTHS) > 300
    for character, width in metrics._WIDTHS.items():
        advance = font.load_char(ord(character), flags=units).horiAdvance / font.units_per_EM
        assert width == pytest.approx(advance, abs=0.0006), character


def test_accents_have_no_width_and_ideographs_have_one_em():
    assert text_width("é") == text_width("e\u0301") == text_width("e")
    assert text_width("中文") == 2 * FONT_SIZE
    assert text_width("🌲") > FONT_SIZE
    assert text_width("\u200b") == 0
    assert text_width("iii") < text_width("mmm")


def test_a_clipped_text_fits_and_is_a_beginning():
    for text in ("x" * 400, "中" * 100, "e\u0301" * 100):
        for width in (30.0, 77.7, 250.0):
            shown = clip(text, width)
            assert text_width(shown) <= width
            assert shown.endswith("…")
            assert text.startswith(shown[:-1])
            assert text_width(text[: len(shown)]) > width - text_width("…") - text_width(text[0])
    assert clip("film") == "film"


def test_what_xml_does_not_allow_and_control_characters_are_replaced():
    assert clean("a\x00\x1b\ud800\uffff\n\x7f\x9b") == "a" + "\ufffd" * 7
    assert clean("é中𝔸🌲 ~\xa0") == "é中𝔸🌲 ~\xa0"
