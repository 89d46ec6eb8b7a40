"""The page: what was compared, the tables, the figures; one file that fetches nothing."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

from leanbayes._files import write_bytes
from leanbayes.lab.report.read import read_comparison
from leanbayes.lab.report.render import Html, element, inline_svg, join
from leanbayes.lab.report.section import Section
from leanbayes.lab.report.sections import headline_metric, sections
from leanbayes.lab.report.table import COST, Cell, Row, comparison_table, describe

__all__ = ["write_report"]


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write one HTML page about the comparison in ``folder``, whole or not at all, and say where it is.

    Args:
        folder: holds ``results.json`` and ``arrays.safetensors``; an array that is missing leaves its figure out.
        out: the page; ``report.html`` in the folder if not given.
    """
    folder = Path(folder)
    out = folder / "report.html" if out is None else Path(out)
    results, arrays = read_comparison(folder)
    rows = comparison_table(results)
    # Half of a surrogate pair is legal in JSON and no text: it becomes a question mark.
    page = _page(results, rows, sections(results, rows, arrays)).encode("utf-8", "replace")
    write_bytes(out, page)
    return out


def _page(results: Mapping[str, Any], rows: Sequence[Row], figures: Sequence[Section]) -> str:
    here = resources.files("leanbayes.lab.report")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # Nothing may be fetched, and no script but this one may run, whatever a class or an error is called.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    task = str(results["task"].get("name", "an unnamed task"))
    title = f"{len(rows)} method{'s' * (len(rows) != 1)} compared on {task}"
    ids = count(1)
    parts = [("about", "What was compared", _about(results, rows)), *_tables(results, rows)]
    parts += [(figure.name, figure.title, _figure(figure, ids)) for figure in figures]
    links = (element("li", element("a", heading, href=f"#{name}")) for name, heading, _ in parts)
    head = join(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(style)),
    )
    body = join(
        element("header", element("h1", title), *_lead(results, rows)),
        element("nav", element("ul", *links), aria_label="Contents"),
        element("main", *(element("section", element("h2", heading), body, id=name) for name, heading, body in parts)),
        element("footer", "Arrays and pictures are those of each method's first seed. Written by LeanBayes."),
        element("script", Html(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', element('head', head), element('body', body), lang='en')}\n"


def _lead(results: Mapping[str, Any], rows: Sequence[Row]) -> list[Html]:
    """The answer in two sentences: the best, and the cheapest to train."""
    metric = headline_metric(rows)
    way = results.get("better", {}).get(metric)
    ranked = [row for row in rows if metric and row.cells[metric].best]
    if metric is None or not ranked or way not in ("low", "high"):
        return []
    title, _ = describe(metric)
    seconds = COST + "train_seconds"

    def told(row: Row) -> str:
        time = row.cells.get(seconds)
        return f"{title} {row.cells[metric].text}" + (f", trained in {time.text} s" if time and time.mean else "")

    best = ranked[0]
    sentences = [join("Best ", title, " on average: ", element("strong", best.method), f" ({told(best)}).")]
    timed = [(row.cells[seconds].mean, row) for row in rows if seconds in row.cells]
    known = [(mean, row) for mean, row in timed if mean is not None and math.isfinite(mean)]
    if known:
        fastest = min(known, key=lambda pair: pair[0])[1]
        if fastest is not best:
            sentences.append(join("Fastest to train: ", element("strong", fastest.method), f" ({told(fastest)})."))
    return [element("p", sentence, class_="lead") for sentence in sentences]


def _about(results: Mapping[str, Any], rows: Sequence[Row]) -> Html:
    task, kinds = results["task"], {"labels": "several labels at once", "pixels": "segmentation"}
    kind = kinds.get(str(task.get("kind")), task.get("kind"))
    classes = [str(name) for name in task.get("classes", [])]
    few = ", ".join(classes[:12]) + (", …" if len(classes) > 12 else "")
    sizes = [f"{task[name]:,} {name}" for name in ("train", "validation", "test") if isinstance(task.get(name), int)]
    shifted = [f"{name} ({size})" for name, size in task.get("shifted", {}).items()]
    seeds = list(dict.fromkeys(str(seed) for row in rows for seed in row.seeds))
    machine = [f"{key.replace('_', ' ')}: {value}" for key, value in results.get("machine", {}).items()]
    budget = [
        f"{key.replace('_', ' ')}: {value}" for key, value in results.get("budget", {}).items() if value is not None
    ]
    command = results.get("command")
    facts: list[tuple[str, object]] = [
        ("Task", f"{task.get('name', '')}" + (f" ({kind})" if kind else "")),
        ("Examples", ", ".join(sizes)),
        ("Classes", f"{len(classes)}: {few}" if classes else ""),
        ("Unfamiliar data", ", ".join(shifted)),
        ("Seeds", ", ".join(seeds)),
        ("Budget", "; ".join(budget)),
        ("Draws per prediction", results.get("samples") or ""),
        ("Command", element("code", str(command)) if command else ""),
        ("Machine", "; ".join(machine)),
        ("Commit", element("code", str(results["commit"])) if results.get("commit") else ""),
        ("Date", results.get("date") or ""),
    ]
    listed = (
        join(element("dt", key), element("dd", value if isinstance(value, str) else str(value)))
        for key, value in facts
        if value
    )
    return join(element("dl", *listed, class_="about"), _recipes(results["methods"]))


def _recipes(methods: Sequence[Mapping[str, Any]]) -> Html:
    lines = (
        join(
            element("dt", method["name"]),
            element("dd", ", ".join(f"{key} = {value}" for key, value in method["recipe"].items())),
        )
        for method in methods
        if method.get("recipe")
    )
    content = join(*lines)
    if not content:
        return content
    return element("details", element("summary", "Settings of each method"), element("dl", content, class_="about"))


def _tables(results: Mapping[str, Any], rows: Sequence[Row]) -> list[tuple[str, str, Html]]:
    """Quality; what is split by data set, class or level (``/`` or ``@`` in its name); cost: each fits a screen."""
    better = results.get("better", {})
    names = [name for name in rows[0].cells if any(row.cells[name].seeds for row in rows)] if rows else []
    cost = [name for name in names if name.startswith(COST)]
    detail = [name for name in names if name not in cost and ("/" in name or "@" in name)]
    main = [name for name in names if name not in cost and name not in detail]
    for columns in (main, detail):
        columns.sort(key=lambda name: better.get(name) is None)  # what can be good or bad comes first
    several = any(len(row.seeds) > 1 for row in rows)
    how = "The best mean of each column is marked. " if len(rows) > 1 else ""
    how += (
        "± is the 95 % interval of the mean over seeds: methods whose intervals overlap may well be equal. " * several
    )
    how += "Press a column's title to sort by it."
    tested = _tests(results.get("tests", {}), headline_metric(rows))
    failed = _failed(rows)
    parts = []
    if main or failed:
        table = _table(rows, main, better) if main else Html("")
        parts.append(("table", "Quality", join(element("p", how, class_="how"), table, failed, tested)))
    if detail:
        parts.append(("detail", "Quality in detail", join(_table(rows, detail, better))))
    if cost:
        words = "What each method takes in memory, time and arithmetic."
        parts.append(("prices", "Cost", join(element("p", words, class_="how"), _table(rows, cost, better))))
    return parts


def _table(rows: Sequence[Row], names: Sequence[str], better: Mapping[str, str | None]) -> Html:
    def head(title: str, way: str | None) -> Html:
        arrow = {"high": " ↑", "low": " ↓"}.get(way or "", "")
        label = {"high": f"{title}, higher is better", "low": f"{title}, lower is better"}.get(way or "", title)
        button = element("button", title, element("span", arrow, class_="way"), type="button", aria_label=label)
        first = "descending" if way == "high" else "ascending"
        return element("th", button, scope="col", aria_sort="none", data_first=first)

    heads = [head("Method", None), *(head(describe(name)[0], better.get(name.removeprefix(COST))) for name in names)]
    shown = [row for row in rows if any(row.cells[name].seeds for name in names)]
    lines = [
        element(
            "tr",
            element("th", row.method, scope="row", data_value=row.method),
            *(_cell(row.cells[name], len(row.seeds)) for name in names),
        )
        for row in shown
    ]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *lines), class_="sortable")
    box = element("div", table, class_="scroll", role="region", tabindex="0", aria_label="Table, scrolls sideways")
    meanings = {title: meaning for title, meaning in map(describe, names) if meaning}
    words = (join(element("dt", key), element("dd", f": {value}")) for key, value in meanings.items())
    explained = element("summary", "What the columns mean"), element("dl", *words, class_="words")
    return join(box, element("details", *explained) if meanings else Html(""))


def _cell(cell: Cell, seeds: int) -> Html:
    mean, _, half = cell.text.partition(" ± ")
    fewer = f"{cell.seeds} of {seeds} seeds" if 0 < cell.seeds < seeds else None
    value = "" if cell.mean is None or not math.isfinite(cell.mean) else repr(cell.mean)
    spread = join(" ", element("small", f"± {half}")) if half else Html("")
    marked = "best" if cell.best else None
    return element("td", element("b", mean), spread, class_=marked, data_value=value, title=fewer)


def _failed(rows: Sequence[Row]) -> Html:
    lines = [element("li", element("strong", row.method), f": {row.error}") for row in rows if row.error]
    if not lines:
        return Html("")
    return element("div", element("h3", "Failed"), element("ul", *lines), class_="failed")


def _tests(tests: Mapping[str, Any], metric: str | None) -> Html:
    """One-way ANOVA of every metric, and the pairs for the headline metric, as they were computed."""
    lines = [(name, "all methods (ANOVA)", found) for name, found in tests.get("anova", {}).items()]
    lines += [(metric, pair, found) for pair, found in tests.get("paired", {}).get(metric, {}).items()]
    body = []
    for name, what, found in lines:
        p = (found.get("corrected") or found.get("p")) if isinstance(found, Mapping) else None
        if isinstance(p, int | float):
            title = element("th", describe(name)[0], scope="row")
            body.append(element("tr", title, element("td", what), element("td", f"{p:.2g}")))
    if not body:
        return Html("")
    heads = (element("th", name, scope="col") for name in ("Metric", "Compared", "p"))
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *body), class_="plain")
    how = "p is how often a difference this large would appear by chance alone if the methods were equal; "
    how += "for pairs it is corrected for their number (Holm) where the comparison did so."
    box = element("div", table, class_="scroll", role="region", tabindex="0", aria_label="Tests, scrolls sideways")
    words = "Are the differences more than chance?"
    return element("details", element("summary", words), element("p", how, class_="how"), box)


def _figure(section: Section, ids: "count[int]") -> Html:
    panels = []
    for panel in section.panels:
        body = panel.body
        if not isinstance(body, Html):
            body = inline_svg(body, f"f{next(ids)}", panel.alternative)
        title = element("h3", panel.title) if panel.title else Html("")
        note = element("p", panel.note) if panel.note else Html("")
        panels.append(element("div", title, note, body, class_="panel"))
    single = "single" if len(panels) == 1 else ""
    kind = "pictures" if all(isinstance(panel.body, Html) for panel in section.panels) else single
    caption = element("figcaption", section.caption)
    return element("figure", caption, section.legend or "", element("div", *panels, class_=f"panels {kind}".strip()))
