"""The page without a mouse, on a phone, in the dark, with long texts, without motion, and as a file."""

import itertools

import pytest

from beamtree.models.answers import answers, as_json
from beamtree.models.pretrained import load
from beamtree.web.export import page as export
from web.toy_models import EXPRESSION
from web.using import link, shown

pytestmark = pytest.mark.web
LONG = "[SM " + "1 2 [MAX 3 4 ] " * 33 + "]"  # 200 tokens


def luminance(colour):
    """Of "rgb(…)", as WCAG defines it."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a, b):
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def style(page, selector, name):
    return page.locator(selector).first.evaluate(f"(e) => getComputedStyle(e).getPropertyValue('{name}')")


def focused(page, expression="e => e.id"):
    return page.evaluate(f"({expression})(document.activeElement)")


def press_until(page, key, reached):
    for _ in range(60):
        page.keyboard.press(key)
        if reached():
            return
    pytest.fail(f"{key} never gets there")


def test_everything_can_be_done_with_the_keyboard(visit, server):
    page = visit(server)
    page.wait_for_selector("#model option[value=one]", state="attached")
    press_until(page, "Tab", lambda: focused(page) == "text")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(EXPRESSION)
    page.keyboard.press("Enter")
    shown(page)
    press_until(page, "Tab", lambda: focused(page, "e => e.closest('svg')?.getAttribute('role')") == "tree")
    assert focused(page, "e => e.dataset.span") == "0-9"  # Tab reaches the root, arrows all else
    assert "span [0, 9)" in page.locator("#detail").inner_text()
    assert float(style(page, ":focus", "outline-width").removesuffix("px")) >= 2
    seen = {"0-9"}
    parent = focused(page, "e => e.dataset.span")
    page.keyboard.press("ArrowDown")
    child = focused(page, "e => e.dataset.span")
    assert child != parent
    assert page.locator(".tree .lit").first.get_attribute("data-span") == child
    page.keyboard.press("ArrowUp")
    assert focused(page, "e => e.dataset.span") == parent
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        seen.add(focused(page, "e => e.dataset.span"))
    assert len(seen) > 3
    assert page.input_value("#slider") == "8"  # the arrows were the tree's
    press_until(page, "Tab", lambda: focused(page, "e => e.closest('svg')?.getAttribute('class')") == "chart")
    chart = focused(page, "e => e.dataset.span")
    page.keyboard.press("ArrowDown")
    assert focused(page, "e => e.dataset.span") != chart
    press_until(page, "Tab", lambda: focused(page) == "back")
    page.keyboard.press("Enter")
    assert page.input_value("#slider") == "7"
    press_until(page, "Tab", lambda: focused(page) == "slider")
    page.keyboard.press("ArrowLeft")
    assert page.input_value("#slider") == "6"


def test_every_control_and_constituent_has_a_name(visit, server):
    page = shown(visit(link(server, model="one", compare="two", text=EXPRESSION)))
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, textarea, input, .constituent, svg")].filter((e) =>
        !(e.getAttribute("aria-label") || e.textContent.trim() && e.tagName === "BUTTON" || e.labels?.length)).length"""
    )
    assert nameless == 0
    assert page.locator("[role=status]").count() == 1
    assert page.locator("svg.tree .constituent[tabindex='0']").count() == page.locator("svg.tree").count()
    label = page.locator("svg.tree .constituent[data-span='0-9']").first.get_attribute("aria-label")
    assert "probability 1.000" in label
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.parametrize("text", [EXPRESSION, LONG, "5"])
def test_a_phone_scrolls_the_drawing_and_not_the_page(visit, server, text):
    page = shown(visit(link(server, model="one", compare="two", text=text), width=360, height=740))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("button, select, textarea, input, .scroll, .labels")]
        .filter((e) => e.offsetParent).map((e) => e.getBoundingClientRect()).map(({ left, right }) => [left, right])"""
    )
    assert all(left >= 0 and right <= 360 for left, right in boxes)
    scroll = page.locator(".scroll").first
    if text == LONG:
        assert scroll.evaluate("e => e.scrollWidth") > 3000
        scroll.evaluate("e => e.scrollBy(1000, 0)")
        assert scroll.evaluate("e => e.scrollLeft") == 1000
        page.check("#fit")
        assert scroll.evaluate("e => e.scrollWidth") <= 360
    assert page.locator("#player").bounding_box()["height"] < 250


def test_two_hundred_leaves_can_be_read(visit, server):
    page = shown(visit(link(server, model="one", text=LONG)))
    tree = page.locator("svg.tree").first
    leaves = tree.evaluate("e => [...e.querySelectorAll('.leaf')].map((l) => l.getBoundingClientRect().toJSON())")
    assert len(leaves) == 200
    assert all(one["right"] < two["left"] for one, two in itertools.pairwise(leaves))
    assert min(leaf["height"] for leaf in leaves) >= 14
    assert tree.bounding_box()["height"] < 700
    labels = page.locator("svg.chart").evaluate(
        "e => [...e.querySelectorAll('.label[data-leaf]')].map((l) => l.getBoundingClientRect().toJSON())"
    )
    assert all(one["left"] < two["left"] and one["right"] - two["left"] < 3 for one, two in itertools.pairwise(labels))
    page.click("#back")
    assert page.locator("#step").inner_text().startswith("198 of 199")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_ground(visit, server, scheme):
    page = shown(visit(link(server, model="one", text=EXPRESSION), color_scheme=scheme))
    ground = style(page, "body", "background-color")
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    assert contrast(style(page, ".leaf", "fill"), ground) > 7
    assert contrast(style(page, "#about", "color"), ground) > 4.5
    assert contrast(style(page, ".tree path", "stroke"), ground) > 4.5
    page.locator("svg.tree .constituent").first.focus()
    assert contrast(style(page, ".tree .lit path", "stroke"), ground) > 4.5
    assert contrast(style(page, ".leaf.lit", "fill"), ground) > 4.5
    assert contrast(style(page, "#parse", "color"), style(page, "#parse", "background-color")) > 4.5


def test_nothing_moves_for_those_who_want_no_motion(visit, server):
    address = link(server, model="one", text=EXPRESSION)
    assert style(shown(visit(address)), ".tree .constituent", "transition-duration") == "0.25s"
    still = shown(visit(address, reduced_motion="reduce"))
    assert style(still, ".tree .constituent", "transition-duration") == "0s"


def test_a_server_that_has_gone_is_told(visit, server):
    page = visit(server)
    page.wait_for_selector("#model option[value=one]", state="attached")
    page.route("**/api/parse", lambda route: route.abort())
    page.click("#parse")
    page.wait_for_selector("text=The server does not answer: is it still running?")


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    """A page in a file, with two models' readings of a text, and one of another."""
    documents = [
        as_json(answer, name) for name in ("one", "two") for answer in answers(load(folder / name), [EXPRESSION])
    ]
    documents += [as_json(answer, "english") for answer in answers(load(folder / "english"), ["a <b>good</b> film"])]
    written = tmp_path_factory.mktemp("page") / "page.html"
    written.write_text(export(documents), encoding="utf-8")
    return written


