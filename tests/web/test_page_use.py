"""The page in a real browser: links, history, files, downloads, pairs, errors, and many concurrent requests."""

import csv
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest

from web.toy_models import EXPRESSION
from web.using import ask, document, link, merges, parse, shown, spans

pytestmark = pytest.mark.web
MERGES = 8  # of nine tokens


def test_a_link_shows_the_same_again(visit, server):
    page = shown(visit(server))
    page.select_option("#compare", "two")
    page.wait_for_selector(".constituent[data-part='1']")
    page.get_by_role("button", name="Beam 2 probability").first.click()
    page.click("#tab-steps")
    page.locator("#slider").fill("3")
    page.locator(".constituent[data-span='0-9']").first.focus()
    again = shown(visit(page.url))
    for one in ("#result", "#step", "#legend", "#answer", "#details"):
        assert again.locator(one).inner_text() == page.locator(one).inner_text()
    chosen = ".beam[aria-pressed=true]"
    assert again.locator(chosen).all_inner_texts() == page.locator(chosen).all_inner_texts()
    assert again.input_value("#slider") == "3"
    assert again.locator(".pending").count() == page.locator(".pending").count() > 0
    assert spans(again, ".constituent.lit") == {(0, 9)}


def test_the_way_back_leads_to_the_text_before(visit, server):
    page = shown(visit(link(server, model="one", text="[MAX 1 2 ]")))
    parse(page, "[MIN 3 4 ]")
    page.wait_for_selector(".leaf:text-is('[MIN')")
    page.go_back()
    page.wait_for_selector(".leaf:text-is('[MAX')")
    assert page.input_value("#text") == "[MAX 1 2 ]"


def test_a_link_to_what_is_not_there_says_so(visit, server):
    page = visit(link(server, model="three", text="5"))
    page.wait_for_selector("#problem:not([hidden])")
    assert "“three”, which is not available" in page.locator("#problem").inner_text()
    strange = {"beams": "99_x.y", "step": "999", "view": "steps", "node": "7-99"}
    page = shown(visit(link(server, model="one", text=EXPRESSION, **strange)))
    assert page.input_value("#slider") == str(MERGES)


def test_what_was_parsed_is_kept_in_the_browser(visit, server):
    page = shown(visit(server))
    parse(page, "[MIN 3 4 ]")
    page.wait_for_selector(".leaf:text-is('[MIN')")
    page.reload()
    shown(page)
    page.locator("#history-menu summary").click()
    texts = page.locator("#history .entry-text").all_inner_texts()
    assert texts == ["[MIN 3 4 ]", EXPRESSION]
    page.locator("#history .entry").nth(1).click()
    page.wait_for_selector(".leaf:text-is('9')")
    assert not page.is_visible("#history")
    page.locator("#history-menu summary").click()
    page.click("#forget")
    assert not page.is_visible("#history-menu")
    assert page.evaluate("localStorage.getItem('beamtree.history')") == "[]"


def test_a_page_without_storage_or_with_strange_storage_works(visit, server):
    page = shown(visit(server))
    for content in ("{", "[1, null, {}]", '"x"'):
        page.evaluate("content => localStorage.setItem('beamtree.history', content)", content)
        page.reload()
        shown(page)


def test_a_file_is_a_list_with_filters(visit, server):
    texts = ["[MAX 1 2 ]", "[MIN 3 4 ]", "[SM 5 5 ]", "[MED 1 2 3 ]"]
    found = {text: ask(server, model="one", text=text) for text in texts}
    wrong = texts[1:3]
    page = shown(visit(server))
    rows = [f"{text}\t{'x' if text in wrong else found[text]['label']}\n" for text in texts]
    lines = "text\tlabel\n" + "".join(rows)
    page.set_input_files("#file", {"name": "texts.tsv", "mimeType": "text/plain", "buffer": lines.encode()})
    page.wait_for_selector("#file-progress:has-text('4 texts; uncertain')")
    assert page.locator("#items .entry-text").all_inner_texts() == texts
    page.locator("[data-filter=wrong]").click()
    assert page.locator("#items .entry-text").all_inner_texts() == wrong
    page.locator("[data-filter=uncertain]").click()
    unsure = [text for text in texts if max(found[text]["probabilities"].values()) < 0.7]
    assert page.locator("#items .entry-text").all_inner_texts() == unsure
    page.locator("[data-filter=all]").click()
    page.locator("#items button").nth(1).click()
    page.wait_for_selector(".leaf:text-is('[MIN')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".leaf:text-is('[SM')")
    page.click("#close-file")
    assert not page.is_visible("#browse")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "[MAX 1 2 ]\n\n[MIN 3 4 ]\r\n", ["[MAX 1 2 ]", "[MIN 3 4 ]"]),
        ("a.csv", 'label,text\n1,"[MAX 1, 2 ]"\n2,"a ""b"""\n', ["[MAX 1, 2 ]", 'a "b"']),
        ("a.jsonl", '{"text": "[MAX 1 2 ]", "label": 2}\n', ["[MAX 1 2 ]"]),
        ("listops.tsv", "2\t( ( ( [MAX 1 ) 2 ) ] )\n", ["[MAX 1 2 ]"]),
    ],
)
def test_files_of_several_kinds_are_read(visit, server, name, content, expected):
    page = shown(visit(server))
    page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": content.encode()})
    page.wait_for_selector("#file-progress:has-text('uncertain')")
    assert page.locator("#items .entry-text").all_inner_texts() == expected


