"""The page without a mouse, with a screen reader, on a phone, in the dark, without motion, and as a file."""

from pathlib import Path

import pytest

from beamtree.models.answers import answers, as_json
from beamtree.models.pretrained import load
from beamtree.web.export import page as export
from web.toy_models import EXPRESSION
from web.using import document, link, shown

pytestmark = pytest.mark.web
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
LONG = "[SM " + "1 2 [MAX 3 4 ] " * 33 + "]"  # 200 tokens
SENTENCE = "a good film"


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


def violations(page):
    """The violations that axe-core reports. It is run outside the page, whose policy allows no other script."""
    session = page.context.new_cdp_session(page)
    frame = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
    world = session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "axe"})["executionContextId"]
    session.send("Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8"), "contextId": world})
    script = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations.map((each) =>
        `${each.id}: ${each.nodes.map((node) => node.target.join(" ")).slice(0, 5).join(", ")}`))"""
    wanted = {"expression": script, "contextId": world, "awaitPromise": True, "returnByValue": True}
    return session.send("Runtime.evaluate", wanted)["result"]["value"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_axe_finds_no_violation(visit, server, scheme, width):
    views = [
        {"model": "one", "text": EXPRESSION, "node": "0-9"},
        {"model": "one", "compare": "two", "text": EXPRESSION, "view": "steps", "step": "4"},
        {"model": "english", "text": SENTENCE, "view": "chart"},
        {"model": "pairs", "text": "( a ( and b ) )", "second": "( not c )"},
        {"model": "one", "text": LONG},
    ]
    for view in views:
        page = shown(visit(link(server, **view), width=width, height=800, color_scheme=scheme, reduced_motion="reduce"))
        assert violations(page) == [], view
    page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"[MAX 1 2 ]\nx\n"})
    page.wait_for_selector("#file-progress:has-text('uncertain')")
    page.locator("#history-menu summary").click()
    assert violations(page) == []


def test_axe_finds_no_violation_in_the_description_of_the_interface(visit, server):
    page = visit(f"{server}/docs")
    page.wait_for_selector("text=POST /api/parse")
    assert violations(page) == []


def test_everything_can_be_done_with_the_keyboard(visit, server):
    page = shown(visit(server))
    press_until(page, "Tab", lambda: focused(page) == "text")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(EXPRESSION)
    page.keyboard.press("Enter")
    shown(page)
    press_until(page, "Tab", lambda: focused(page) == "tab-tree")
    press_until(page, "Tab", lambda: focused(page, "e => e.closest('[role=tree]') !== null"))

    def span():
        return focused(page, "e => e.dataset.span")

    assert span() == "0-9"  # Tab reaches the root, arrow keys everything else
    assert "span [0, 9)" in page.locator("#details").inner_text()
    assert float(style(page, ":focus .mark", "outline-width").removesuffix("px")) >= 2
    page.keyboard.press("ArrowDown")
    child = span()
    assert child != "0-9"
    assert page.locator(".constituent.lit").get_attribute("data-span") == child
    page.keyboard.press("ArrowRight")  # to the sibling
    assert span() != child
    page.keyboard.press("ArrowLeft")
    assert span() == child
    page.keyboard.press("ArrowUp")
    assert span() == "0-9"
    seen = [span()]
    for _ in range(9):
        page.keyboard.press("ArrowDown")
        seen.append(span())
    assert seen[-1] == "0-1"  # down to the first token
    for place in range(1, 9):  # and along the tokens and their constituents to the last token
        press_until(page, "ArrowRight", lambda place=place: int(span().split("-")[1]) > place)
    page.keyboard.press("End")
    assert span() == "8-9"
    page.keyboard.press("Home")
    assert span() == "0-9"
    page.keyboard.press("ArrowDown")
    chosen = page.locator(":focus")
    if chosen.get_attribute("aria-expanded") is None:
        page.keyboard.press("ArrowRight")
    count = page.locator(".constituent").count()
    page.keyboard.press("Enter")
    assert page.locator(".constituent").count() < count
    assert focused(page, "e => e.getAttribute('aria-expanded')") == "false"
    page.keyboard.press("Enter")
    assert page.locator(".constituent").count() == count
    height = "document.querySelector('.leaf')?.getBoundingClientRect().height"
    size = page.wait_for_function(height).json_value()  # 0 while the tree is being redrawn
    page.keyboard.press("-")
    page.wait_for_function(f"size => {height} < size * 0.8", arg=size)
    page.keyboard.press("0")
    page.wait_for_function(f"size => {height} > size * 0.95", arg=size)
    press_until(page, "Shift+Tab", lambda: focused(page) == "tab-tree")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "tab-chart"
    press_until(page, "Tab", lambda: focused(page, "e => e.closest('svg.chart') !== null"))
    chart = span()
    page.keyboard.press("ArrowDown")
    assert span() != chart
    press_until(page, "Shift+Tab", lambda: focused(page) == "tab-chart")
    page.keyboard.press("ArrowRight")
    press_until(page, "Tab", lambda: focused(page) == "back")
    page.keyboard.press("Enter")
    assert page.input_value("#slider") == "7"
    press_until(page, "Tab", lambda: focused(page) == "slider")
    page.keyboard.press("ArrowLeft")
    assert page.input_value("#slider") == "6"
    press_until(page, "Tab", lambda: focused(page, "e => e.classList.contains('beam')"))


def test_every_control_and_constituent_has_a_name(visit, server):
    page = shown(visit(link(server, model="one", compare="two", text=EXPRESSION)))
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, textarea, input, .constituent")].filter((e) =>
        !(e.getAttribute("aria-label") || e.textContent.trim() && e.tagName === "BUTTON" || e.labels?.length)).length"""
    )
    assert nameless == 0
    assert page.locator("[role=tree] [tabindex='0']").count() == 1
    label = page.locator(".constituent[data-span='0-9']").first.get_attribute("aria-label")
    assert "probability 1.000" in label
    assert "label " in label
    levels = page.locator("[role=treeitem]").evaluate_all("all => all.map((each) => each.getAttribute('aria-level'))")
    assert levels[0] == "1"
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.parametrize("text", [EXPRESSION, LONG, "5"])
@pytest.mark.parametrize("view", ["tree", "chart", "steps"])
def test_a_phone_never_scrolls_sideways(visit, server, text, view):
    page = shown(visit(link(server, model="one", compare="two", text=text, view=view), width=360, height=740))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("#ask *, #parse, #zoom button, [role=tab], #player *, aside *")]
        .filter((e) => e.offsetParent && !e.closest(".unseen"))
        .map((e) => e.getBoundingClientRect()).map(({ left, right }) => [left, right])"""
    )
    assert all(left >= 0 and right <= 360 for left, right in boxes)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_ground(visit, server, scheme):
    page = shown(visit(link(server, model="one", compare="two", text=EXPRESSION), color_scheme=scheme))
    ground = style(page, "body", "background-color")
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    assert contrast(style(page, ".leaf", "fill"), ground) > 7
    assert contrast(style(page, ".edge.shared", "stroke"), ground) > 4.5
    assert contrast(style(page, ".edge.only", "stroke"), ground) > 4.5
    page.locator(".constituent").first.focus()
    assert contrast(style(page, ".edge.lit", "stroke"), ground) > 4.5
    assert contrast(style(page, ".inside .leaf", "fill"), ground) > 4.5
    assert contrast(style(page, "#parse", "color"), style(page, "#parse", "background-color")) > 4.5


def test_nothing_moves_for_those_who_want_no_motion(visit, server):
    address = link(server, model="one", text=EXPRESSION)
    moving = shown(visit(address))
    assert style(moving, ".constituent", "transition-duration") == "0.25s"
    still = shown(visit(address, reduced_motion="reduce"))
    assert style(still, ".constituent", "transition-duration") == "0s"
    before = still.locator(".leaf").first.bounding_box()["height"]
    jumped = still.evaluate(
        """() => { document.getElementById("larger").click();
        return document.querySelector(".leaf").getBoundingClientRect().height }"""
    )
    assert jumped == pytest.approx(1.3 * before, rel=0.05)  # at once


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    """A page in a file, with the answers of two models for one text, and one answer for another text."""
    documents = [
        as_json(answer, name)
        for name in ("one", "two")
        for answer in answers(load(folder / name), [EXPRESSION], labels=True)
    ]
    english = answers(load(folder / "english"), ["a <b>good</b> film"], labels=True)
    documents += [as_json(answer, "english") for answer in english]
    written = tmp_path_factory.mktemp("page") / "page.html"
    written.write_text(export(documents), encoding="utf-8")
    return written


def test_a_file_shows_the_same_views_and_asks_nobody(visit, file):
    page = visit(file.as_uri(), offline=True)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    shown(page)
    assert asked == [file.as_uri()]
    assert not page.is_visible("#text")
    assert not page.is_visible("#chips")
    page.locator(".constituent[data-span='0-9'] .sign").hover(force=True)
    assert page.locator(".lit").count() > 0
    page.click("#tab-steps")
    page.click("#back")
    assert page.locator(".constituent.pending").count() == 1
    page.click("#tab-tree")
    page.select_option("#compare", "1")
    page.wait_for_selector(".constituent[data-part='1']")
    assert page.locator(".frame-name").all_inner_texts() == ["one", "two"]
    assert "The chosen trees share" in page.locator("#result").inner_text()
    again = shown(visit(page.url))
    assert again.locator(".frame-name").all_inner_texts() == ["one", "two"]
    page.select_option("#compare", "")
    page.select_option("#model", "2")
    page.wait_for_selector(".leaf:text-is('film')")
    assert page.locator("body b").count() == 0
    assert asked == [file.as_uri()]


def test_a_file_makes_its_drawings_itself(visit, file, tmp_path):
    page = shown(visit(file.as_uri()))
    assert page.get_by_role("button", name="Download PDF").count() == 0
    assert page.get_by_role("button", name="Download TikZ").count() == 0
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as got:
            page.get_by_role("button", name=f"Download {kind}").click()
        assert got.value.suggested_filename == f"one-beam-1.{kind.lower()}"
        got.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)
    drawing = (tmp_path / "SVG").read_text(encoding="utf-8")
    assert "class=" not in drawing
    assert 'stroke="rgb(' in drawing  # the colours of the page, without its style sheet
    assert all(f">{token}</text>" in drawing for token in EXPRESSION.split())


def test_a_file_of_one_document_has_nothing_to_choose(visit, folder, tmp_path):
    (answer,) = answers(load(folder / "one"), [EXPRESSION], labels=True)
    written = tmp_path / "page.html"
    written.write_text(export([as_json(answer, "one")]), encoding="utf-8")
    page = shown(visit(written.as_uri(), width=360))
    assert not page.is_visible("#model")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert violations(page) == []


def test_labels_without_a_chance_are_one_line(visit, tmp_path):
    chances = {"no": 0.0001, "yes": 0.9, "perhaps": 0.0997, "never": 0.0002}
    given = {"labels": [*chances], "label_styles": [None] * 4, "label": "yes", "probabilities": chances}
    written = tmp_path / "page.html"
    written.write_text(export([document(["a", "b"], [(0, 2)], **given)]), encoding="utf-8")
    rows = shown(visit(written.as_uri())).locator(".labels li").all_inner_texts()
    assert [" ".join(row.split()) for row in rows] == ["yes 0.900", "perhaps 0.100", "2 others: 0.000"]
