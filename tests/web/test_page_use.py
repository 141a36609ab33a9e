"""The page in a real browser: links, downloads, pairs, mistakes, and many who ask at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest

from web.toy_models import EXPRESSION
from web.using import ask, link, parse, shown

pytestmark = pytest.mark.web
MERGES = 8  # of nine tokens


def test_a_link_shows_the_same_again(visit, server):
    page = visit(server)
    page.wait_for_selector("#model option[value=one]", state="attached")
    parse(page, EXPRESSION, "one")
    page.select_option("#compare", "two")
    page.wait_for_selector(".panel:nth-child(2) svg.tree")
    page.locator(".panel").first.get_by_role("button", name="Beam 2", exact=True).click()
    page.locator("#slider").fill("3")
    page.check("#fit")
    again = shown(visit(page.url))
    for one in ("#panels", "#result", "#step"):
        assert again.locator(one).inner_text() == page.locator(one).inner_text()
    assert again.locator(".panel").first.locator("button[aria-pressed=true]").inner_text() == "Beam 2"
    assert again.input_value("#slider") == "3"
    assert again.is_checked("#fit")
    assert again.locator(".pending").count() == page.locator(".pending").count() > 0


def test_the_way_back_leads_to_the_text_before(visit, server):
    page = shown(visit(link(server, model="one", text="[MAX 1 2 ]")))
    parse(page, "[MIN 3 4 ]")
    page.wait_for_selector(".text:text-is('[MIN 3 4 ]')")
    page.go_back()
    page.wait_for_selector(".text:text-is('[MAX 1 2 ]')")
    assert page.input_value("#text") == "[MAX 1 2 ]"


def test_a_link_to_what_is_not_there_says_so(visit, server):
    page = visit(link(server, model="three", text="5"))
    assert "“three”, which is not here" in page.locator("#problem").inner_text()
    page = shown(visit(link(server, model="one", text=EXPRESSION, beams="99_x.y", step="999")))
    assert page.input_value("#slider") == str(MERGES)


def test_drawings_and_the_document_are_downloaded(visit, server, tmp_path):
    document = ask(server, model="one", text=EXPRESSION)
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    with page.expect_download() as got:
        page.get_by_role("button", name="Download JSON").click()
    assert got.value.suggested_filename == "one.json"
    got.value.save_as(tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text()) == document
    for name, button in (("one-beam-1.svg", "Download beam 1 as SVG"), ("one-chart.svg", "Download the chart as SVG")):
        with page.expect_download() as got:
            page.get_by_role("button", name=button).click()
        assert got.value.suggested_filename == name
        got.value.save_as(tmp_path / name)
        drawing = ElementTree.parse(tmp_path / name).getroot()
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        texts = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert [text for text in texts if text in document["sides"][0]["tokens"]][:9] == document["sides"][0]["tokens"]
    paths = list(ElementTree.parse(tmp_path / "one-beam-1.svg").getroot().iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == MERGES
    assert {path.get("stroke") for path in paths} == {
        "rgb(0, 114, 178)"
    }  # the page's colour, though its style is not there
    assert {path.get("fill") for path in paths} == {"none"}


def test_a_pair_has_two_fields_and_both_sides_are_drawn(visit, server):
    page = visit(server)
    page.wait_for_selector("#model option[value=pairs]", state="attached")
    assert not page.is_visible("#second")
    parse(page, "( a ( and b ) )", "pairs", second="( not c )")
    shown(page)
    assert page.locator(".side").count() == 2
    leaves = [
        side.locator("svg.tree").first.locator(".leaf").all_text_contents() for side in page.locator(".side").all()
    ]
    assert leaves == [["(", "a", "(", "and", "b", ")", ")"], ["(", "not", "c", ")"]]
    assert page.locator(".labels .said").count() == 1
    again = shown(visit(page.url))
    assert again.input_value("#second") == "( not c )"
    parse(page, "( a ( and b ) )", second="")
    page.wait_for_selector("text=One side of a pair alone has trees but no label.")


def test_a_single_token_is_shown_without_a_merge(visit, server):
    page = shown(visit(link(server, model="one", text="5")))
    assert page.locator("svg.tree .leaf").all_text_contents() == ["5"]
    assert page.locator("#play").is_disabled()


def test_markup_is_shown_as_text(visit, server):
    evil = "<img src=x onerror=alert(1)> <script>alert(2)</script> <b>good</b> film &amp; \"'`${1}"
    page = visit(server)
    page.on("dialog", lambda dialog: pytest.fail("the text was run"))
    page.wait_for_selector("#model option[value=english]", state="attached")
    parse(page, evil, "english")
    shown(page)
    assert page.locator(".text").inner_text() == evil
    assert page.locator("main img, main script, main b").count() == 0
    tokens = ask(server, model="english", text=evil)["sides"][0]["tokens"]
    assert page.locator("svg.tree").first.locator(".leaf").all_text_contents() == tokens
    assert "Unknown to the model" in page.locator(".unknown").inner_text()
    shown(visit(page.url))


def test_mistakes_and_texts_that_are_too_long_are_refused_kindly(visit, server):
    page = visit(server)
    page.wait_for_selector("#model option[value=one]", state="attached")
    for text, told in (
        ("[SM " + "1 " * 9_998 + "]", "20,001 characters: 20,000 are the most"),
        ("1 " * 2_001, "2,001 tokens: 2,000 are the most"),
        ("[MXA 1 ]", "did you mean '[MAX'?"),
    ):
        parse(page, text, "one")
        page.wait_for_selector("#problem:not([hidden])")
        assert told in page.locator("[role=alert]").inner_text()
        assert page.locator("svg.tree").count() == 0
    parse(page, EXPRESSION)
    shown(page)
    assert not page.is_visible("#problem")


def test_two_hundred_requests_at_once_are_all_answered(visit, server):
    expected = [ask(server, model="one", text=f"[MAX {number} 9 ]") for number in range(10)]
    with ThreadPoolExecutor(200) as threads:
        asked = [threads.submit(ask, server, model="one", text=f"[MAX {number % 10} 9 ]") for number in range(200)]
        page = shown(visit(link(server, model="two", text=EXPRESSION)))  # meanwhile the page works, too
        assert [each.result(timeout=60) for each in asked] == expected * 20
    assert page.locator("svg.tree").count() >= 1


def test_the_interface_is_described_without_the_internet(visit, server):
    page = visit(f"{server}/docs")
    page.wait_for_selector("text=POST /api/parse")
    assert "2,000 tokens" in page.locator("#operations").inner_text()
    assert "The text is too long" in page.locator("#operations").inner_text()
    assert page.locator("pre").inner_text().startswith(f"curl {server}/api/parse")