def test_a_file_that_is_no_list_of_texts_is_refused_kindly(visit, server):
    page = shown(visit(server))
    for name, content, message in (
        ("a.jsonl", b"{", "Line 1 is not JSON."),
        ("a.txt", b"\n", "has no text in it"),
        ("a.txt", b"x" * 1_000_001, "the maximum is 1,000,000"),
    ):
        page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": content})
        page.wait_for_selector(f"#problem:has-text('{message}')")


def test_drawings_the_document_and_the_constituents_are_downloaded(visit, server, tmp_path):
    answer = ask(server, model="one", text=EXPRESSION)
    [side] = answer["sides"]
    page = shown(visit(link(server, model="one", text=EXPRESSION)))
    page.get_by_role("button", name="Beam 2 probability").click()

    def download(kind):
        with page.expect_download() as got:
            page.get_by_role("button", name=f"Download {kind}").click()
        got.value.save_as(tmp_path / got.value.suggested_filename)
        return got.value.suggested_filename, (tmp_path / got.value.suggested_filename).read_bytes()

    name, content = download("JSON")
    assert name == "one.json"
    assert json.loads(content) == answer
    name, content = download("SVG")
    assert name == "one-beam-2.svg"
    drawing = ElementTree.fromstring(content)
    texts = ["".join(each.itertext()) for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in side["tokens"]]
    starts = {"PNG": b"\x89PNG", "PDF": b"%PDF"}
    for kind, start in starts.items():
        name, content = download(kind)
        assert name == f"one-beam-2.{kind.lower()}"
        assert content.startswith(start)
    name, content = download("TikZ")
    assert name == "one-beam-2.tex"
    assert b"forest" in content
    name, content = download("CSV")
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert len(rows) == len(side["beams"]) * (2 * MERGES + 1)
    made = [(int(row["start"]), int(row["end"])) for row in rows if row["beam"] == "1" and row["merge"]]
    assert made == merges(side["beams"][0])
    assert rows[0]["text"] == "[MAX"
    assert {row["label"] for row in rows} <= set(answer["labels"])


def test_a_drawing_that_fails_is_told(visit, server):
    page = shown(visit(server))
    page.route("**/api/draw", lambda route: route.fulfill(status=503, json={"error": "too busy"}))
    page.get_by_role("button", name="Download PDF").click()
    page.wait_for_selector("#notice:has-text('too busy')")


def test_a_pair_has_two_fields_and_two_trees(visit, server):
    page = shown(visit(server))
    assert not page.is_visible("#second")
    page.select_option("#model", "pairs")
    page.wait_for_selector(".frame:nth-child(2) .constituent")  # both sides of the example
    parse(page, "( a ( and b ) )", second="( not c )")
    page.wait_for_selector(".frame:nth-child(2) .leaf:text-is('not')")
    leaves = [frame.locator(".leaf").all_text_contents() for frame in page.locator(".frame").all()]
    assert leaves == [["(", "a", "(", "and", "b", ")", ")"], ["(", "not", "c", ")"]]
    assert page.locator(".frame-name").all_inner_texts() == ["First text", "Second text"]
    assert page.locator(".answer .said").count() == 1
    assert page.locator(".sign").count() == 0  # their constituents have no labels
    again = shown(visit(page.url))
    assert again.input_value("#second") == "( not c )"
    parse(page, "( a ( and b ) )", second="")
    page.wait_for_selector("text=One side of a pair alone has trees but no label.")


def test_a_single_token_is_shown_without_a_merge(visit, server):
    page = shown(visit(link(server, model="one", text="5", view="steps")))
    assert page.locator(".leaf").all_text_contents() == ["5"]
    assert page.locator("#play").is_disabled()
    for view in ("chart", "tree"):
        page.click(f"#tab-{view}")
        shown(page)


