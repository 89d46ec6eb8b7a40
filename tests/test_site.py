"""The documentation site builds without a warning, describes every public name, and can be read in a real browser.

    SITE_SCREENSHOTS=out/screenshots pytest tests/test_site.py -k screen

keeps the pictures of the pages that the tests take in Chromium, at the width of a desk and of a phone.
"""

import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import leanbayes as lb
from tests.integrations.matrix import shows

ROOT = Path(__file__).resolve().parents[1]
pytest.importorskip("mkdocs", reason="the site needs the extra docs")


def part_of_the_site(name: str) -> Any:
    """Import a module of docs/site, which is no package."""
    spec = spec_from_file_location(f"site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks, doctests = part_of_the_site("hooks"), part_of_the_site("doctests")


def public_names() -> Iterator[tuple[str, str]]:
    """Yield the page below docs/api and the full name of everything public."""
    for name in lb.__all__:
        value = getattr(lb, name)
        if not isinstance(value, ModuleType):
            yield "index", f"leanbayes.{name}"
            continue
        for inner in getattr(value, "__all__", ()):
            yield name, f"leanbayes.{name}.{inner}"
    for adapter in pkgutil.iter_modules(lb.integrations.__path__):
        if not adapter.name.startswith("_"):
            yield "integrations", f"leanbayes.integrations.{adapter.name}"


def build(target: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the site of a folder strictly into another folder. With ``--quiet`` warnings would not count."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    target = tmp_path_factory.mktemp("site")
    done = build(target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class Page(HTMLParser):
    """The identifiers, pictures and requests of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.images: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        if tag == "img":
            self.images.append(values.get("src") or "")
        if tag in ("script", "img") or (tag == "link" and values.get("rel") == "stylesheet"):
            self.loaded.append(values.get("src") or values.get("href") or "")


@shows("Material for MkDocs", "The site builds without a warning, and describes every public name.")
def test_the_api_pages_describe_every_public_name(site: Path) -> None:
    pages = {path.parent.name: Page(path).ids for path in (site / "api").rglob("index.html")}
    pages["index"] = pages.pop("api")
    wanted = list(public_names())
    assert len(wanted) > 150
    assert [name for page, name in wanted if name not in pages.get(page, set())] == []


def test_every_namespace_has_a_page() -> None:
    spaces = {name for name in lb.__all__ if isinstance(getattr(lb, name), ModuleType)}
    assert {path.stem for path in (ROOT / "docs" / "api").glob("*.md")} == spaces | {"index"}


def test_the_first_page_has_its_picture_and_asks_no_other_server(site: Path) -> None:
    page = Page(site / "index.html")
    (picture,) = [site / name for name in page.images if name.endswith("lesions.png")]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [address for address in page.loaded if "//" in address] == []


def test_the_gallery_shows_every_figure_of_the_records(site: Path) -> None:
    drawn = {path.name for path in (ROOT / "docs" / "results" / "experiments").glob("*.svg")}
    shown = {Path(image).name for image in Page(site / "gallery" / "index.html").images}
    assert shown == drawn


def test_the_site_holds_no_program_of_its_own(site: Path) -> None:
    assert list(site.rglob("*.py")) == []


def test_doctests_are_shown_as_code(site: Path) -> None:
    text = (site / "api" / "index.html").read_text()
    prompts = text.count("&gt;&gt;&gt; ")
    assert prompts > 20
    assert len(re.findall(r'class="gp">&gt;&gt;&gt; ', text)) == prompts


def test_links_to_files_outside_the_pages_lead_to_the_repository() -> None:
    text = "See [`fit`](../src/leanbayes/train/loop.py#L3) and [the guide](guide.md).\n```\n[a](../README.md)\n```\n"
    linked = hooks.outside_links(text, "moments.md", "https://host/owner/name/", ROOT)
    assert "[`fit`](https://host/owner/name/blob/main/src/leanbayes/train/loop.py#L3)" in linked
    assert "[the guide](guide.md)" in linked
    assert "[a](../README.md)" in linked
    assert hooks.outside_links("[all](results)", "costs.md", "", ROOT) == "all"
    assert "See `fit` and [the guide](guide.md)." in hooks.outside_links(text, "moments.md", "", ROOT)


@pytest.mark.parametrize("link", ["[a](../no/such/file.py)", "[a](no-such-page.md)", "[a](https://host/x)", "[a](#b)"])
def test_other_links_stay_so_that_the_strict_build_judges_them(link: str) -> None:
    assert hooks.outside_links(link, "moments.md", "https://host", ROOT) == link


def test_a_pattern_in_the_navigation_takes_the_pages_without_an_entry() -> None:
    nav = [{"Home": "index.md"}, {"Tools": [{"Matrix": "tools/matrix.md"}, "*.md", "tools/*.md", "none*.md"]}]
    pages = ["index.md", "new.md", "tools/a.md", "tools/b.md", "tools/matrix.md"]
    tools = [{"Matrix": "tools/matrix.md"}, "new.md", "tools/a.md", "tools/b.md"]
    assert hooks.expanded(nav, pages) == [{"Home": "index.md"}, {"Tools": tools}]


def test_a_doctest_ends_at_the_next_empty_line() -> None:
    text = "Doubles.\n\n>>> double(2)\n[4]\n\nMore.\n    >>> 1\n    1"
    fenced = "Doubles.\n\n```pycon\n>>> double(2)\n[4]\n```\n\nMore.\n    ```pycon\n    >>> 1\n    1\n    ```"
    assert doctests.fenced(text) == fenced


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[a](no-such-page.md) and [b](../tests/no_such_test.py)", ("no-such-page.md", "no_such_test.py")),
        ("::: leanbayes.no_such_name", ("no_such_name",)),
    ],
)
def test_a_broken_page_fails_the_build(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Home\n\n{text}\n")
    for name in ("src", "docs/site"):
        (tmp_path / name).symlink_to(ROOT / name)
    configuration = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(configuration[: configuration.index("\nnav:")] + "\nnav:\n  - index.md\n"
        + configuration[configuration.index("\nmarkdown_extensions:") :])  # fmt: skip
    done = build(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert [name for name in named if name not in done.stdout + done.stderr] == []


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
QUIET = ("no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "disable-component-update")
SCREENS = {"desk": (1280, 800), "phone": (390, 844)}
SHOWN = {"landing": "", "tutorial": "tutorials/classify/", "gallery": "gallery/"}
OTHERS = (
    "tutorials/",
    "tutorials/lora/",
    "guide/",
    "costs/",
    "moments/",
    "integrations/matrix/",
    "api/",
    "results/claims/",
)


class Silent(SimpleHTTPRequestHandler):
    """Serves the site without a line for each request."""

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address under which this machine serves the built site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no chromium or chrome on the PATH")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=[f"--{flag}" for flag in QUIET])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Any]:
    """Open a page of the site; at the end, the console must be empty and nobody else have been asked for anything."""
    contexts: list[Any] = []
    troubles: list[str] = []

    def open_page(path: str, screen: str) -> Any:
        width, height = SCREENS[screen]
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("response", lambda answer: troubles.append(answer.url) if answer.status >= 400 else None)
        page.on(
            "request", lambda asked: None if asked.url.startswith((address, "data:")) else troubles.append(asked.url)
        )
        page.goto(address + path, wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def assert_no_sideways_scrolling(page: Any, screen: str) -> None:
    """The page is as wide as the screen, and what is wider scrolls inside a frame of its own."""
    width = SCREENS[screen][0]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = page.evaluate(
        """width => [...document.querySelectorAll('.md-content *')].filter(e => {
            if (e.getBoundingClientRect().right <= width + 1) return false
            for (let frame = e.parentElement; frame; frame = frame.parentElement)
                if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(frame).overflowX)) return false
            return true
        }).map(e => e.outerHTML.slice(0, 80))""",
        width,
    )
    assert beyond == []


@shows("Material for MkDocs", "The pages of the site fit the screens of a desk and of a phone, in Chromium.")
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", SHOWN)
def test_the_screens_of_a_desk_and_of_a_phone_show_a_whole_page(
    visit: Any, name: str, screen: str, tmp_path: Path
) -> None:
    page = visit(SHOWN[name], screen)
    assert_no_sideways_scrolling(page, screen)
    page.locator(".md-content img").evaluate_all("images => images.forEach(image => { image.loading = 'eager' })")
    loaded = "[...document.querySelectorAll('.md-content img')].every(image => image.complete && image.naturalWidth)"
    page.wait_for_function(loaded, timeout=120_000)
    sizes = page.locator(".md-content img").evaluate_all("all => all.map(i => [i.naturalWidth, i.clientWidth])")
    assert sizes
    assert all(natural > 0 and shown > 150 for natural, shown in sizes)
    assert_no_sideways_scrolling(page, screen)
    folder = Path(os.environ.get("SITE_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    for kind, whole in (("", False), ("-whole", True)):
        path = folder / f"{name}-{screen}{kind}.png"
        page.screenshot(path=path, full_page=whole)
        assert path.stat().st_size > 10_000


@pytest.mark.parametrize("path", OTHERS)
def test_wide_pages_fit_a_phone(visit: Any, path: str) -> None:
    assert_no_sideways_scrolling(visit(path, "phone"), "phone")
