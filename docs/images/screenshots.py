"""Takes the pictures of the terminal and the page for the documentation.

    python docs/images/screenshots.py [MODEL …]

Serves the models (by default all shipped ones), opens the page in Chromium and writes page.png (a sentence if a model
reads sentiment, otherwise an expression), page-phone.png, and page-compare.png if two of the models read ListOps; and
parse.png, the output of `beamtree parse`. It needs the extra "web", Playwright and a browser; `make test-web` installs
all three.
"""

import shlex
import subprocess
import sys
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent
sys.path.insert(0, str(IMAGES.parents[1] / "tests"))

from web import browser, toy_models  # noqa: E402 (after the change of sys.path)

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"
SENTENCE = "the film is not as good as the book it was made from"
TERMINAL = """<style>
body { margin: 0; display: inline-block; background: #1d2125; color: #e8e8e8; }
pre { margin: 0; padding: 1rem 2rem 1rem 1rem; font: 14px/1.35 "DejaVu Sans Mono", monospace; }
</style>
<pre></pre>"""


def opened(chromium: Browser, address: str, width: int, height: int, scheme: str, **view: str) -> Page:
    """The page with this view, at twice the pixels so that it stays sharp on any screen."""
    page = chromium.new_page(
        viewport={"width": width, "height": height}, device_scale_factor=2, color_scheme=scheme, reduced_motion="reduce"
    )
    page.goto(f"{address}/#{urlencode(view)}")
    page.wait_for_selector("body.shown #stage:not([aria-busy]) svg.tree .constituent")
    return page


def take(page: Page, name: str) -> None:
    page.screenshot(path=IMAGES / name)
    page.close()
    print(IMAGES / name)


def take_terminal(chromium: Browser, model: str) -> None:
    """What a command prints, under the command."""
    command = ["parse", model, EXPRESSION, "--ascii", "--top", "1"]
    said = subprocess.run(
        [sys.executable, "-m", "beamtree", *command], capture_output=True, text=True, check=True
    ).stdout
    page = chromium.new_page(device_scale_factor=2)
    page.set_content(TERMINAL.replace("</pre>", escape(f"$ beamtree {shlex.join(command)}\n{said}") + "</pre>"))
    page.locator("body").screenshot(path=IMAGES / "parse.png")
    page.close()
    print(IMAGES / "parse.png")


def main(models: list[str]) -> None:
    with toy_models.serving(Path.cwd(), *models) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser.find(), env=browser.environment(), args=["--no-sandbox"]
        )
        served = chromium.new_page().request.get(f"{address}/api/models").json()["models"]
        known = [model["name"] for model in served if model["task"].startswith("listops")]
        if not known:
            raise SystemExit("the pictures show an expression of ListOps, and none of the models reads those")
        take_terminal(chromium, known[0])
        sentiment = [model["name"] for model in served if model["task"].startswith("sst")]
        view = {"model": sentiment[0], "text": SENTENCE} if sentiment else {"model": known[0], "text": EXPRESSION}
        page = opened(chromium, address, 1280, 800, "light", **view)
        page.locator(".constituent:not(.token)").nth(1).hover()
        take(page, "page.png")
        take(opened(chromium, address, 375, 800, "dark", model=known[0], text=EXPRESSION), "page-phone.png")
        if len(known) > 1:
            view = {"model": known[0], "compare": known[1], "text": EXPRESSION}
            take(opened(chromium, address, 1280, 800, "light", **view), "page-compare.png")
        chromium.close()


if __name__ == "__main__":
    main(sys.argv[1:])