def test_markup_is_shown_as_text(visit, server):
    evil = "<img src=x onerror=alert(1)> <script>alert(2)</script> <b>good</b> film &amp; \"'`${1}"
    page = shown(visit(server))
    page.on("dialog", lambda dialog: pytest.fail("the text was run"))
    parse(page, evil, "english")
    page.wait_for_selector(".leaf:text-is('good')")
    assert page.locator("body img, main script, body b").count() == 0
    tokens = ask(server, model="english", text=evil)["sides"][0]["tokens"]
    page.click("#fit")  # only what is in view is drawn
    page.wait_for_function("count => document.querySelectorAll('.leaf').length === count", arg=len(tokens))
    assert page.locator(".leaf").all_text_contents() == tokens
    assert "Not in the vocabulary" in page.locator(".unknown").inner_text()
    root = page.locator(f".constituent[data-span='0-{len(tokens)}']")
    root.hover()
    assert page.locator("#details .text").inner_text() == evil
    page.locator("#history-menu summary").click()
    assert page.locator("#history .entry-text").first.inner_text().startswith("<img src=x")
    page.set_input_files("#file", {"name": "<b>.txt", "mimeType": "text/plain", "buffer": evil.encode()})
    page.wait_for_selector("#file-progress:has-text('uncertain')")
    assert page.locator("#file-name").inner_text() == "<b>.txt"
    assert page.locator("body img, main script, body b").count() == 0
    shown(visit(page.url))


def test_mistakes_and_texts_that_are_too_long_are_refused_kindly(visit, server):
    page = shown(visit(server))
    for text, message in (
        ("[SM " + "1 " * 9_998 + "]", "20,001 characters: the maximum is 20,000"),
        ("1 " * 2_001, "2,001 tokens: the maximum is 2,000"),
        ("[MXA 1 ]", "did you mean '[MAX'?"),
    ):
        parse(page, text)
        page.wait_for_selector(f'#problem:has-text("{message}")')
        assert page.locator("svg.tree").count() == 0
    parse(page, EXPRESSION)
    shown(page)
    assert not page.is_visible("#problem")


def test_a_server_that_has_gone_is_told(visit, server):
    page = shown(visit(server))
    page.route("**/api/parse", lambda route: route.abort())
    page.click("#parse")
    page.wait_for_selector("text=The server does not answer: is it still running?")


def stream(*events):
    return {"body": "".join(json.dumps(event) + "\n" for event in events), "content_type": "application/x-ndjson"}


def test_progress_is_told_and_a_later_request_ends_an_earlier_one(visit, server):
    """With answers as lines of JSON, and as one document from a server that does not stream."""
    page = shown(visit(server))
    answers = {
        "slow": stream({"event": "queued", "position": 3}, {"event": "done", "document": document(["slow"], [])}),
        "streamed": stream(
            {"event": "running", "seconds": 1}, {"event": "done", "document": document(["streamed", "b"], [(0, 2)])}
        ),
        "plain": {"json": document(["plain", "b"], [(0, 2)])},
        "broken": stream({"event": "error", "error": "it broke", "status": 504}),
    }
    asked = []

    def answer(route):
        text = route.request.post_data_json["text"]
        asked.append((text, route.request.headers["accept"]))
        if text == "slow":
            return  # never answered: the page must abort it
        route.fulfill(**answers[text])

    page.route("**/api/parse", answer)
    page.fill("#text", "slow")
    page.press("#text", "Enter")
    page.wait_for_selector("#working:not([hidden])")
    assert page.is_visible("#cancel")
    page.fill("#text", "streamed")
    page.press("#text", "Enter")
    page.wait_for_selector(".leaf:text-is('streamed')")
    assert not page.is_visible("#working")
    parse(page, "plain")
    page.wait_for_selector(".leaf:text-is('plain')")
    parse(page, "broken")
    page.wait_for_selector("#problem:has-text('it broke')")
    assert all("application/x-ndjson" in accept for _, accept in asked)
    page.fill("#text", "slow")
    page.press("#text", "Enter")
    page.click("#cancel")
    assert not page.is_visible("#working")
    parse(page, "plain")
    page.wait_for_selector(".leaf:text-is('plain')")
    time.sleep(0.7)
    assert not page.is_visible("#working")  # nor later


def test_two_hundred_requests_at_once_are_all_answered(visit, server):
    expected = [ask(server, model="one", text=f"[MAX {number} 9 ]") for number in range(10)]
    with ThreadPoolExecutor(200) as threads:
        asked = [threads.submit(ask, server, model="one", text=f"[MAX {number % 10} 9 ]") for number in range(200)]
        page = shown(visit(link(server, model="two", text=EXPRESSION)))  # meanwhile the page works, too
        assert [each.result(timeout=60) for each in asked] == expected * 20
    assert page.locator("svg.tree").count() == 1


def test_the_interface_is_described_without_the_internet(visit, server):
    page = visit(f"{server}/docs")
    page.wait_for_selector("text=POST /api/parse")
    assert "2,000 tokens" in page.locator("#operations").inner_text()
    assert "The text is too long" in page.locator("#operations").inner_text()
    assert page.locator("pre").first.inner_text().startswith(f"curl {server}/api/parse")
    page.wait_for_selector("text=POST /api/draw")
