"""The page of a comparison: what was compared, the tables and the figures, in one file that fetches nothing.

This module prepares plain values. The template ``page.html`` lays them out.
"""

import base64
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from markupsafe import Markup

from leanbayes._files import write_bytes
from leanbayes.lab.report.guarantee import equal_coverage_metric, ranked
from leanbayes.lab.report.read import read_comparison
from leanbayes.lab.report.render import fill_template, inline_svg, package_text
from leanbayes.lab.report.section import Section
from leanbayes.lab.report.sections import headline_metric, sections
from leanbayes.lab.report.table import COST, EQUIVALENT, Cell, Row, comparison_table, describe, direction

__all__ = ["write_report"]

_DIRECTIONS = {"high": "higher is better", "low": "lower is better", "": ""}
_KINDS = {
    "classes": "classification",
    "labels": "classification with several labels at once",
    "pixels": "segmentation",
    "regression": "regression",
}
_OVERALL = ("conformal_coverage/", "conformal_risk/")  # the ends of intervals over all inputs
_MOST_CLASSES = 12  # a longer list of class names is cut


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write one HTML page about the comparison in a folder, whole or not at all.

    Args:
        folder: the folder that ``leanbayes compare`` filled. A figure whose arrays are missing is left out.
        out: the file to write; by default ``report.html`` in the folder.

    Returns:
        The path of the page.
    """
    folder = Path(folder)
    out = folder / "report.html" if out is None else Path(out)
    results, arrays = read_comparison(folder)
    rows = comparison_table(results)
    page = fill_template("page.html", _context(results, rows, sections(results, rows, arrays)))
    # JSON may hold half of a surrogate pair, which is no text; it becomes a question mark.
    write_bytes(out, page.encode("utf-8", "replace"))
    return out


def _context(results: Mapping[str, Any], rows: Sequence[Row], figures: Sequence[Section]) -> dict[str, Any]:
    """Everything that the template shows."""
    style, script = package_text("page.css"), package_text("page.js")
    # The policy forbids the browser to fetch anything and to run any script but this one.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    tables = _tables(results, rows)
    contents = [{"name": figure.name, "title": figure.title} for figure in figures if figure.first]
    contents += [{"name": "about", "title": "What was compared"}]
    contents += [{"name": table.name, "title": table.title} for table in tables]
    contents += [{"name": figure.name, "title": figure.title} for figure in figures if not figure.first]
    return {
        "title": f"{len(rows)} method{'' if len(rows) == 1 else 's'} compared on {_task_name(results)}",
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "style": Markup(style),
        "script": Markup(script),
        "recommendation": (results.get("recommendation") or {}).get("sentences", []),
        "lead": _lead(results, rows),
        "contents": contents,
        "about": _about(results, rows),
        "methods": _methods(results["methods"]),
        "tables": tables,
        "figures": _figures(figures),
    }


def _task_name(results: Mapping[str, Any]) -> str:
    return str(results["task"].get("name", "an unnamed task"))


# ---------------------------------------------------------------- the answer in two sentences


@dataclass(frozen=True)
class _Standing:
    """A method, its value of the headline metric, and how long its training took (empty if that is not known)."""

    method: str
    value: str
    seconds: str


def _lead(results: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any] | None:
    """Which method is the best and which the fastest to train; None where no method can be called the best."""
    metric = headline_metric(rows)
    best = next((row for row in rows if metric and row.cells[metric].best), None)
    if metric is None or best is None:
        return None
    title, meaning = describe(metric)
    fastest = _fastest(rows)

    def standing(row: Row) -> _Standing:
        seconds = row.cells.get(f"{COST}train_seconds")
        return _Standing(row.method, row.cells[metric].text, seconds.text if seconds and seconds.mean else "")

    return {
        "metric": title,
        "meaning": meaning,
        "direction": _DIRECTIONS[direction(metric, results) or ""],
        "average": " on average over seeds" if len(best.seeds) > 1 else "",
        "best": standing(best),
        "fastest": None if fastest is None or fastest is best else standing(fastest),
    }


def _fastest(rows: Sequence[Row]) -> Row | None:
    timed = []
    for row in rows:
        seconds = row.cells.get(f"{COST}train_seconds")
        if seconds is not None and seconds.mean is not None and math.isfinite(seconds.mean):
            timed.append((seconds.mean, row))
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


# ---------------------------------------------------------------- what was compared


@dataclass(frozen=True)
class _Fact:
    """One line about the comparison; ``note`` explains the label to a reader who does not know it."""

    label: str
    text: str
    note: str = ""
    code: bool = False


def _about(results: Mapping[str, Any], rows: Sequence[Row]) -> list[_Fact]:
    task = results["task"]
    kind = _KINDS.get(str(task.get("kind")), task.get("kind"))
    classes = [str(name) for name in task.get("classes", [])]
    listed = ", ".join(classes[:_MOST_CLASSES]) + (", …" if len(classes) > _MOST_CLASSES else "")
    words = {"train": "for training", "validation": "for validation", "test": "for the test"}
    sizes = [f"{task[name]:,} {purpose}" for name, purpose in words.items() if isinstance(task.get(name), int)]
    unfamiliar = [f"{name} ({size})" for name, size in task.get("shifted", {}).items()]
    seeds = list(dict.fromkeys(str(seed) for row in rows for seed in row.seeds))
    changed = "The code had changes that were not committed." if results.get("changed_since_commit") else ""
    facts = [
        _Fact("Task", f"{task.get('name', '')}" + (f" ({kind})" if kind else "")),
        _Fact("Examples", ", ".join(sizes)),
        _Fact("Classes", f"{len(classes)}: {listed}" if classes else ""),
        _Fact("Unfamiliar data", ", ".join(unfamiliar), "Inputs unlike those in training, which should raise doubt."),
        _Fact("Seeds", ", ".join(seeds), "Each method is trained once for each seed of the random numbers."),
        _Fact("Training budget", _listed(results.get("budget", {})), "The same for every method."),
        _Fact(
            "Draws per prediction",
            str(results.get("samples") or ""),
            "A method with random weights draws them this often for each input, and its prediction is the average.",
        ),
        _Fact("Command", str(results.get("command") or ""), code=True),
        _Fact("Machine", _listed(results.get("machine", {}))),
        _Fact("Commit of LeanBayes", str(results.get("commit") or ""), changed, code=True),
        _Fact("Date", str(results.get("date") or "")),
    ]
    return [fact for fact in facts if fact.text]


def _listed(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in values.items() if value is not None)


def _methods(methods: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    described = (
        {
            "name": method["name"],
            "summary": method.get("summary") or "",
            "settings": ", ".join(f"{name} = {value}" for name, value in method.get("recipe", {}).items()),
        }
        for method in methods
    )
    return [method for method in described if method["summary"] or method["settings"]]


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class _Column:
    """The head of a column; ``first_order`` is how the first press on it sorts, with the better end on top."""

    title: str
    meaning: str = ""
    direction: str = ""
    arrow: str = ""
    first_order: str = "ascending"

    @property
    def label(self) -> str:
        return f"{self.title}, {self.direction}" if self.direction else self.title


@dataclass(frozen=True)
class _TableCell:
    mean: str
    half: str
    value: str
    best: bool
    note: str


@dataclass(frozen=True)
class _TableRow:
    method: str
    cells: Sequence[_TableCell]


@dataclass(frozen=True)
class _Table:
    name: str
    title: str
    introduction: str
    columns: Sequence[_Column]
    rows: Sequence[_TableRow]
    failed: Sequence[Mapping[str, str]] = ()
    tests: Sequence[Mapping[str, str]] = ()


def _tables(results: Mapping[str, Any], rows: Sequence[Row]) -> list[_Table]:
    """Quality, sets at equal coverage, quality in detail and cost, so that each table fits a screen.

    A detail is a metric of one data set, class or level, which has ``/`` or ``@`` in its name.
    """
    names = [name for name in rows[0].cells if any(row.cells[name].seeds for row in rows)] if rows else []
    costs = [name for name in names if name.startswith(COST)]
    metrics = sorted((name for name in names if name not in costs), key=lambda name: direction(name, results) is None)
    ranking = equal_coverage_metric(rows)
    guarantee = [name for name in names if name.startswith("conformal_")]
    parts = [name for name in guarantee if "/" in name and not name.startswith(_OVERALL)]
    details = [name for name in metrics if ("/" in name or "@" in name) and name not in guarantee]
    main = [name for name in metrics if name not in (*details, *guarantee)]
    failed = [{"name": row.method, "error": row.error} for row in rows if row.error]
    tests = _tests(results.get("tests", {}), headline_metric(rows))
    tables = []
    if main or failed:
        quality = _body(results, rows, main)
        advice = " ".join(filter(None, (_reading_advice(rows), _why_no_equivalent(results))))
        tables.append(_Table("table", "Quality", advice, *quality, failed, tests))
    if guarantee:
        columns = [*filter(None, (ranking,)), *(name for name in guarantee if name not in parts)]
        words = _guarantee_words(ranking)
        title = "Masks with a guarantee" if "conformal_risk" in guarantee else "Sets and intervals with a guarantee"
        tables.append(_Table("guarantee", title, words, *_body(results, ranked(rows), columns)))
    if parts:
        words = (
            "The coverage, or the risk, of single classes, groups and sizes. A guarantee over all inputs promises none "
            "of them."
        )
        tables.append(_Table("parts", "The guarantee in detail", words, *_body(results, rows, parts)))
    if details:
        words = "Metrics of single data sets, classes and levels of confidence, and of how well doubt detects errors."
        tables.append(_Table("detail", "Quality in detail", words, *_body(results, rows, details)))
    if costs:
        words = "What each method needs in memory, time and arithmetic."
        tables.append(_Table("prices", "Cost", words, *_body(results, rows, costs)))
    return tables


def _guarantee_words(ranking: str | None) -> str:
    """How to read the table of guarantees, and by which column its rows are ranked."""
    words = "Conformal methods promise how often their answers hold the truth, and the coverage shows what they kept."
    if ranking == "marked_at_10":
        words = "Conformal methods promise how much their masks lose at most, and the risk shows what they kept."
        return (
            f"Methods are ranked by the first column, {describe(ranking)[0]}: what they must mark to miss equally "
            f"little. {words}"
        )
    if ranking is None:
        return words
    return (
        f"Methods are ranked by the first column, {describe(ranking)[0]}: what they need to hold the truth equally "
        f"often. {words}"
    )


def _reading_advice(rows: Sequence[Row]) -> str:
    sentences = []
    if len(rows) > 1:
        sentences.append("The best mean of each column is marked.")
    if any(len(row.seeds) > 1 for row in rows):
        sentences.append(
            "The number after ± is half of the 95 % interval of the mean over seeds. "
            "Methods whose intervals overlap may well be equally good."
        )
    elif len(rows) > 1:
        sentences.append("Each method was trained with one seed only, so small differences may be chance.")
    sentences.append("Press the title of a column to sort by it.")
    return " ".join(sentences)


def _why_no_equivalent(results: Mapping[str, Any]) -> str:
    """Why the table does not say how many plain networks each method is worth; empty if it does."""
    reason = (results.get(EQUIVALENT) or {}).get("reason")
    return f"How many plain networks each method is worth is not known. {reason}" if reason else ""


def _body(
    results: Mapping[str, Any], rows: Sequence[Row], names: Sequence[str]
) -> tuple[list[_Column], list[_TableRow]]:
    if not names:
        return [], []
    columns = [_Column("Method"), *(_column(name, direction(name, results) or "") for name in names)]
    measured = [row for row in rows if any(row.cells[name].seeds for name in names)]
    return columns, [
        _TableRow(row.method, [_table_cell(row.cells[name], len(row.seeds)) for name in names]) for row in measured
    ]


def _column(name: str, better: str) -> _Column:
    title, meaning = describe(name)
    arrow = {"high": " ↑", "low": " ↓"}.get(better, "")
    return _Column(title, meaning, _DIRECTIONS[better], arrow, "descending" if better == "high" else "ascending")


def _table_cell(cell: Cell, seeds: int) -> _TableCell:
    mean, _, half = cell.text.partition(" ± ")
    value = "" if cell.mean is None or not math.isfinite(cell.mean) else repr(cell.mean)
    note = f"The mean over {cell.seeds} of {seeds} seeds; the others have no value." if 0 < cell.seeds < seeds else ""
    return _TableCell(mean, half, value, cell.best, note)


def _tests(tests: Mapping[str, Any], metric: str | None) -> list[dict[str, str]]:
    """The analysis of variance of every metric, and the paired tests of the headline metric."""
    lines = [(name, "all methods", test) for name, test in tests.get("anova", {}).items()]
    lines += [(metric, pair, test) for pair, test in tests.get("paired", {}).get(metric, {}).items()]
    shown = []
    for name, compared, test in lines:
        p = (test.get("corrected") or test.get("p")) if isinstance(test, Mapping) else None
        if isinstance(p, int | float):
            shown.append({"metric": describe(name)[0], "compared": compared, "p": f"{p:.2g}"})
    return shown


# ---------------------------------------------------------------- figures


def _figures(figures: Sequence[Section]) -> list[dict[str, Any]]:
    numbers = count(1)
    return [
        {
            "name": section.name,
            "title": section.title,
            "caption": section.caption,
            "legend": section.legend,
            "ramps": section.ramps,
            "first": section.first,
            "layout": _layout(section),
            "panels": list(_panels(section, numbers)),
        }
        for section in figures
    ]


def _layout(section: Section) -> str:
    """The class of the style sheet: pictures need wider panels than plots, and a single plot stays small."""
    if any(panel.portraits for panel in section.panels):
        return "wide"
    if all(panel.plot is None for panel in section.panels):
        return "pictures"
    return "single" if len(section.panels) == 1 else ""


def _panels(section: Section, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    for panel in section.panels:
        svg = None if panel.plot is None else inline_svg(panel.plot, f"f{next(numbers)}", panel.alternative)
        yield {
            "title": panel.title,
            "note": panel.note,
            "svg": svg,
            "strips": panel.strips,
            "overlays": panel.overlays,
            "portraits": panel.portraits,
        }
