"""What MkDocs does not do by itself: patterns in the navigation, links into the repository, and pages made from files.

MkDocs calls `on_config` once, `on_page_markdown` for each page before it renders the page, and `on_post_build` at the
end. A warning fails the strict build.
"""

import inspect
import json
import logging
import pkgutil
import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

_LOG = logging.getLogger("mkdocs.hooks.names")
_LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"(^ *```.*?^ *```\s*?$)", re.DOTALL | re.MULTILINE)
_FIGURES = "<!-- the figures of docs/results/experiments -->"
_ADAPTERS = "<!-- the adapters of leanbayes.integrations -->"


def on_config(config: Any) -> Any:
    """Put the pages that match a pattern, such as ``integrations/*.md``, in the place of the pattern."""
    pages = sorted(path.relative_to(config["docs_dir"]).as_posix() for path in Path(config["docs_dir"]).rglob("*.md"))
    config["nav"] = expanded(config["nav"], pages)
    return config


def expanded(nav: list[Any], pages: list[str]) -> list[Any]:
    """Return the navigation with every pattern replaced by the pages that it matches and that have no entry yet."""
    named = set(_named(nav))
    whole: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            whole.append({title: _section(value, pages, named) for title, value in entry.items()})
        else:
            whole += _matching(entry, pages, named)
    return whole


def _section(value: Any, pages: list[str], named: set[str]) -> Any:
    if not isinstance(value, list):
        return value
    return [item for entry in value for item in (_matching(entry, pages, named) if isinstance(entry, str) else [entry])]


def _matching(entry: str, pages: list[str], named: set[str]) -> list[str]:
    if "*" not in entry:
        return [entry]
    depth = entry.count("/")  # a star stays within a folder
    return [page for page in pages if fnmatch(page, entry) and page.count("/") == depth and page not in named]


def _named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [name for part in (nav.values() if isinstance(nav, dict) else nav) for name in _named(part)]


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the text of a page as the site needs it."""
    if _FIGURES in markdown:
        markdown = markdown.replace(_FIGURES, gallery(Path(config["docs_dir"]) / "results" / "experiments"))
    if _ADAPTERS in markdown:
        markdown = markdown.replace(_ADAPTERS, adapters(Path(config["docs_dir"]).parent / "src/leanbayes/integrations"))
    return outside_links(markdown, page.file.src_uri, config["repo_url"] or "", Path(config["docs_dir"]).parent)


def outside_links(markdown: str, page: str, repository: str, root: Path) -> str:
    """Turn links to folders and to files outside docs into links to the repository, or into text without an address.

    A link to a file that does not exist is left as it is, so that the strict build fails.

    Args:
        markdown: the text of the page.
        page: the path of the page below docs.
        repository: the address of the repository, or nothing.
        root: the folder of the repository on this machine.
    """

    def replace(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        path, _, anchor = target.partition("#")
        inside = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
        page_of_the_site = inside.startswith(("docs/", "../")) and not (root / inside).is_dir()
        if "://" in target or not path or page_of_the_site or not (root / inside).exists():
            return match[0]
        if not repository:
            return text
        address = f"{repository.rstrip('/')}/blob/main/{inside}"
        return f"[{text}]({address}{'#' + anchor if anchor else ''})"

    parts = _FENCE.split(markdown)  # every second part is a block of code, which stays as it is
    return "".join(part if index % 2 else _LINK.sub(replace, part) for index, part in enumerate(parts))


def gallery(folder: Path) -> str:
    """Return a section for each record that has figures, with its title, what it scaled down, and the figures."""
    sections = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if not record.get("figures"):
            continue
        figures = "\n\n".join(
            f'<figure markdown="span">\n![{record["name"]}: {name}](results/experiments/{file}){{ loading=lazy }}\n'
            f"<figcaption>{name}</figcaption>\n</figure>"
            for name, file in record["figures"].items()
        )
        sections.append(
            f"## {record['title']}\n\n"
            f"The command is `{record['command']}`, and the record is "
            f"[{path.name}](results/experiments/{path.name}).\n\n"
            f'<div class="gallery" markdown>\n\n{figures}\n\n</div>\n'
        )
    return "\n".join(sections)


def adapters(folder: Path) -> str:
    """Return what makes mkdocstrings describe each adapter in the folder of `leanbayes.integrations`."""
    names = sorted(path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    return "\n\n".join(f"::: leanbayes.integrations.{name}" for name in names if not name.startswith("_"))


def on_post_build(config: Any) -> None:
    """Warn of every public name that the pages of the API do not describe, or that has no docstring."""
    folder = Path(config["site_dir"]) / "api"
    if not folder.is_dir():
        return  # a site without an API, as in a test
    import leanbayes

    pages = {path.parent.name: path.read_text() for path in folder.rglob("index.html")}
    for page, name, value in public_names(leanbayes):
        if f'id="{name}"' not in pages.get(page, ""):
            _LOG.warning("%s is public, and its page %s of the API does not describe it", name, page)
        if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value):
            _LOG.warning("%s is public and has no docstring", name)


def public_names(package: ModuleType) -> Iterator[tuple[str, str, Any]]:
    """Yield the page of the API, the full name and the value of everything public."""
    for name in package.__all__:
        value = getattr(package, name)
        if not isinstance(value, ModuleType):
            yield "api", f"{package.__name__}.{name}", value
            continue
        for inner in getattr(value, "__all__", ()):
            yield name, f"{package.__name__}.{name}.{inner}", getattr(value, inner)
    for adapter in pkgutil.iter_modules(package.integrations.__path__):
        if not adapter.name.startswith("_"):
            yield "integrations", f"{package.__name__}.integrations.{adapter.name}", None
