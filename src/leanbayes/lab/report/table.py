"""The comparison as rows: mean and interval over seeds, the best marked."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leanbayes.errors import UnknownName
from leanbayes.lab.statistics import interval
from leanbayes.metrics import metric_named

__all__ = ["COST", "Cell", "Row", "comparison_table", "describe"]

COST = "cost/"  # stands before the names of costs, so that a cost and a metric never collide


@dataclass(frozen=True)
class Cell:
    """One method's value in one column.

    Args:
        mean: over the seeds; None when no seed has a value.
        half: half the width of the 95 % interval; None with fewer than two seeds.
        seeds: how many seeds have a value.
        best: no other method has a better mean.
        text: mean and interval, written with the column's own digits and unit.
    """

    mean: float | None
    half: float | None
    seeds: int
    best: bool
    text: str


@dataclass(frozen=True)
class Row:
    """One method: its cells by column, in the same order in every row; costs are named ``cost/<name>``."""

    method: str
    error: str | None
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]


def comparison_table(results: Mapping[str, Any]) -> list[Row]:
    """Mean over seeds and mean ± t₀.₉₇₅,ₙ₋₁·s/√n, one row a method, in the order of ``results["methods"]``.

    >>> runs = [{"seed": s, "metrics": {"nll": v}} for s, v in enumerate((0.1, 0.2, 0.3))]
    >>> rows = comparison_table({"methods": [{"name": "vi", "runs": runs}], "better": {"nll": "low"}})
    >>> rows[0].cells["nll"].text
    '0.200 ± 0.248'
    """
    values = [_values(method) for method in results["methods"]]
    columns: list[dict[str, Cell]] = [{} for _ in values]
    names = list(dict.fromkeys(name for of_method in values for name in of_method))
    for name in sorted(names, key=lambda name: name.startswith(COST)):
        better = results.get("better", {}).get(name.removeprefix(COST))
        for row, cell in zip(columns, _column([of.get(name, []) for of in values], better), strict=True):
            row[name] = cell
    return [
        Row(method["name"], method.get("error"), tuple(run.get("seed", 0) for run in method.get("runs", [])), cells)
        for method, cells in zip(results["methods"], columns, strict=True)
    ]


def describe(name: str) -> tuple[str, str]:
    """Return a column's title and its meaning in plain words; the meaning of a name that no metric has is empty.

    >>> describe("ood/letters/auroc")[0], describe("set_size@0.9")[0], describe("iou/lesion")[0]
    ('AUROC, letters', 'Share sure at 0.9', 'IoU, lesion')
    """
    try:
        metric = metric_named(name)
    except UnknownName:  # the record may come from a program with metrics of its own
        return name.removeprefix(COST).replace("_", " "), ""
    return metric.title, metric.meaning


def _values(method: Mapping[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in method.get("runs", []):
        named = [*run.get("metrics", {}).items(), *((COST + key, value) for key, value in run.get("cost", {}).items())]
        for name, value in named:
            found.setdefault(name, [])
            if value is not None:
                found[name].append(float(value))
    return found


def _column(values: Sequence[Sequence[float]], better: str | None) -> list[Cell]:
    spans = [interval(of) if len(of) and all(map(math.isfinite, of)) else None for of in values]
    known = [span.mean for span in spans if span is not None]
    # With one method there is nothing to be better than; and a mean that holds a NaN is never the best.
    best = None
    if len(known) > 1 and better in ("low", "high"):
        best = min(known) if better == "low" else max(known)
    write = _writer(known)
    cells = []
    for of, span in zip(values, spans, strict=True):
        if span is None:
            cells.append(Cell(math.nan if of else None, None, len(of), False, "not finite" if of else "–"))
            continue
        half = None if span.low is None or span.high is None else (span.high - span.low) / 2
        marked = best is not None and math.isclose(span.mean, best, rel_tol=1e-12)
        cells.append(Cell(span.mean, half, len(of), marked, write(span.mean, half)))
    return cells


def _writer(means: Sequence[float]) -> Callable[[float, float | None], str]:
    """Writes the numbers of one column with one unit and one count of decimals, so that they line up."""
    largest = max(map(abs, means), default=0.0)
    whole = largest < 10_000 and all(mean == int(mean) for mean in means)
    power = 0 if largest < 10_000 else min(math.floor(math.log10(largest)) // 3, 5)
    unit, suffix = 1000.0**power, ("", "k", "M", "G", "T", "P")[power]
    scaled = largest / unit
    decimals = 0
    if not whole:
        decimals = 3 if scaled < 10 else 2 if scaled < 100 else 1
        if 0 < scaled < 0.1:  # keep three figures of what is small throughout
            decimals = min(2 - math.floor(math.log10(scaled)), 9)

    def write(mean: float, half: float | None) -> str:
        if mean == 0 and not half:
            return "0"
        text = f"{mean / unit:.{decimals}f}{suffix}"
        if half is None or half <= 1e-9 * abs(mean):  # one seed, or what does not vary, such as a count
            return text
        return f"{text} ± {half / unit:.{max(decimals, 1)}f}{suffix}"

    return write
