"""The page with zoom and pan, collapsed subtrees, long texts, long words, and other scripts than Latin."""

import itertools

import pytest

from beamtree.web.export import page as export
from web.toy_models import EXPRESSION
from web.using import ask, box, boxes, document, link, node, parse, shown, spans

pytestmark = pytest.mark.web
LONG = "[SM " + "1 2 [MAX 3 4 ] " * 33 + "]"  # 200 tokens
LONGEST = "[SM " + "1 2 [MAX 3 4 ] 5 6 [MIN 7 8 ] " * 165 + "0 1 2 3 4 5 6 7 8 ]"
PROMPT = 100  # milliseconds within which the page must react


def opened(visit, tmp_path, *documents, **settings):
    """A page with handwritten documents."""
    written = tmp_path / "page.html"
    written.write_text(export(documents), encoding="utf-8")
    return shown(visit(written.as_uri(), **settings))


def chain(count):
    """The merges of a left-branching tree."""
    return [(0, end) for end in range(2, count + 1)]


def place(page):
    """Where the tree is drawn: x, y and scale."""
    numbers = page.locator("svg.tree > g").get_attribute("transform")
    shift, scale = numbers.removeprefix("translate(").removesuffix(")").split(") scale(")
    return (*map(float, shift.split(",")), float(scale))


def still(visit, address, **settings):
    return shown(visit(address, reduced_motion="reduce", **settings))


def test_zoom_with_buttons_and_with_the_wheel(visit, server):
    page = still(visit, link(server, model="one", text=EXPRESSION))
    _, _, first = place(page)
    page.click("#larger")
    assert place(page)[2] == pytest.approx(1.3 * first)
    page.click("#smaller")
    page.click("#smaller")
    assert place(page)[2] == pytest.approx(first / 1.3)
    page.click("#fit")
    assert place(page)[2] == pytest.approx(first)
    left, top, right, bottom = box(page, "svg.tree")
    x, y = (left + right) / 2 + 60, (top + bottom) / 2
    page.mouse.move(x, y)
    before = place(page)
    page.mouse.wheel(0, -200)
    changed = "scale => !document.querySelector('svg.tree > g').getAttribute('transform').endsWith(scale)"
    page.wait_for_function(changed, arg=f"({before[2]})")
    after = place(page)
    assert after[2] > before[2]
    fixed = [(x - left - each[0]) / each[2] for each in (before, after)]  # what is under the mouse stays there
    assert fixed[0] == pytest.approx(fixed[1], abs=0.5)


def test_pan_with_the_mouse(visit, server):
    page = still(visit, link(server, model="one", text=EXPRESSION))
    left, top, _, _ = box(page, "svg.tree")
    before = place(page)
    page.mouse.move(left + 30, top + 60)
    page.mouse.down()
    page.mouse.move(left + 90, top + 40, steps=4)
    page.mouse.up()
    after = place(page)
    assert (after[0] - before[0], after[1] - before[1]) == pytest.approx((60, -20), abs=1)
    assert after[2] == before[2]


