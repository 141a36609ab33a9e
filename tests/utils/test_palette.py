"""One palette for drawings, plots and the web page."""

import re

import pytest

from beamtree.utils.palette import CATEGORY, SENTIMENT, SERIES, THEMES, color, css, label_styles, text_on

GRADES = ("very negative", "negative", "neutral", "positive", "very positive")


def luminance(value):
    channels = [int(value[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """WCAG's contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_grades_of_sentiment_are_on_one_scale_whichever_of_them_a_model_has():
    assert label_styles(GRADES) == tuple(f"sentiment-{grade}" for grade in range(1, 6))
    assert label_styles(("negative", "positive")) == ("sentiment-1", "sentiment-5")
    assert label_styles(("negative", "neutral", "positive")) == ("sentiment-2", "sentiment-3", "sentiment-4")


def test_values_have_no_colour_and_few_categories_have_one_each():
    assert label_styles(tuple("0123456789")) == (None,) * 10
    assert label_styles(("sport", "news")) == ("category-1", "category-2")
    many = tuple(f"topic {number}" for number in range(len(CATEGORY["paper"]) + 1))
    assert set(label_styles(many)) == {None}
    assert None not in label_styles(many[:-1])
    assert label_styles(()) == ()


@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_a_style_has_the_colour_of_its_theme(theme):
    assert color("wrong", theme) == THEMES[theme]["wrong"]
    assert color("on-heat", theme) == THEMES[theme]["on-heat"]
    assert [color(f"sentiment-{grade}", theme) for grade in range(1, 6)] == list(SENTIMENT[theme])
    assert color("category-2", theme) == CATEGORY[theme][1]


@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_probabilities_go_from_the_ground_to_the_full_colour(theme):
    assert color("heat-0", theme) == THEMES[theme]["ground"]
    assert color("heat-100", theme) == THEMES[theme]["heat"]
    steps = [luminance(color(f"heat-{percent}", theme)) for percent in range(0, 101, 10)]
    assert steps == sorted(steps, reverse=theme == "paper")
    assert len(set(steps)) == 11


@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_text_is_legible_on_its_ground(theme):
    for name in ("ink", "faint", "wrong", "right"):
        assert contrast(color(name, theme), color("ground", theme)) >= 4.5
    for background in (*SENTIMENT[theme], *CATEGORY[theme]):
        assert contrast(text_on(background), background) >= 4.5


def test_css_has_every_colour_of_both_themes():
    light, dark = css().split("@media (prefers-color-scheme: dark)")
    for part, theme in ((light, "paper"), (dark, "dark")):
        found = dict(re.findall(r"--([-\w]+): (#\w{6});", part))
        assert THEMES[theme].items() <= found.items()
        assert [found[f"sentiment-{grade}"] for grade in range(1, 6)] == list(SENTIMENT[theme])
        assert found["on-sentiment-1"] == text_on(SENTIMENT[theme][0])


def test_lines_of_plots_differ():
    assert len(set(SERIES)) == len(SERIES)
