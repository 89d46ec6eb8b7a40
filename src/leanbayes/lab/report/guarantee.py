"""How methods rank by the size of their sets at equal coverage or risk, and the figures of conformal prediction."""

import math
from collections.abc import Sequence

import numpy as np

from leanbayes.conformal import clopper_pearson
from leanbayes.lab.report import plots
from leanbayes.lab.report.read import Arrays
from leanbayes.lab.report.section import Panel, Section
from leanbayes.lab.report.table import Row, describe

__all__ = ["coverage", "equal_coverage_metric", "ranked", "ranking_line", "risk", "sizes"]

_EQUAL_COVERAGE = ("size_at_90", "width_at_90", "marked_at_10")
_MOST_PARTS = 20  # of the classes, groups or sizes of one method that are drawn: those with the lowest coverage
_LONGEST_NAME = 27  # characters that fit beside a mark
_QUARTERS = ("narrowest quarter", "second quarter", "third quarter", "widest quarter")


def equal_coverage_metric(rows: Sequence[Row]) -> str | None:
    """Return the column by which methods are ranked: the size of sets, intervals or masks that hold 90 %."""
    return next((name for name in _EQUAL_COVERAGE if any(_size(row, name) is not None for row in rows)), None)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the methods with the smallest sets at equal coverage first, and those without a size last."""
    metric = equal_coverage_metric(rows)
    sized = [(math.inf if metric is None or (size := _size(row, metric)) is None else size, row) for row in rows]
    return [row for _, row in sorted(sized, key=lambda pair: pair[0])]


def ranking_line(rows: Sequence[Row]) -> str:
    """Return the ranking as one sentence; empty if no method has a size."""
    metric = equal_coverage_metric(rows)
    if metric is None:
        return ""
    places = [f"{row.method} ({row.cells[metric].text})" for row in ranked(rows) if _size(row, metric) is not None]
    return f"Ranked by {describe(metric)[0].lower()}, the smallest first: {', '.join(places)}."


def sizes(rows: Sequence[Row]) -> Section | None:
    """Draw the mean size of the sets of each method at equal coverage; None where there are fewer than two methods."""
    metric = equal_coverage_metric(rows)
    shown = [] if metric is None else [row for row in ranked(rows) if _size(row, metric) is not None]
    if metric is None or len(shown) < 2:
        return None
    cells = [row.cells[metric] for row in shown]
    middles = np.array([cell.mean for cell in cells], dtype=np.float64)
    halves = np.array([cell.half or 0.0 for cell in cells], dtype=np.float64)
    title, meaning = describe(metric)
    bars = " Bars are 95 % intervals over seeds." if halves.any() else ""
    plot = plots.ranges(
        [_shortened(row.method) for row in shown], middles - halves, middles, middles + halves, title, math.nan
    )
    values = "; ".join(f"{row.method}: {row.cells[metric].text}" for row in shown)
    return Section(
        "sizes",
        "How much is needed to be right equally often?",
        f"{meaning} The best method is on top.{bars} The threshold is that of the test answers, so this ranks methods "
        "and promises nothing about new data.",
        (Panel(plot=plot, alternative=f"{title}. {values}"),),
    )


def coverage(names: Sequence[str], classes: Sequence[str], groups: Sequence[str], arrays: Arrays) -> Section:
    """Draw the coverage of each conformal method: of all examples, and by class, group and size."""
    panels = []
    for name in names:
        level = arrays.take(f"{name}/conformal", level=(1,))
        parts = _parts(name, classes, groups, arrays)
        if level is None or not parts:
            continue
        labels, shares = [label for label, _, _ in parts], [covered / count for _, covered, count in parts]
        ends = np.array([clopper_pearson(covered, count) for _, covered, count in parts])
        promised = float(level[0][0])
        plot = plots.ranges(labels, ends[:, 0], np.array(shares), ends[:, 1], "coverage", promised)
        low, high = ends[0]
        note = f"promised {promised:.3g}; all: {shares[0]:.3f}, exact 95 % interval {low:.3f} to {high:.3f}"
        values = "; ".join(f"{label} {share:.3f}" for label, share in zip(labels, shares, strict=True))
        panels.append(Panel(name, note, plot, f"Coverage of {name}: {values}"))
    return Section(
        "coverage",
        "Do sets and intervals hold the truth as often as promised?",
        "Each mark is the share of test examples whose set or interval holds the truth, with its exact 95 % interval "
        "(Clopper and Pearson). The dashed line is what was promised. A guarantee over all inputs promises the first "
        "row only. Of many classes, groups or sizes, those with the lowest coverage are drawn; empty sets, which hold "
        "no truth, are not.",
        tuple(panels),
    )


def risk(names: Sequence[str], groups: Sequence[str], arrays: Arrays) -> Section:
    """Draw what the masks of each conformal method lose: over all cases or patients, and by subgroup."""
    panels = []
    for name in names:
        level = arrays.take(f"{name}/conformal", level=(1,))
        overall = arrays.take(f"{name}/conformal", risk=(2,))
        by_group = arrays.take(f"{name}/conformal", group_risk=(2,))
        tables = [table[0] for table in (overall, by_group) if table is not None]
        if level is None or overall is None or any(t.shape[1] != 4 or not np.isfinite(t).all() for t in tables):
            continue
        highest = [] if by_group is None else sorted(by_group[0].tolist(), key=lambda row: -row[1])[:_MOST_PARTS]
        labels = ["all", *(_shortened(_called("group", int(row[0]), groups)) for row in sorted(highest))]
        ends = np.array([overall[0][0].tolist(), *sorted(highest)], dtype=np.float64)
        allowed = float(level[0][0])
        plot = plots.ranges(labels, ends[:, 2], ends[:, 1], ends[:, 3], "loss", allowed)
        _, mean, low, high = ends[0]
        note = f"promised at most {allowed:.3g}; measured {mean:.3f}, 95 % interval {low:.3f} to {high:.3f}"
        values = "; ".join(f"{label} {row[1]:.3f}" for label, row in zip(labels, ends, strict=True))
        panels.append(Panel(name, note, plot, f"Loss of the masks of {name}: {values}"))
    return Section(
        "losses",
        "Do masks lose as little as promised?",
        "Each mark is the mean loss of the masks on the test set, such as the share of the true pixels that they miss, "
        "over patients where these are known and over cases elsewhere. Its 95 % interval holds for every law of the "
        "losses. The dashed line is what was promised for the first row; of many subgroups those that lose most are "
        "drawn.",
        tuple(panels),
    )


def _called(kind: str, number: int, names: Sequence[str]) -> str:
    """Return the name of a part; where names are not known, its number."""
    return names[number] if 0 <= number < len(names) else f"{kind} {number}"


def _parts(name: str, classes: Sequence[str], groups: Sequence[str], arrays: Arrays) -> list[tuple[str, int, int]]:
    """Return (label, covered, count) of all examples and of each class, group and size; nothing without the first."""
    is_sets = arrays.take(f"{name}/conformal", **{"class": (2,)}) is not None
    named = {"all": ["all"], "class": list(classes), "group": list(groups), "size": [] if is_sets else list(_QUARTERS)}
    parts: list[tuple[str, int, int]] = []
    for kind, labels in named.items():
        table = arrays.take(f"{name}/conformal", **{kind: (2,)})
        if table is None or table[0].shape[1] != 3 or not np.isfinite(table[0]).all():
            if kind == "all":
                return []
            continue
        rows = [(int(number), int(hits), int(count)) for number, hits, count in table[0] if 0 <= hits <= count > 0]
        if kind == "size" and is_sets:  # an empty set never holds the truth, and the table has the share of them
            rows = [row for row in rows if row[0] > 0]
        lowest = sorted(rows, key=lambda row: row[1] / row[2])[:_MOST_PARTS]
        for number, covered, count in sorted(lowest):
            parts.append((_shortened(_called(kind, number, labels)), covered, count))
    return parts


def _size(row: Row, metric: str) -> float | None:
    cell = row.cells.get(metric)
    return None if cell is None or cell.mean is None or not math.isfinite(cell.mean) else cell.mean


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]
