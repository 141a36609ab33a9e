"""The page in a real browser, on a real server: type, parse, point, step, compare."""

import pytest

from web.toy_models import EXPRESSION
from web.using import ask, box, boxes, link, merges, node, parse, shown, spans

pytestmark = pytest.mark.web
MERGES = 8  # of nine tokens


def test_the_example_of_the_first_model_is_parsed_on_arrival(visit, server):
    page = shown(visit(server))
    assert page.input_value("#text") == EXPRESSION
    assert page.locator(".leaf").all_text_contents() == EXPRESSION.split()


@pytest.mark.parametrize("width", [1280, 375])
def test_the_whole_tree_is_on_the_first_screen(visit, server, width):
    page = shown(visit(server, width=width, height=800))
    _, top, _, _ = box(page, "#frames")
    assert top <= (150 if width == 1280 else 180)  # of the window's 800 pixels
    assert box(page, "#bar")[3] - box(page, "#bar")[1] <= (56 if width == 1280 else 96)
    places = boxes(page, ".constituent")
    assert len(places) == 2 * MERGES + 1
    assert all(each["left"] >= 0 and each["right"] <= width for each in places)
    assert all(top <= each["top"] and each["bottom"] <= 700 for each in places)
    height = max(each["bottom"] for each in places) - min(each["top"] for each in places)
    assert height > 300
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert width < 760 or page.evaluate("document.documentElement.scrollHeight") == 800


def test_a_short_text_is_not_blown_up(visit, server):
    page = shown(visit(link(server, model="one", text="[MAX 1 2 ]"), width=1600, height=1000))
    height = page.locator(".leaf").first.evaluate("e => e.getBoundingClientRect().height")
    assert height < 1.5 * 24


def test_a_text_is_typed_and_its_label_and_its_tree_are_seen(visit, server):
    page = shown(visit(server))
    text = "[MIN 3 [MAX 1 2 ] ]"
    expected = ask(server, model="one", text=text)
    page.fill("#text", "")
    page.type("#text", text)
    page.press("#text", "Enter")
    page.wait_for_selector(".leaf:text-is('3')")
    label = expected["label"]
    assert page.locator(".answer .pill").inner_text() == label
    assert page.locator(".answer .said .name").inner_text() == label
    assert page.locator(".answer .said .number").inner_text() == f"{expected['probabilities'][label]:.3f}"
    [side] = expected["sides"]
    assert page.locator(".leaf").all_text_contents() == side["tokens"]
    assert spans(page, ".constituent:not(.token)") == set(merges(side["beams"][0]))
    assert page.locator(".beam").count() == len(side["beams"])
    shares = [f"{beam['probability']:.3f}" for beam in side["beams"]]
    assert page.locator(".beam .number").all_inner_texts() == shares
    assert label in page.locator("#result").inner_text()


def test_every_node_shows_its_label_and_a_wrong_value_what_was_expected(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    judged = wrong = 0
    for each in side["beams"][0]["constituents"][9:]:
        shape = node(page, each["start"], each["end"])
        assert shape.locator(".sign").text_content() == each["label"]
        classes = shape.get_attribute("class").split()
        is_wrong = each["expected"] is not None and each["expected"] != each["label"]
        assert ("wrong" in classes) == is_wrong
        assert ("partial" in classes) == (each["expected"] is None)
        judged, wrong = judged + (each["expected"] is not None), wrong + is_wrong
        if is_wrong:
            assert shape.locator(".expected").text_content() == f"≠ {each['expected']}"
            red = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--wrong')")
            fill = shape.locator(".mark").evaluate("e => getComputedStyle(e).fill")
            assert fill == "rgb({}, {}, {})".format(*(int(red[place : place + 2], 16) for place in (1, 3, 5)))
    assert judged >= 1
    assert ("wrong ≠ expected" in page.locator("#legend").inner_text()) == (wrong > 0)


def test_phrases_have_the_colours_of_their_sentiment(visit, server):
    document = ask(server, model="english", text="a good film")
    page = shown(visit(link(server, model="english", text="a good film")))
    assert [each.strip() for each in page.locator("#legend li").all_inner_texts()]
    for label, style in zip(document["labels"], document["label_styles"], strict=True):
        assert label in page.locator("#legend").inner_text()
        assert style.startswith("sentiment-")
    for each in document["sides"][0]["beams"][0]["constituents"][3:]:
        style = document["label_styles"][document["labels"].index(each["label"])]
        mark = node(page, each["start"], each["end"]).locator(".mark")
        assert mark.evaluate("e => e.style.getPropertyValue('--color')") == f"var(--{style})"
    assert page.locator(".token .underline").count() == 3


def test_the_lines_of_a_constituent_end_at_its_two_parts(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))

    def centre(start, end):
        found = node(page, start, end).get_attribute("transform")
        return tuple(map(float, found.removeprefix("translate(").removesuffix(")").split()))

    tops = {}
    for start, end in merges(side["beams"][0]):
        middle = tops.get(start, start + 1)
        numbers = page.locator(f".edge[data-span='{start}-{end}']").evaluate(
            "e => [e.getPointAtLength(0), e.getPointAtLength(e.getTotalLength())].flatMap(({ x, y }) => [x, y])"
        )
        assert numbers == pytest.approx([*centre(start, middle), *centre(middle, end)], abs=0.2)
        assert centre(start, end)[0] == pytest.approx((numbers[0] + numbers[2]) / 2, abs=0.2)
        assert centre(start, end)[1] < min(numbers[1], numbers[3])
        tops[start] = end
    page.locator("#brackets summary").click()
    assert page.locator("#brackets code").inner_text() == side["beams"][0]["tree"]


