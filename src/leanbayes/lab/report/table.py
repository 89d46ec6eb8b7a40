"""A comparison as a table: one row for each method, with means and intervals over seeds and the best value marked."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leanbayes.errors import UnknownName
from leanbayes.lab.statistics import interval
from leanbayes.metrics import metric_named

__all__ = ["COST", "EQUIVALENT", "Cell", "Row", "comparison_table", "describe", "direction"]

COST = "cost/"  # stands before the names of costs, so that a cost and a metric never collide
EQUIVALENT = "ensemble_equivalent"
_SUFFIXES = ("", "k", "M", "G", "T", "P")  # of 1000 to the power 0, 1, 2, ...


@dataclass(frozen=True)
class Cell:
    """One method's value in one column.

    Args:
        mean: the mean over the seeds; None if no seed has a value.
        half: half the width of the 95 % interval; None with fewer than two seeds.
        seeds: how many seeds have a value.
        best: whether no other method has a better mean.
        text: mean and interval, written with the digits and the unit of the column.
    """

    mean: float | None
    half: float | None
    seeds: int
    best: bool
    text: str


@dataclass(frozen=True)
class Row:
    """One method.

    Args:
        method: its name.
        error: why it failed, in one line; None if it did not.
        seeds: the seeds it was trained with.
        cells: its values by column, in the same order in every row; costs are named ``cost/<name>``.
    """

    method: str
    error: str | None
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]


def comparison_table(results: Mapping[str, Any]) -> list[Row]:
    """Return one row for each method, in the order of ``results["methods"]``.

    A cell holds the mean over seeds and its 95 % interval, mean ± t₀.₉₇₅,ₙ₋₁·s/√n.

    Args:
        results: the record that `leanbayes.lab.compare.compare` returns and ``results.json`` holds.

    >>> runs = [{"seed": s, "metrics": {"nll": v}} for s, v in enumerate((0.1, 0.2, 0.3))]
    >>> rows = comparison_table({"methods": [{"name": "vi", "runs": runs}]})
    >>> rows[0].cells["nll"].text
    '0.200 ± 0.248'
    """
    values_by_method = [_values(method) for method in results["methods"]]
    columns = dict.fromkeys(name for values in values_by_method for name in values)
    cells: list[dict[str, Cell]] = [{} for _ in values_by_method]
    for column in sorted(columns, key=lambda name: name.startswith(COST)):
        values = [of_method.get(column, []) for of_method in values_by_method]
        for row, cell in zip(cells, _column(values, direction(column, results)), strict=True):
            row[column] = cell
    for row, equivalent in zip(cells, _equivalents(results), strict=True):
        if equivalent is not None:
            row[EQUIVALENT] = equivalent
    return [
        Row(method["name"], method.get("error"), tuple(run.get("seed", 0) for run in method.get("runs", [])), row)
        for method, row in zip(results["methods"], cells, strict=True)
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


def direction(name: str, results: Mapping[str, Any]) -> str | None:
    """Return whether "high" or "low" values of a column are better; None if neither is.

    A metric that this program does not know has the direction that the record gives.
    """
    try:
        return metric_named(name).better
    except UnknownName:
        recorded: str | None = results.get("better", {}).get(name.removeprefix(COST))
        return recorded if recorded in ("high", "low") else None


def _equivalents(results: Mapping[str, Any]) -> list[Cell | None]:
    """The column of deep-ensemble equivalents; None for every method if the record has none."""
    record = results.get(EQUIVALENT) or {}
    known, most = record.get("methods") or {}, len(record.get("nll") or ())
    if not known:
        return [None] * len(results["methods"])
    # Where a method is worse than one network or better than all, the number only says how the column is sorted.
    limits = {"<1": 0.0, f">{most}": most + 1.0}
    numbers = {name: limits.get(of["text"], of["value"]) for name, of in known.items()}
    best = max(numbers.values()) if len(set(numbers.values())) > 1 else None
    cells: list[Cell | None] = []
    for method in results["methods"]:
        name, seeds = method["name"], len(method.get("runs", []))
        if name not in known:
            cells.append(Cell(None, None, 0, False, "–"))
            continue
        cells.append(Cell(numbers[name], None, seeds, numbers[name] == best, known[name]["text"]))
    return cells


def _values(method: Mapping[str, Any]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for run in method.get("runs", []):
        costs = {COST + name: value for name, value in run.get("cost", {}).items()}
        for name, value in (run.get("metrics", {}) | costs).items():
            values.setdefault(name, [])
            if value is not None:
                values[name].append(float(value))
    return values


def _column(values: Sequence[Sequence[float]], better: str | None) -> list[Cell]:
    intervals = [interval(of) if len(of) and all(map(math.isfinite, of)) else None for of in values]
    means = [of.mean for of in intervals if of is not None]  # a mean with a NaN in it is never the best
    best = None
    if better is not None and len(set(means)) > 1:  # where all are equal there is nothing to be better than
        best = min(means) if better == "low" else max(means)
    write = _writer(means)
    cells = []
    for of, span in zip(values, intervals, strict=True):
        if span is None:
            cells.append(Cell(math.nan if of else None, None, len(of), False, "not finite" if of else "–"))
            continue
        half = None if span.low is None or span.high is None else (span.high - span.low) / 2
        is_best = best is not None and math.isclose(span.mean, best, rel_tol=1e-12)
        cells.append(Cell(span.mean, half, len(of), is_best, write(span.mean, half)))
    return cells


def _writer(means: Sequence[float]) -> Callable[[float, float | None], str]:
    """Return a function that writes the numbers of one column with one unit and one count of decimals."""
    largest = max(map(abs, means), default=0.0)
    whole = largest < 10_000 and all(mean == int(mean) for mean in means)
    power = 0 if largest < 10_000 else min(math.floor(math.log10(largest)) // 3, len(_SUFFIXES) - 1)
    unit, suffix = 1000.0**power, _SUFFIXES[power]
    scaled = largest / unit
    decimals = 0
    if not whole:
        decimals = 3 if scaled < 10 else 2 if scaled < 100 else 1
        if 0 < scaled < 0.1:  # a column of small numbers keeps three significant digits
            decimals = min(2 - math.floor(math.log10(scaled)), 9)

    def write(mean: float, half: float | None) -> str:
        if mean == 0 and not half:
            return "0"
        text = f"{mean / unit:.{decimals}f}{suffix}"
        if half is None or half <= 1e-9 * abs(mean):  # one seed, or a value that does not vary, such as a count
            return text
        return f"{text} ± {half / unit:.{max(decimals, 1)}f}{suffix}"

    return write
