"""The comparison as rows: mean and interval over seeds, the best marked."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leanbayes.lab.statistics import interval

__all__ = ["COST", "Cell", "Row", "comparison_table", "describe"]

COST = "cost/"  # stands before the names of costs, so that a cost and a metric never collide

# Column title and meaning in plain words, by the last part of the name.
_WORDS = {
    "accuracy": ("Accuracy", "share of right answers"),
    "auc": ("AUC", "how well scores separate the classes: 1 is perfect, 0.5 is chance"),
    "auroc": ("AUROC", "how often uncertainty ranks the input to be caught above an ordinary one: 0.5 is chance"),
    "aupr": ("AUPR", "precision averaged over the share of inputs caught"),
    "fpr95": ("FPR95", "share of ordinary inputs flagged when 95 % of those to be caught are flagged"),
    "brier": ("Brier", "mean squared distance between predicted probabilities and the truth"),
    "nll": ("NLL", "negative log likelihood: punishes being sure and wrong, in nats"),
    "ece": ("ECE", "mean gap between stated confidence and share of right answers"),
    "ece_mass": ("ECE, equal mass", "the same gap, with as many inputs in each bin of confidence"),
    "set_accuracy": ("Accuracy when sure", "share of right answers among inputs of at least this confidence"),
    "set_size": ("Share sure", "share of inputs of at least this confidence"),
    "dice": ("Dice", "overlap of predicted and true foreground: 1 is perfect"),
    "iou": ("IoU", "intersection over union of predicted and true areas"),
    "miou": ("Mean IoU", "intersection over union, averaged over classes"),
    "aurc": ("AURC", "mean error rate as the least sure inputs are set aside"),
    "entropy": ("Entropy", "mean uncertainty of the predictions, in nats"),
    "mutual_information": ("Mutual information", "the part of the uncertainty that more data could remove, in nats"),
    "rmse": ("RMSE", "root mean squared error"),
    "crps": ("CRPS", "distance between the predicted distribution and the truth, in the target's unit"),
    "coverage": ("Coverage", "share of truths inside the predicted interval: should equal its level"),
    "coverage_error": ("Coverage error", "mean distance of those shares from their levels"),
    "parameters": ("Parameters", "numbers that are stored"),
    "random": ("Random weights", "weights that have a distribution instead of one value"),
    "density": ("Density", "share of the weights that is stored; the others are zero"),
    "bytes": ("Bytes", "size in memory or on disk"),
    "train_seconds": ("Training (s)", "wall time of training"),
    "predict_seconds": ("Prediction (s)", "wall time of predicting the test set"),
    "flops_forward": ("FLOPs, forward", "arithmetic of predicting one batch with one draw, counted"),
    "flops_train": ("FLOPs, training", "arithmetic of one training step, counted"),
    "flops_formula": ("FLOPs, formula", "arithmetic of one training step by 001's formula"),
    "peak_memory": ("Peak memory (bytes)", "the most memory in use at once"),
}


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
    """A column's title and what it means in plain words (empty when not known).

    >>> describe("ood/letters/auroc")[0], describe("set_size@0.9")[0], describe("iou/lesion")[0]
    ('AUROC, letters', 'Share sure at 0.9', 'IoU, lesion')
    """
    name = name.removeprefix(COST)
    kind, _, rest = name.partition("/")
    of, _, key = rest.rpartition("/")
    if not rest:
        key = name
    elif kind == "iou":
        key, of = kind, rest
    elif kind != "ood":
        of = f"{kind}, {of}" if of else kind
    key, _, level = key.partition("@")
    title, meaning = _WORDS.get(key, (key.replace("_", " "), ""))
    return title + (f" at {level}" if level else "") + (f", {of}" if of else ""), meaning


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