def test_pointing_at_a_constituent_tells_everything_of_it(visit, server):
    document = ask(server, model="one", text=EXPRESSION)
    [side] = document["sides"]
    each = side["beams"][0]["constituents"][9 + 2]
    start, end = each["start"], each["end"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    assert "Point at a constituent" in page.locator("#details").inner_text()
    node(page, start, end).hover()
    details = page.locator("#details").inner_text()
    assert page.locator("#details .text").inner_text() == " ".join(side["tokens"][start:end])
    assert f"span [{start}, {end})" in details
    assert page.locator("#details .pill").inner_text() == each["label"]
    share = next(value for first, last, value in side["chart"] if (first, last) == (start, end))
    assert f"Over all beams\n{share:.3f}" in details
    assert "merge 3 of 8" in details
    assert f"Score then\n{each['score']:.3f}".replace("-", "−") in details
    assert f"Probability then\n{each['step_probability']:.3f}" in details
    best = max(each["probabilities"])
    assert page.locator("#details .labels .said .number").inner_text() == f"{best:.3f}"
    assert spans(page, ".lit:not(.edge)") == {(start, end)}
    assert page.locator(".inside .leaf").all_text_contents() == side["tokens"][start:end]
    held = [index for index, beam in enumerate(side["beams"]) if (start, end) in merges(beam)]
    holding = page.locator(".beam").evaluate_all("all => all.map((each) => each.classList.contains('holds'))")
    assert [index for index, holds in enumerate(holding) if holds] == held
    page.locator("h1").hover()
    assert page.locator(".lit").count() == 0


def test_another_beam_is_chosen_from_the_strip(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    page.get_by_role("button", name="Beam 2 probability").click()
    assert page.locator(".beam[aria-pressed=true] .caption").all_inner_texts()[0].startswith("Beam 2")
    assert spans(page, ".constituent:not(.token)") == set(merges(side["beams"][1]))
    page.click("#tab-chart")
    page.wait_for_selector("svg.chart .made")
    assert spans(page, "svg.chart .made") == set(merges(side["beams"][1]))


def test_the_chart_has_a_constituent_above_the_middle_of_its_words_and_the_longer_the_higher(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION, view="chart")))
    chart = page.locator("svg.chart")

    def place(selector):
        x, y, width, height = chart.locator(selector).evaluate(
            "e => { const b = e.getBBox(); return [b.x, b.y, b.width, b.height] }"
        )
        return x + width / 2, y + height / 2

    assert spans(page, "svg.chart .cell") == {(start, end) for start, end, _ in side["chart"]}
    leaves = [place(f".label[data-leaf='{position}']")[0] for position in range(9)]
    rows = {}
    for start, end, value in side["chart"]:
        heat = f"[data-span='{start}-{end}'] .heat"
        x, y = place(heat)
        assert x == pytest.approx((leaves[start] + leaves[end - 1]) / 2, abs=1)
        assert rows.setdefault(end - start, y) == y
        assert float(chart.locator(heat).get_attribute("fill-opacity")) == pytest.approx(max(value, 0.05), abs=1e-3)
    heights = [rows[length] for length in sorted(rows)]
    assert heights == sorted(heights, reverse=True)
    chart.locator("[data-span='0-9']").hover()
    assert "span [0, 9)" in page.locator("#details").inner_text()


