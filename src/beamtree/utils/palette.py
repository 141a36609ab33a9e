"""The colours of drawings, plots and the web page.

    THEMES["paper"]["ink"]                          # "#1b1f24"
    label_styles(("negative", "positive"))          # ("sentiment-1", "sentiment-5")
    color("sentiment-5", "dark")                    # "#4393c3"
    color("heat-25")                                # "#bfd2de": a probability of 25 %
    css()                                           # all of them as CSS variables, light and dark

The hues are those of Okabe and Ito and of ColorBrewer's RdBu, which colour-blind readers can distinguish. Whatever a
colour means is also shown by a word, a width or a dash.
"""

from collections.abc import Sequence
from typing import Literal

Theme = Literal["paper", "dark"]

THEMES: dict[Theme, dict[str, str]] = {
    "paper": {
        "ground": "#ffffff",
        "raised": "#f4f6f8",
        "ink": "#1b1f24",
        "faint": "#56606b",
        "line": "#c3cad2",
        "tree": "#0072b2",
        "heat": "#004a7c",
        "on-heat": "#ffffff",
        "lit": "#b84a00",
        "wrong": "#c1121f",
        "right": "#00704f",
        "shared": "#0072b2",
        "only": "#b84a00",
    },
    "dark": {
        "ground": "#14171a",
        "raised": "#1e2328",
        "ink": "#e8ebee",
        "faint": "#a5afba",
        "line": "#454e58",
        "tree": "#56b4e9",
        "heat": "#8fd0ff",
        "on-heat": "#14171a",
        "lit": "#f0a818",
        "wrong": "#ff7b72",
        "right": "#3fbf8f",
        "shared": "#56b4e9",
        "only": "#f0a818",
    },
}
# Lines of plots, and labels that have no order; without yellow, which is too pale on paper.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# From very negative to very positive, as in the Stanford Sentiment Treebank.
SENTIMENT: dict[Theme, tuple[str, ...]] = {
    "paper": ("#ca0020", "#f4a582", "#e6e6e6", "#92c5de", "#0571b0"),
    "dark": ("#e34c61", "#f4a582", "#c8c8c8", "#92c5de", "#4393c3"),
}
CATEGORY: dict[Theme, tuple[str, ...]] = {
    "paper": (*SERIES[:6], "#6a6a6a"),
    "dark": ("#56b4e9", "#f28e2b", "#3fbf8f", "#e39fc6", "#f0c03a", "#9fd8ff", "#b0b0b0"),
}

_GRADES = ("very negative", "negative", "neutral", "positive", "very positive")
_DARK_TEXT, _LIGHT_TEXT = "#14171a", "#ffffff"


def label_styles(labels: Sequence[str]) -> tuple[str | None, ...]:
    """The style of each label of a model: a grade of sentiment, a category, or None for values, which are text only."""
    if set(labels) <= set(_GRADES):
        # Two classes are the ends of the scale, for as much contrast as five have.
        grades = {"negative": 1, "positive": 5} if len(labels) == 2 else {}
        return tuple(f"sentiment-{grades.get(label, _GRADES.index(label) + 1)}" for label in labels)
    if all(label.isdecimal() for label in labels) or len(labels) > len(CATEGORY["paper"]):
        return (None,) * len(labels)
    return tuple(f"category-{index}" for index in range(1, len(labels) + 1))


def color(style: str, theme: Theme = "paper") -> str:
    """The colour of a label's style, of a name in `THEMES`, or of a probability in percent, such as "heat-25"."""
    kind, _, value = style.rpartition("-")
    if kind == "heat":
        return _mix(THEMES[theme]["ground"], THEMES[theme]["heat"], int(value) / 100)
    scales = {"sentiment": SENTIMENT, "category": CATEGORY}
    return scales[kind][theme][int(value) - 1] if kind in scales else THEMES[theme][style]


def text_on(background: str) -> str:
    """The dark or light colour for text on this background, whichever has the higher WCAG contrast."""
    luminance = _luminance(background)
    dark = (luminance + 0.05) / (_luminance(_DARK_TEXT) + 0.05)
    light = (_luminance(_LIGHT_TEXT) + 0.05) / (luminance + 0.05)
    return _DARK_TEXT if dark >= light else _LIGHT_TEXT


def css() -> str:
    """All colours as CSS variables, such as `--ink`, `--sentiment-1` and the text on it, `--on-sentiment-1`."""
    return (
        f":root {{ color-scheme: light dark;\n{_variables('paper')}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{\n{_variables('dark')}}} }}\n"
    )


def _variables(theme: Theme) -> str:
    found = dict(THEMES[theme])
    for kind, scale in (("sentiment", SENTIMENT), ("category", CATEGORY)):
        for index, value in enumerate(scale[theme], start=1):
            found |= {f"{kind}-{index}": value, f"on-{kind}-{index}": text_on(value)}
    return "".join(f"  --{name}: {value};\n" for name, value in found.items())


def _mix(start: str, end: str, share: float) -> str:
    """The colour at this share of the way between two colours "#rrggbb"."""
    channels = zip(*([int(value[i : i + 2], 16) for i in (1, 3, 5)] for value in (start, end)), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in channels)


def _luminance(value: str) -> float:
    """The relative luminance of a colour "#rrggbb", by WCAG 2."""
    channels = (int(value[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
