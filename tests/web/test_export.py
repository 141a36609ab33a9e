"""The page as one file: it is self-contained, and texts of users cannot inject markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from beamtree.models.answers import answers, as_json
from beamtree.models.pretrained import load
from beamtree.utils import palette
from beamtree.web import SCRIPTS, STYLES, read, script
from beamtree.web.export import page
from web import using
from web.toy_models import EXPRESSION

EVIL = "</script><script>alert(1)</script><!--<script> \u2028\u2029 \\u003c & \" ' ${x}"


class Elements(HTMLParser):
    """The elements of a page as a browser parses them, and the text of its scripts and styles."""

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
    return using.document(["a", "b"], [(0, 2)], model=text, text=text, unknown=[text])


def embedded(text):
    return json.loads(re.search(r'<script type="application/json" id="documents">(.*?)</script>', text, re.S)[1])


def test_the_documents_are_in_the_file_as_they_were(folder):
    model = load(folder / "one")
    documents = [as_json(answer, "one") for answer in answers(model, [EXPRESSION, "5"], labels=True)]
    assert embedded(page(documents)) == documents


def test_no_text_ends_the_script_it_stands_in():
    text = page([document(EVIL)])
    assert embedded(text) == [document(EVIL)]
    scripts = [attributes for tag, attributes in Elements(text).found if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "documents"}, {"type": "module"}]
    assert "\u2028" not in text
    assert "\u2029" not in text


def test_the_file_names_no_other():
    elements = Elements(page([document()]))
    assert not [pair for pair in elements.found if pair[0] in ("link", "img", "iframe", "object", "base")]
    assert not [attributes for _, attributes in elements.found if {"src", "href"} & attributes.keys()]
    text = page([document()])
    addresses = set(re.findall(r"\w+://[^\s\"'`)]*", text))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # XML namespaces are not loaded
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
        "img-src": "data:",  # for drawings by the page
        **{name: f"'sha256-{digest}'" for name, digest in expected.items()},
    }


def test_all_scripts_and_styles_are_in_the_file():
    text = page([document()])
    assert Elements(text).texts[-1] == script()
    assert all(read(style) in text for style in STYLES)
    for name in SCRIPTS:  # complete, except for imports and exports
        parts = re.split(r'^import \{[^}]*\} from "[^"]+";$|^export (?:\{ \w+ \};)?', read(name), flags=re.MULTILINE)
        assert all(part.strip() in script() for part in parts)


def test_the_modules_join_into_one_script():
    """No module imports a later one, and top-level names are unique, so the modules can be joined into one script."""
    names = []
    for place, name in enumerate(SCRIPTS):
        for source in re.findall(r'^import \{[^}]*\} from "\./([^"]+)";$', read(name), re.MULTILINE):
            assert source in SCRIPTS[:place], f"{name} imports {source}"
        names += re.findall(
            r"^(?:export )?(?:async )?(?:const|let|var|class|function\*?) (\w+)", read(name), re.MULTILINE
        )
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    assert not re.search(r"^(import|export)\b", script(), re.MULTILINE)


def test_every_module_is_listed():
    folder = resources.files("beamtree.web")
    there = {each.name for each in folder.iterdir() if each.name.endswith(".js")}
    assert there == {name for name in SCRIPTS if "/" not in name} | {"docs.js"}


def test_the_scripts_put_no_text_into_the_page_as_markup():
    own = [name for name in SCRIPTS if not name.startswith("vendor/")]
    for name in (*own, "docs.js"):
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", ".html("):
            assert way not in read(name)
    assert not any(way in read("vendor/d3.js") for way in ("eval(", "Function(", "document.write"))


def test_the_colours_are_those_of_the_palette_alone():
    assert palette.css() in page([document()])
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?=[;\s])", read("view.css"))


def test_third_party_code_comes_with_its_licence():
    assert "Copyright 2010-2021 Mike Bostock" in read("vendor/LICENSE-d3.txt")
    assert all(f"d3-{part}" in read("vendor/README.md") for part in ("hierarchy", "zoom", "selection", "scale"))


def test_a_page_needs_a_document_of_numbers():
    with pytest.raises(ValueError, match="there are no documents to show"):
        page([])
    with pytest.raises(ValueError, match="JSON"):
        page([{**document(), "probabilities": {"1": float("nan")}}])
