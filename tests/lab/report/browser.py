"""A headless Chromium that notices whatever goes wrong in a page. conftest.py gives it to all tests."""

import shutil

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
QUIET = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
QUIET += ["disable-component-update", "disable-sync"]
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no chromium or chrome on the PATH")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=[f"--{flag}" for flag in QUIET])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open a page; at the end of the test, nothing must have gone wrong and nothing been asked of the network."""
    contexts, troubles = [], []

    def open_page(path, viewport=DESK, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: _is_local(request.url) or troubles.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _is_local(url):
    return url.startswith(("file:", "data:"))