def test_the_merges_are_stepped_through_one_by_one(visit, server):
    [side] = ask(server, model="one", text=EXPRESSION)["sides"]
    order = merges(side["beams"][0])
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    assert not page.is_visible("#player")
    page.click("#tab-steps")

    def made():
        return spans(page, ".constituent:not(.pending):not(.token)")

    assert made() == set(order)
    page.click("#first")
    assert made() == set()
    assert page.locator("#back").is_disabled()
    for count in (1, 2, 3):
        page.click("#forward")
        assert made() == set(order[:count])
        assert spans(page, ".constituent.newest") == {order[count - 1]}
        assert f"{count} of {MERGES} merges" in page.locator("#step").inner_text()
    page.click("#back")
    assert made() == set(order[:2])
    page.locator("#slider").fill("6")
    assert made() == set(order[:6])
    page.locator("h1").click()
    page.keyboard.press("ArrowLeft")
    assert made() == set(order[:5])
    page.keyboard.press("ArrowRight")
    assert made() == set(order[:6])
    assert page.locator("#play").inner_text() == "Play"
    page.click("#play")
    assert page.locator("#play").inner_text() == "Pause"
    page.wait_for_selector("#play:text-is('Play')")  # it plays to the end
    assert made() == set(order)
    page.click("#play")  # from the start again
    page.wait_for_selector("#step:has-text('1 of 8 merges')")
    page.keyboard.press("Space")  # on the button that was clicked: pause
    assert page.locator("#play").inner_text() == "Play"
    assert len(made()) < MERGES
    page.click("#tab-tree")
    assert page.locator(".pending").count() == 0


def test_two_trees_mirror_each_other_over_the_same_words(visit, server):
    one, two = (ask(server, model=name, text=EXPRESSION)["sides"][0] for name in ("one", "two"))
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    page.select_option("#compare", "two")
    page.wait_for_selector(".constituent[data-part='1']")
    assert page.locator(".frame-name").all_inner_texts() == ["one", "two"]
    assert page.locator(".leaf").all_text_contents() == one["tokens"]  # once
    found = [set(merges(side["beams"][0])) for side in (one, two)]
    shared, count = found[0] & found[1], len(found[0] & found[1])
    for part in (0, 1):
        assert spans(page, f".constituent[data-part='{part}']:not(.token)") == found[part]
        assert spans(page, f".edge.only[data-part='{part}']") == found[part] - found[1 - part]
        assert spans(page, f".edge.shared[data-part='{part}']") == shared
    _, row, _, below = box(page, ".leaf")
    tops = [node(page, 0, 9, part).bounding_box()["y"] for part in (0, 1)]
    assert tops[0] < row < below < tops[1]  # one is above the tokens, the other below
    legend = page.locator("#legend").inner_text()
    assert f"in both trees ({count} of {MERGES})" in legend
    assert f"in one tree only ({MERGES - count})" in legend
    assert f"share {count} of {MERGES} constituents" in page.locator("#result").inner_text()
    stroke = "e => getComputedStyle(e).stroke"
    assert page.locator(".edge.only").first.evaluate(stroke) != page.locator(".edge.shared").first.evaluate(stroke)
    dashes = page.locator(".edge.only").first.evaluate("e => getComputedStyle(e).strokeDasharray")
    assert dashes != "none"  # not by colour alone
    node(page, 0, 9).focus()
    assert spans(page, ".constituent[data-part='1'].lit") == {(0, 9)}
    assert page.locator("#details h3").all_inner_texts() == ["one", "two"]


def test_another_model_has_another_example(visit, server):
    page = shown(visit(server))
    page.select_option("#model", "english")
    page.wait_for_selector(".leaf:text-is('film')")
    assert "film" in page.input_value("#text")
    parse(page, "a film", "english")
    page.select_option("#model", "one")  # which cannot parse it
    page.wait_for_selector("#notice:not([hidden])")
    shown(page)
    assert "one cannot parse the previous text" in page.locator("#notice").inner_text()
    assert page.input_value("#text") == EXPRESSION
    parse(page, "[MAX 1 2 ]")
    page.select_option("#model", "two")  # which can
    page.wait_for_selector("#stage:not([aria-busy])")
    assert page.input_value("#text") == "[MAX 1 2 ]"


def test_examples_are_chips(visit, server):
    page = shown(visit(link(server, model="one", text="[MAX 1 2 ]")))
    page.locator("#examples .chip").first.click()
    page.wait_for_selector(".leaf:text-is('9')")
    assert page.input_value("#text") == EXPRESSION
