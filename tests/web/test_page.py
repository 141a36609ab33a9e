"""The page in a real browser, on a real server: type, parse, point, step, compare."""

import re

import pytest

from web.toy_models import EXPRESSION
from web.using import ask, link, shown

pytestmark = pytest.mark.web
MERGES = 8  # of nine tokens


def test_a_text_is_typed_and_its_label_its_trees_and_its_chart_are_seen(visit, server):
    expected = ask(server, model="one", text=EXPRESSION)
    page = visit(server)
    page.wait_for_selector("#model option[value=one]", state="attached")
    assert page.input_value("#text") == EXPRESSION  # the example of the model
    page.fill("#text", "")
    page.type("#text", EXPRESSION)
    page.press("#text", "Enter")
    shown(page)
    label = expected["label"]
    assert page.locator(".labels .said .name").inner_text() == label
    assert page.locator(".labels .said .number").inner_text() == f"{expected['probabilities'][label]:.3f}"
    assert page.locator(".labels li").count() == len(expected["probabilities"])
    [side] = expected["sides"]
    assert page.locator("svg.tree").count() == len(side["beams"])
    for index, beam in enumerate(side["beams"]):
        tree = page.locator("svg.tree").nth(index)
        assert tree.locator(".leaf").all_text_contents() == side["tokens"]
        spans = {each.get_attribute("data-span") for each in tree.locator(".constituent").all()}
        assert spans == {f"{start}-{end}" for start, end in beam["merges"]}
    cells = {each.get_attribute("data-span") for each in page.locator("svg.chart .constituent").all()}
    assert cells == {f"{start}-{end}" for start, end, _ in side["chart"]}
    assert label in page.locator("[role=status]").inner_text()


def test_the_drawing_of_a_beam_is_its_tree(visit, server):
    """A constituent's two lines end at its children, and the page shows the same brackets as the document."""
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    drawn = page.evaluate(
        """() => Object.fromEntries([...document.querySelector("svg.tree").querySelectorAll(".constituent")].map((g) =>
        [g.dataset.span, [g.querySelector("path").getAttribute("d").match(/[-.\\d]+/g).map(Number),
        [+g.querySelector("circle").getAttribute("cx"), +g.querySelector("circle").getAttribute("cy")]]]))"""
    )
    ends = {}
    for start, end in side["beams"][0]["merges"]:
        middle = ends.get(start, start + 1)
        left_x, left_y, height, right_x, right_y = drawn[f"{start}-{end}"][0]
        assert drawn[f"{start}-{end}"][1] == pytest.approx([(left_x + right_x) / 2, height])
        for (first, last), place in (((start, middle), (left_x, left_y)), ((middle, end), (right_x, right_y))):
            if last - first > 1:
                assert drawn[f"{first}-{last}"][1] == pytest.approx(place)
        ends[start] = end
    page.locator(".beam summary").first.click()
    assert page.locator(".beam code").first.inner_text() == side["beams"][0]["tree"]