def test_a_file_shows_the_same_view_and_asks_nobody(visit, file):
    page = visit(file.as_uri(), offline=True)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    shown(page)
    assert asked == [file.as_uri()]
    assert not page.is_visible("#text")
    assert page.locator(".panel h2").all_inner_texts() == ["one"]
    page.locator("svg.chart .constituent").first.hover()
    assert page.locator(".lit").count() > 0
    page.click("#back")
    assert page.locator("svg.tree").first.locator(".pending").count() == 1
    page.select_option("#compare", "1")
    assert page.locator(".panel h2").all_inner_texts() == ["one", "two"]
    assert "The chosen trees share" in page.locator("#result").inner_text()
    with page.expect_download() as got:
        page.get_by_role("button", name="Download beam 1 as SVG").first.click()
    assert got.value.suggested_filename == "one-beam-1.svg"
    again = shown(visit(page.url))
    assert again.locator(".panel h2").all_inner_texts() == ["one", "two"]
    page.select_option("#compare", "")
    page.select_option("#model", "2")
    assert page.locator(".text").inner_text() == "a <b>good</b> film"
    assert asked == [file.as_uri()]


def test_a_file_of_one_document_has_nothing_to_choose(visit, folder, tmp_path):
    (answer,) = answers(load(folder / "one"), [EXPRESSION])
    written = tmp_path / "page.html"
    written.write_text(export([as_json(answer, "one")]), encoding="utf-8")
    page = shown(visit(written.as_uri(), width=360))
    assert not page.is_visible("#model")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_labels_without_a_chance_are_one_line(visit, tmp_path):
    side = {"text": "a b", "tokens": ["a", "b"], "chart": [[0, 2, 1.0]]}
    beams = [{"probability": 1.0, "tree": "(a b)", "merges": [[0, 2]]}]
    chances = {"no": 0.0001, "yes": 0.9, "perhaps": 0.0997, "never": 0.0002}
    said = {"model": "one", "text": "a b", "label": "yes", "probabilities": chances, "unknown": []}
    written = tmp_path / "page.html"
    written.write_text(export([{**said, "sides": [{**side, "beams": beams}]}]), encoding="utf-8")
    rows = shown(visit(written.as_uri())).locator(".labels li").all_inner_texts()
    assert [" ".join(row.split()) for row in rows] == ["yes 0.900", "perhaps 0.100", "2 others: 0.000"]
