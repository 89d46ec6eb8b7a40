"""The pages in Markdown name only what exists: every name of the package resolves, and every relative link has a file.

CHANGELOG.md is left out of the test of names, because it also names what earlier versions had.
"""

import importlib
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "papers/*.md", "benchmarks/*.md", "examples/*.md")
    for path in ROOT.glob(pattern)
)
DOTTED = re.compile(r"(?<![\w./@-])(?:lb|leanbayes)(?:\.[A-Za-z_]\w*)+(?![\w/*]|\.\w)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILES = (".md", ".py", ".toml", ".yaml", ".json", ".html", ".safetensors")


@cache
def entry_point_groups() -> frozenset[str]:
    """The groups under which other packages add members, as the catalogues of the sources name them."""
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    return frozenset(re.findall(r"group=\"(leanbayes\.\w+)\"", text))


def resolves(dotted: str) -> bool:
    """Whether the name is a module, or an attribute of one."""
    words = dotted.split(".")
    words[0] = "leanbayes"
    value: object = importlib.import_module("leanbayes")
    for length, word in enumerate(words[1:], start=2):
        if hasattr(value, word):
            value = getattr(value, word)
            continue
        try:
            value = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            return False
    return True


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def test_there_are_pages() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/references.md"} <= set(PAGES)
    assert "leanbayes.metrics" in entry_point_groups()


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_every_name_of_the_package_resolves(page: str) -> None:
    names = set(DOTTED.findall((ROOT / page).read_text())) - entry_point_groups()
    assert sorted(name for name in names if not name.endswith(FILES) and not resolves(name)) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    dead = []
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / unquote(path) if path else ROOT / page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize(
    ("name", "exists"),
    [("lb.fit", True), ("leanbayes.lab.data.READERS", True), ("lb.Radial", False), ("lb.lab.no", False)],
)
def test_a_name_resolves_only_if_it_exists(name: str, exists: bool) -> None:
    assert resolves(name) is exists


def test_names_are_recognised_in_prose_and_code() -> None:
    text = "Call `lb.fit(bnn)`, see leanbayes.metrics. Or `lb.propagate.Moments(rank=8)`; not www.leanbayes.org/x.y."
    assert DOTTED.findall(text) == ["lb.fit", "leanbayes.metrics", "lb.propagate.Moments"]
