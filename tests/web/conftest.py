"""Fixtures for the tests of the page: models, a server, and a real browser, without which these tests are skipped."""

import importlib.util
import os

import pytest

from web import browser, toy_models

# The tests of the server cannot be imported without it, and a GPU machine may not have it.
collect_ignore = [] if importlib.util.find_spec("fastapi") else ["test_app.py", "test_guard.py"]


def pytest_configure(config):
    config.addinivalue_line("markers", "web: needs Chromium and Playwright ('make test-web' installs them)")


def pytest_collection_modifyitems(items):
    # If a browser is named, it must exist: tests must not be skipped silently.
    if "BEAMTREE_BROWSER" in os.environ or (importlib.util.find_spec("playwright") and browser.find()):
        return
    for item in items:
        if item.get_closest_marker("web"):
            item.add_marker(pytest.mark.skip(reason="needs Chromium and Playwright: make test-web"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of the models."""
    found = tmp_path_factory.mktemp("models")
    toy_models.save_all(found)
    return found


@pytest.fixture(scope="session")
def server(folder):
    with toy_models.serving(folder, "one", "two", "english", "pairs") as address:
        yield address


@pytest.fixture
def slow(monkeypatch):
    """Delays all answers until `slow.go` is set."""
    from beamtree.web import worker
    from web.live_server import Slow

    held = Slow()
    monkeypatch.setattr(worker, "answers", held)
    yield held
    held.go.set()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without its sandbox, Chromium can run as root; it opens only the page.
        found = playwright.chromium.launch(
            executable_path=browser.find(), env=browser.environment(), args=["--no-sandbox"]
        )
        yield found
        found.close()


@pytest.fixture
def visit(chromium):
    """Opens a URL in a new window: `visit(address, width=360)`. No page may log errors or send requests elsewhere."""
    contexts, troubles = [], []

    def open_page(address, width=1200, height=900, **settings):
        context = chromium.new_context(viewport={"width": width, "height": height}, **settings)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("console", lambda message: troubles.append(message.text) if _is_trouble(message) else None)
        own = address.split("#")[0].rsplit("/", 1)[0]
        page.on("request", lambda asked: troubles.append(asked.url) if not asked.url.startswith(own) else None)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _is_trouble(message):
    # The browser itself logs answers with an error status to the console.
    return message.type in ("error", "warning") and "Failed to load resource" not in message.text
