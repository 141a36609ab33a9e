"""Pictures of the page are compared with stored ones, at two sizes, in light and dark.

To store new ones, delete tests/web/screenshots, run the tests twice and look at the pictures: the first run writes what
is missing, and fails.

The answers are fixed, so that only the page can change a picture. Fonts differ between machines, so both pictures are
blurred before pixels are compared, and a share of pixels may be far off. Shares measured when the pictures were
stored: another font, or letters 0.3 pixels further apart: 0.5 to 0.9 %; without the edges of the tree: 1.5 to 2.7 %;
without the strip of beams: 3 % and more; with a bar of twice the height: 6 % and more; without the column of the side
panel: 9 %; without the style sheet: 7 to 25 %. The look of a node is tested in test_page.py.
"""

from pathlib import Path

import pytest

from web.using import document, shown

pytestmark = pytest.mark.web
STORED = Path(__file__).parent / "screenshots"
SIZES = {"desktop": (1280, 800), "phone": (375, 800)}
TOLERATED = 0.014  # the share of the pixels that may be far off
FAR = 24  # of 255, after blurring
BLUR = 3  # pixels to each side
LABELS = ["very negative", "negative", "neutral", "positive", "very positive"]
STYLES = [f"sentiment-{grade}" for grade in range(1, 6)]
WORDS = ["not", "as", "good", "as", "the", "book", "it", "was", "made", "from"]
MERGES = [(0, 2), (4, 6), (8, 10), (7, 10), (6, 10), (2, 4), (4, 10), (0, 4), (0, 10)]
GRADES = {(0, 1): 1, (2, 3): 3, (0, 2): 1, (2, 4): 3, (0, 4): 0, (0, 10): 1}
MODEL = {"name": "sst5", "encoder": "beam-tree", "task": "sst5", "pair": False, "labels": LABELS}


def answer():
    chances = dict(zip(LABELS, [0.2, 0.6, 0.12, 0.05, 0.03], strict=True))
    given = {"model": "sst5", "labels": LABELS, "label_styles": STYLES, "label": "negative", "probabilities": chances}
    found = document(WORDS, MERGES, **given)
    [best] = found["sides"][0]["beams"]
    for node in best["constituents"]:
        grade = GRADES.get((node["start"], node["end"]), 2)
        node |= {"label": LABELS[grade], "probabilities": [0.8 if place == grade else 0.05 for place in range(5)]}
    other = {**best, "probability": 0.3}
    best["probability"] = 0.7
    found["sides"][0]["beams"].append(other)
    return found


def blurred(path):
    from PIL import Image, ImageFilter

    with Image.open(path) as image:
        return image.convert("RGB").filter(ImageFilter.BoxBlur(BLUR))


def difference(one, two):
    """The share of the pixels that are far off."""
    from PIL import ImageChops

    bands = ImageChops.difference(one, two).split()
    off = bands[0]
    for band in bands[1:]:
        off = ImageChops.lighter(off, band)
    counts = off.histogram()
    return sum(counts[FAR:]) / sum(counts)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_looks_as_it_did(chromium, server, tmp_path, size, scheme):
    pytest.importorskip("PIL")
    width, height = SIZES[size]
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    models = {"models": [{**MODEL, "example": [" ".join(WORDS)], "examples": [[" ".join(WORDS)], ["a good film"]]}]}
    page.route("**/api/models", lambda route: route.fulfill(json=models))
    page.route("**/api/parse", lambda route: route.fulfill(json=answer()))
    page.goto(f"{server}/#model=sst5&text={'+'.join(WORDS)}&node=0-4")
    shown(page)
    page.wait_for_timeout(200)
    name = f"{size}-{scheme}.png"
    page.screenshot(path=tmp_path / name)
    context.close()
    if not (STORED / name).exists():
        STORED.mkdir(exist_ok=True)
        (STORED / name).write_bytes((tmp_path / name).read_bytes())
        pytest.fail(f"{name} was not stored: now it is, look at it")
    share = difference(blurred(tmp_path / name), blurred(STORED / name))
    assert share < TOLERATED, f"{share:.1%} of {tmp_path / name} differ from {STORED / name}"


def test_a_picture_of_another_layout_is_told_apart():
    """A test of the measure: the stored pictures of two colour schemes, and one that is shifted by 40 pixels."""
    pytest.importorskip("PIL")
    from PIL import ImageChops

    light, dark = (blurred(STORED / f"desktop-{scheme}.png") for scheme in ("light", "dark"))
    assert difference(light, light) == 0
    assert difference(light, dark) > 0.5
    for scheme in (light, dark):
        assert difference(scheme, ImageChops.offset(scheme, 40, 40)) > TOLERATED
