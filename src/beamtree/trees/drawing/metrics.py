"""Widths of text, from the advance widths of DejaVu Sans.

The table below is part of the package, so a drawing has the same layout whether or not matplotlib is installed. PNG,
PDF and outlines are painted with this font, which is part of matplotlib. SVG viewers without it use Verdana, which has
about the same widths, or another sans-serif font, which is narrower.
"""

import unicodedata
from functools import cache

FONT_SIZE = 13.0  # pixels
LINE_HEIGHT = 18.0
BASELINE = 0.35 * FONT_SIZE  # below the middle of a line; capitals are 0.73 em high
MAX_WIDTH = 250.0  # of a leaf; longer ones are clipped

# Each entry is an advance width in 1/1000 em, followed by the characters that have it.
_TABLE = r"""
0275' 0278ijlıіј 0284ł 0295IJΙІЈ 0318,.·‘’ 0337/:;\|¦ 0338ι 0342ŀ 0352fſ 0361- 0390()[] 0392tŧ 0400‹› 0401!¡²³¹
0411r 0460" 0471ªº 0500*_`§¨¯°´¸–†‡ 0518“”„ 0521sѕ 0525zг 0531?¿ 0532з 0541ε 0544ζ 0549эє 0550cс 0556ĳ 0557LĿΓ
0558ξ 0559ν 0562Ł 0575F 0578χ 0579kĸυ 0583т 0587ς 0589κвь 0590Ĳ• 0591ч 0592vxyγλух 0602πτя 0603PΡР 0604к 0605Þ
0609У 0610Г 0611TYŦΤΥТ 0612o«»ðøδθοо 0613aа 0615eе 0617б 0625ђ 0630ß 0632EΕΞΣЕ 0634hnuŋησ 0635SbdgpqþđρЅр
0636$0123456789{}¢£¤¥µ¶μ€ 0638β 0639л 0641З 0650и 0652ћ 0654нпџ 0656KΚ 0659α 0660φψ 0681ц 0684AVΑΔΛА 0685XZΖΧХ
0686BΒБВЧЬ 0691д 0695RħЯ 0698CЄСЭ 0707ъ 0710К 0732U 0748NŊΝИ 0752HΗΠЏЛНП 0754м 0764Ω 0770D 0775GÐĐ 0776Ц 0780&
0781Д 0786ЂЋ 0787OQØΘΟΦΨО 0790ы 0813ŉ 0818w 0833Ъ 0837ω 0838#+<=>^~¬±×÷−≤≥→ 0842ю 0855ф 0861Ф 0863MΜМ 0882Ы
0898њ 0901ж 0902љ 0915ш 0916Ħ 0942щ 0950% 0969¼½¾ 0974mÆ 0982æ 0989W 1000@©®—… 1023œ 1045Њ 1069Ш 1070Œ 1077Ж
1080Ю 1094ЉЩ
"""
_WIDTHS = {character: int(group[:4]) / 1000 for group in _TABLE.split() for character in group[4:]} | {" ": 0.318}
_UNKNOWN = 0.8  # em, for characters that are not in the table: wider than most letters
_IDEOGRAPH, _EMOJI = 1.0, 1.3  # em
_FIRST_EMOJI = "\U0001f000"


def text_width(text: str) -> float:
    """Width of a text in pixels. Exact for Latin, Greek and Cyrillic letters, an upper bound for most others."""
    return FONT_SIZE * sum(map(_advance, text))


def clip(text: str, width: float = MAX_WIDTH) -> str:
    """The text, or as much of its beginning as fits into the width, with an ellipsis."""
    if text_width(text) <= width:
        return text
    remaining = width - text_width("…")
    kept = 0
    for character in text:
        remaining -= text_width(character)
        if remaining < 0:
            break
        kept += 1
    return f"{text[:kept]}…"


def clean(text: str) -> str:
    """Replace control characters, and all others that XML 1.0 does not allow, by U+FFFD."""
    return "".join(character if _is_allowed(ord(character)) else "\ufffd" for character in text)


def _is_allowed(code: int) -> bool:
    return 0x20 <= code <= 0x7E or 0xA0 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


@cache
def _advance(character: str) -> float:
    """The advance width of a character in em."""
    if character in _WIDTHS:
        return _WIDTHS[character]
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):  # combining and invisible characters
        return 0.0
    if unicodedata.east_asian_width(character) in ("W", "F"):
        return _IDEOGRAPH if character < _FIRST_EMOJI else _EMOJI
    base = unicodedata.normalize("NFD", character)[0]  # of a letter with accents
    return _WIDTHS.get(base, _UNKNOWN)
