"""Helpers for tests of the page and its API."""

import json
import urllib.request
from urllib.parse import urlencode


def ask(server, **asked):
    body = json.dumps(asked).encode()
    request = urllib.request.Request(f"{server}/api/parse", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def link(server, **parts):
    return f"{server}/#{urlencode(parts)}"


def shown(page):
    """Wait until the page shows its trees."""
    page.wait_for_selector("body.shown #stage:not([aria-busy]) :is(svg.tree .constituent, svg.chart, canvas.skyline)")
    return page


def parse(page, text, model=None, second=None):
    """Enter a text and parse it; the page then shows the answer or an error."""
    if model is not None:
        page.select_option("#model", model)
        page.wait_for_selector("#stage:not([aria-busy])")
    page.fill("#text", text)
    if second is not None:
        page.fill("#second", second)
    page.click("#parse")
    page.wait_for_selector("#stage:not([aria-busy])")
    return page


def merges(beam):
    """The spans of a beam's merges, in their order."""
    size = (len(beam["constituents"]) + 1) // 2
    return [(each["start"], each["end"]) for each in beam["constituents"][size:]]


def spans(page, selector):
    """The set of spans of the elements that match a selector."""
    found = page.locator(selector).evaluate_all("all => all.map((each) => each.dataset.span)")
    return {tuple(map(int, span.split("-"))) for span in found}


def node(page, start, end, part=0):
    return page.locator(f".constituent[data-span='{start}-{end}'][data-part='{part}']")


def box(page, selector):
    """Left, top, right and bottom of an element in the window, in pixels."""
    found = page.locator(selector).first.bounding_box()
    return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]


def boxes(page, selector):
    """The boxes of all elements in the window, with "left", "top", "right", "bottom", "width" and "height"."""
    return page.locator(selector).evaluate_all("all => all.map((each) => each.getBoundingClientRect().toJSON())")


def document(tokens, merged, **given):
    """A handwritten document: one beam over the tokens, merged in this order."""
    labels = given.get("labels", ["no", "yes"])
    nodes = [{"start": place, "end": place + 1} for place in range(len(tokens))]
    nodes += [{"start": start, "end": end} for start, end in merged]
    empty = {"label": None, "probabilities": None, "score": None, "step_probability": None, "expected": None}
    beam = {"probability": 1.0, "tree": "(…)", "constituents": [{**empty, **each} for each in nodes]}
    side = {"text": " ".join(tokens), "tokens": tokens, "offsets": None, "beams": [beam]}
    chart = [[start, end, 1.0] for start, end in merged]
    answer = {"model": "one", "text": side["text"], "label": labels[-1], "unknown": [], "labels": labels}
    answer |= {"label_styles": [None] * len(labels), "probabilities": {**dict.fromkeys(labels, 0.0), labels[-1]: 1.0}}
    return {**answer, "sides": [{**side, "chart": chart}], **given}