def test_the_chart_has_a_constituent_above_the_middle_of_its_words_and_the_longer_the_higher(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    chart = page.locator("svg.chart")

    def place(selector):
        x, y, width, height = chart.locator(selector).evaluate(
            "e => { const b = e.getBBox(); return [b.x, b.y, b.width, b.height] }"
        )
        return x + width / 2, y + height / 2

    leaves = [place(f".label[data-leaf='{position}']")[0] for position in range(9)]
    rows = {}
    for start, end, value in side["chart"]:
        heat = f"[data-span='{start}-{end}'] .heat"
        x, y = place(heat)
        assert x == pytest.approx((leaves[start] + leaves[end - 1]) / 2, abs=1)
        assert rows.setdefault(end - start, y) == y
        assert float(chart.locator(heat).get_attribute("fill-opacity")) == pytest.approx(max(value, 0.04), abs=1e-3)
    heights = [rows[length] for length in sorted(rows)]
    assert heights == sorted(heights, reverse=True)


def test_pointing_at_a_constituent_lights_it_everywhere_and_tells_of_it(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    # One that some beams have and others have not.
    start, end, value = next(each for each in side["chart"] if each[2] < 0.9)
    held = [index for index, beam in enumerate(side["beams"]) if [start, end] in beam["merges"]]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    page.locator(f"svg.chart [data-span='{start}-{end}']").hover()
    lit = [f"{start}-{end}"] * (len(held) + 1)
    assert [each.get_attribute("data-span") for each in page.locator(".constituent.lit").all()] == lit
    holding = [index for index, card in enumerate(page.locator(".beams .beam").all()) if "holds" in _classes(card)]
    assert holding == held
    assert page.locator("svg.tree").first.locator(".leaf.lit").all_text_contents() == side["tokens"][start:end]
    detail = page.locator("#detail").inner_text()
    assert f"span [{start}, {end})" in detail
    assert f"probability {value:.3f}" in detail
    assert ", ".join(str(index + 1) for index in held) in detail
    page.locator("h1").hover()
    assert page.locator(".lit").count() == 0


def _classes(locator):
    return locator.get_attribute("class").split()


def test_the_merges_are_stepped_through_one_by_one(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))

    def made():
        each = page.locator("svg.tree").first.locator(".constituent:not(.pending)")
        return {group.get_attribute("data-span") for group in each.all()}

    def expected(count):
        return {f"{start}-{end}" for start, end in side["beams"][0]["merges"][:count]}

    assert made() == expected(MERGES)
    page.click("#first")
    assert made() == set()
    assert page.locator("#back").is_disabled()
    for count in (1, 2, 3):
        page.click("#forward")
        assert made() == expected(count)
        start, end = side["beams"][0]["merges"][count - 1]
        newest = page.locator("svg.tree").first.locator(".newest")
        assert newest.get_attribute("data-span") == f"{start}-{end}"
        assert f"{count} of {MERGES} merges" in page.locator("#step").inner_text()
    page.click("#back")
    assert made() == expected(2)
    page.locator("#slider").fill("6")
    assert made() == expected(6)
    page.locator("h1").click()
    page.keyboard.press("ArrowLeft")
    assert made() == expected(5)
    page.keyboard.press("ArrowRight")
    assert made() == expected(6)
    assert page.locator("#play").inner_text() == "Play"
    page.click("#play")
    assert page.locator("#play").inner_text() == "Pause"
    page.wait_for_selector("#play:text-is('Play')")  # it plays to the end
    assert made() == expected(MERGES)
    page.click("#play")  # from the start again
    page.wait_for_selector("#step:has-text('1 of 8 merges')")
    page.keyboard.press("Space")  # on the button that was clicked: pause
    assert page.locator("#play").inner_text() == "Play"
    assert len(made()) < MERGES


def test_another_beam_is_chosen_and_the_chart_outlines_its_merges(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    page.get_by_role("button", name="Beam 2", exact=True).click()
    assert page.locator("button[aria-pressed=true]").all_inner_texts() == ["Beam 2"]
    outlined = {each.get_attribute("data-span") for each in page.locator("svg.chart .made").all()}
    assert outlined == {f"{start}-{end}" for start, end in side["beams"][1]["merges"]}


def test_two_models_are_compared_side_by_side(visit, server):
    one, two = (ask(server, model=name, text=EXPRESSION)["sides"][0] for name in ("one", "two"))
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    page.select_option("#compare", "two")
    page.wait_for_selector(".panel:nth-child(2) svg.tree")
    assert page.locator(".panel h2").all_inner_texts() == ["one", "two"]
    left, right = (page.locator(".panel").nth(index).bounding_box() for index in (0, 1))
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == right["y"]
    spans = [{tuple(span) for span in side["beams"][0]["merges"]} for side in (one, two)]
    assert f"share {len(spans[0] & spans[1])} of {MERGES} constituents" in page.locator("#result").inner_text()
    for index in (0, 1):
        panel = page.locator(".panel").nth(index)
        for drawing in (panel.locator("svg.tree").first, panel.locator("svg.chart")):
            alone = {each.get_attribute("data-span") for each in drawing.locator(".alone").all()}
            assert alone == {f"{start}-{end}" for start, end in spans[index] - spans[1 - index]}
    page.locator("svg.tree").first.locator("[data-span='0-9']").focus()
    assert page.locator(".panel").nth(1).locator("svg.tree .lit[data-span='0-9']").count() == len(two["beams"])
    assert re.fullmatch(r"one: .*\ntwo: .*", page.locator("#detail").inner_text())
