"""What a test does with the page, and with the interface behind it."""

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
    """The page once its trees are there."""
    page.wait_for_selector("#panels:not([aria-busy]) svg.tree")
    return page


def parse(page, text, model=None, second=None):
    if model is not None:
        page.select_option("#model", model)
    page.fill("#text", text)
    if second is not None:
        page.fill("#second", second)
    page.click("#parse")
    page.wait_for_selector("#panels:not([aria-busy])", state="attached")
    return page