def test_a_constituent_is_collapsed_and_expanded_by_click(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = still(visit, link(server, model="one", text=EXPRESSION))
    inner = next(each for each in side["beams"][0]["constituents"][::-1][1:] if each["end"] - each["start"] > 2)
    start, end = inner["start"], inner["end"]
    below = {span for span in spans(page, ".constituent") if start <= span[0] and span[1] <= end} - {(start, end)}
    everything = spans(page, ".constituent")
    mark = node(page, start, end).locator(".mark")
    mark.click()  # the first click chooses it
    assert spans(page, ".constituent") == everything
    assert f"span [{start}, {end})" in page.locator("#details").inner_text()
    mark.click()
    assert spans(page, ".constituent") == everything - below
    assert node(page, start, end).get_attribute("aria-expanded") == "false"
    assert page.locator(".below.collapsed .count").text_content() == str(end - start)
    assert "collapsed" in page.locator("#legend").inner_text()
    page.locator(".below.collapsed .roof").click()
    assert spans(page, ".constituent") == everything
    page.click("#toggle")
    assert spans(page, ".constituent") == everything - below
    page.click("#open-all")
    assert spans(page, ".constituent") == everything


@pytest.mark.parametrize("width", [1280, 375])
def test_a_long_text_begins_collapsed_and_can_be_read(visit, server, width):
    page = still(visit, link(server, model="one", text=LONG), width=width, height=800)
    leaves = boxes(page, ".leaf")
    assert 3 < len(leaves) < 45
    assert all(leaf["height"] >= 10 for leaf in leaves)
    leaves.sort(key=lambda leaf: leaf["left"])
    assert all(one["right"] < two["left"] for one, two in itertools.pairwise(leaves))
    _, top, _, bottom = box(page, "#frames")
    assert all(top < leaf["top"] and leaf["bottom"] < bottom for leaf in leaves)
    counts = sum(map(int, page.locator(".count").all_text_contents()))
    assert counts + page.locator(".token").count() == 200 or page.locator(".minimap").is_visible()


def test_a_minimap_shows_and_moves_what_is_seen_of_a_large_tree(visit, server):
    page = still(visit, link(server, model="one", text=LONG))
    assert still(visit, link(server, model="one", text=EXPRESSION)).locator(".minimap").is_hidden()
    page.click("#open-all")
    assert page.locator(".minimap").is_visible()
    assert (0, 1) in spans(page, ".token")
    count = page.locator("svg.tree *").count()
    assert page.locator(".token").count() < 120  # the others are not in view
    _, top, right, bottom = box(page, ".minimap")
    page.mouse.click(right - 4, (top + bottom) / 2)
    page.wait_for_selector(".token[data-span='199-200']")
    assert (0, 1) not in spans(page, ".token")
    assert page.locator("svg.tree *").count() < 1.5 * count


def test_two_trees_collapse_together_where_they_agree(visit, tmp_path):
    one = document(list("abcd"), [(0, 2), (2, 4), (0, 4)])
    two = document(list("abcd"), [(0, 2), (0, 3), (0, 4)], model="two")
    page = opened(visit, tmp_path, one, two, reduced_motion="reduce")
    page.select_option("#compare", "1")
    page.wait_for_selector(".constituent[data-part='1']")
    node(page, 2, 4).locator(".dot").click()
    assert page.locator("#toggle").count() == 0  # the other tree does not contain it
    node(page, 0, 2).locator(".dot").click()
    page.click("#toggle")
    for part in (0, 1):
        assert node(page, 0, 2, part).get_attribute("aria-expanded") == "false"
    assert spans(page, ".token") == {(2, 3), (3, 4)}


def test_two_thousand_tokens_stay_usable(visit, server):
    assert len(LONGEST.split()) > 1_990
    page = still(visit, server, width=1280, height=800)
    parse(page, LONGEST)
    page.wait_for_selector(".below.collapsed", timeout=60_000)
    assert page.locator("body *").count() < 1_500
    acts = {
        "point": "send('.constituent', new PointerEvent('pointerover', { bubbles: true }))",
        "expand": "send('.below.collapsed .roof', new MouseEvent('click', { bubbles: true }))",
        "zoom": "document.getElementById('larger').click()",
        "chart": "document.getElementById('tab-chart').click()",
        "steps": "document.getElementById('tab-steps').click()",
        "back": "document.getElementById('back').click()",
        "tree": "document.getElementById('tab-tree').click()",
        "expand all": "document.getElementById('open-all').click()",
        "fit": "document.getElementById('fit').click()",
        "key": "send('.constituent[tabindex=\"0\"]', new KeyboardEvent('keydown', { key: 'End', bubbles: true }))",
    }
    times = {}
    for name, act in acts.items():
        # The best of three: the machine may be busy.
        times[name] = min(
            page.evaluate(
                f"""() => new Promise((done) => {{
                const send = (selector, event) => document.querySelector(selector)?.dispatchEvent(event);
                const start = performance.now();
                {act};
                const worked = performance.now() - start;
                requestAnimationFrame(() => requestAnimationFrame(() => done(worked))) }})"""
            )
            for _ in range(3)
        )
        assert page.locator("body *").count() < 6_000, name
    assert max(times.values()) < PROMPT, times


def test_the_chart_of_five_hundred_tokens_shows_its_constituents(visit, server):
    text = "[SM " + "1 2 [MAX 3 4 ] " * 83 + "]"
    page = still(visit, link(server, model="one", text=text, view="chart"), width=1280, height=800)
    page.wait_for_timeout(100)
    inked = page.evaluate(
        """() => { const canvas = document.querySelector("canvas.skyline"); const { width, height } = canvas;
        const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
        const rows = new Set(), columns = new Set();
        for (let place = 3; place < data.length; place += 4) if (data[place] > 60) {
          const pixel = (place - 3) / 4; columns.add(pixel % width); rows.add(Math.floor(pixel / width)) }
        return [columns.size / width, rows.size / height] }"""
    )
    assert inked[0] > 0.9
    assert inked[1] > 0.3
    left, top, right, _ = box(page, "canvas.skyline")
    page.mouse.move((left + right) / 2, top + 17)  # the bar of the whole
    assert "span [0, 500)" in page.locator("#details").inner_text()
    page.locator("canvas.skyline").focus()
    page.keyboard.press("ArrowRight")
    assert "span [0, 500)" not in page.locator("#details").inner_text()


def test_a_word_of_four_hundred_letters_breaks_nothing(visit, server):
    word = "x" * 400
    for width in (1280, 375):
        for view in ("tree", "chart", "steps"):
            address = link(server, model="english", text=f"a {word} film", view=view)
            page = still(visit, address, width=width, height=800)
            assert page.evaluate("document.documentElement.scrollWidth") == width
    page.click("#tab-tree")
    drawn = node(page, 1, 2).locator(".leaf")
    assert drawn.text_content().endswith("x…")
    assert drawn.bounding_box()["width"] < 300
    node(page, 1, 2).focus()
    assert page.locator("#details .text").inner_text() == word  # all of it


def test_a_text_from_right_to_left_is_read_so(visit, tmp_path):
    tokens = ["הסרט", "הזה", "טוב", "<b>"]
    page = opened(visit, tmp_path, document(tokens, chain(4)), reduced_motion="reduce")
    lefts = [node(page, place, place + 1).bounding_box()["x"] for place in range(4)]
    assert lefts == sorted(lefts, reverse=True)
    node(page, 0, 1).focus()
    page.keyboard.press("ArrowLeft")  # to the next token in visual order
    assert page.evaluate("document.activeElement.dataset.span") == "1-2"
    assert page.locator("#details .text").evaluate("e => getComputedStyle(e).direction") == "rtl"
    page.click("#tab-chart")
    page.wait_for_selector("svg.chart")
    lefts = [each["left"] for each in boxes(page, "svg.chart [data-leaf]")]
    assert lefts == sorted(lefts, reverse=True)


def test_emoji_stay_whole(visit, tmp_path):
    family = "👩‍👩‍👧‍👦"
    page = opened(visit, tmp_path, document([family, family * 30, "é"], chain(3)))
    assert node(page, 0, 1).locator(".leaf").text_content() == family
    cut = node(page, 1, 2).locator(".leaf").text_content()
    assert cut.endswith("…")
    assert set(cut.removesuffix("…").split(family)) == {""}  # only complete families


def test_offsets_count_characters(visit, tmp_path):
    text = "😀😀 a 😀"
    answer = document(["😀😀", "a", "😀"], chain(3), text=text)
    answer["sides"][0] |= {"text": text, "offsets": [[0, 2], [3, 4], [5, 6]]}
    page = opened(visit, tmp_path, answer)
    node(page, 0, 2).locator(".dot").hover()
    assert page.locator("#details .text").inner_text() == "😀😀 a"
