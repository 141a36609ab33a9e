"""The page as one file: everything is in it, and nothing that a user wrote can get out of its place."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from beamtree.models.answers import answers, as_json
from beamtree.models.pretrained import load
from beamtree.web import SCRIPTS, STYLE, read
from beamtree.web.export import page
from web.toy_models import EXPRESSION

EVIL = "</script><script>alert(1)</script><!--<script> \u2028\u2029 \\u003c & \" ' ${x}"


class Elements(HTMLParser):
    """What a browser sees in a page: its elements, and the text of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside in ("script", "style"):
            self.texts.append(data)


def document(text="a b"):
    side = {"text": text, "tokens": ["a", "b"], "chart": [[0, 2, 1.0]]}
    beams = [{"probability": 1.0, "tree": "(a b)", "merges": [[0, 2]]}]
    said = {"label": "1", "probabilities": {"1": 1.0}, "unknown": [text]}
    return {"model": text, "text": text, **said, "sides": [{**side, "beams": beams}]}


def embedded(text):
    return json.loads(re.search(r'<script type="application/json" id="documents">(.*?)</script>', text, re.S)[1])


def test_the_documents_are_in_the_file_as_they_were(folder):
    model = load(folder / "one")
    documents = [as_json(answer, "one") for answer in answers(model, [EXPRESSION, "5"])]
    assert embedded(page(documents)) == documents


def test_no_text_ends_the_script_it_stands_in():
    text = page([document(EVIL)])
    assert embedded(text) == [document(EVIL)]
    scripts = [attributes for tag, attributes in Elements(text).found if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "documents"}, {}]
    assert "\u2028" not in text
    assert "\u2029" not in text


def test_the_file_names_no_other():
    elements = Elements(page([document()]))
    assert not [pair for pair in elements.found if pair[0] in ("link", "img", "iframe", "object", "base")]
    assert not [attributes for _, attributes in elements.found if {"src", "href"} & attributes.keys()]
    text = page([document()])
    assert set(re.findall(r"\w+://[^\s\"'`)]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, which nothing loads
    assert "@import" not in text
    assert "url(" not in text


def test_the_policy_allows_this_script_and_this_style_alone():
    elements = Elements(page([document()]))
    [policy] = [each["content"] for tag, each in elements.found if tag == "meta" and "http-equiv" in each]
    style, _, script = elements.texts
    expected = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for name, text in (("script-src", script), ("style-src", style))
    }
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules == {
        "default-src": "'none'",
        "base-uri": "'none'",
        **{name: f"'sha256-{digest}'" for name, digest in expected.items()},
    }


def test_all_scripts_are_in_the_file():
    script = Elements(page([document()])).texts[-1]
    assert script == "\n".join(map(read, SCRIPTS))
    assert read(STYLE) in page([document()])


def test_the_scripts_put_no_text_into_the_page_as_markup():
    for name in (*SCRIPTS, "docs.js"):
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert way not in read(name)


def test_a_page_needs_a_document_of_numbers():
    with pytest.raises(ValueError, match="there is no document to show"):
        page([])
    with pytest.raises(ValueError, match="JSON"):
        page([{**document(), "probabilities": {"1": float("nan")}}])
