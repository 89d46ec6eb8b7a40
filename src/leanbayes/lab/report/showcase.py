"""The same segmented test cases as every method sees them: the worst, the median, the best, and surprising ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leanbayes.errors import FileError
from leanbayes.lab.report import pictures
from leanbayes.lab.report.outlines import outline
from leanbayes.lab.report.read import Arrays
from leanbayes.lab.report.section import LegendEntry, Outline, Panel, Portrait, Ramp, Section
from leanbayes.lab.report.sheets import FAINTEST
from leanbayes.lab.slices import Values

__all__ = ["showcase"]

PREDICTED, TRUE, RATER = "#ff9f1c", "#2ec4f1", "#ffffff"  # bright lines, which grey and most colours do not hide
_SURPRISING = 2  # cases that are shown because a method was sure of them and wrong
_PICTURES = ("image", "truth", "predicted", "total", "epistemic")
_FACTS = 5
_LONGEST = 4000  # characters of an outline: a page has many of them


@dataclass(frozen=True)
class _Shown:
    """A case as one method sees it."""

    image: Values
    truth: Values
    predicted: Values
    total: Values
    epistemic: Values
    raters: Values | None
    dice: float
    doubt: float
    slice: int
    slices: int
    stretch: float


def showcase(names: Sequence[str], cases: Sequence[Mapping[str, Any]], arrays: Arrays) -> Section | None:
    """Show the same test cases for all methods side by side.

    Args:
        names: the methods.
        cases: the number and the name of each test case that methods have kept.
        arrays: what they have kept.
    """
    by_case = {case["name"]: _views(names, int(case["case"]), arrays) for case in cases}
    by_case = {name: views for name, views in by_case.items() if views}
    if not by_case:
        return None
    chosen = _chosen(by_case)
    shown = [view for name, _ in chosen for view in by_case[name].values()]
    highest = {kind: max(float(np.nan_to_num(getattr(view, kind)).max()) for view in shown) for kind in _PICTURES[3:]}
    highest["epistemic"] = max(highest["epistemic"], FAINTEST * highest["total"])
    panels = [_panel(name, why, by_case[name], highest) for name, why in chosen]
    legend = [LegendEntry(PREDICTED, "━", "predicted"), LegendEntry(TRUE, "━", "true")]
    if any(view.raters is not None for view in shown):
        legend.append(LegendEntry("var(--muted)", "┅", "other raters"))
    raters = " Dice is the mean over all raters of a case." if any(view.raters is not None for view in shown) else ""
    many = f" Of large test sets {len(by_case)} random cases are looked at." if len(cases) < _tested(arrays) else ""
    return Section(
        "showcase",
        "The same cases for every method",
        "Each panel is one test case as every method sees it, with the outlines of the prediction and of the truth. "
        "Below it are the total (left) and the epistemic uncertainty (right), on scales that all methods share. "
        "Where an outline is wrong and the maps are dark, the method errs without a warning. Worst, median and best "
        "are by the mean Dice over the methods. A surprising case has the lowest Dice of those that a method is surer "
        f"of than of half, by its own score of doubt.{raters}{many}",
        tuple(panels),
        tuple(legend),
        tuple(
            Ramp(pictures.scale(), f"{kind.capitalize()} uncertainty: 0", f"{value:.2g} nats")
            for kind, value in highest.items()
        ),
        first=True,
    )


def _tested(arrays: Arrays) -> int:
    """How many test cases there are, as far as the arrays tell."""
    return max((len(values) for key, values in arrays.by_key.items() if key.endswith("/case/dice")), default=0)


def _views(names: Sequence[str], case: int, arrays: Arrays) -> dict[str, _Shown]:
    """One case as each method sees it; methods that have not kept it are left out."""
    views = {}
    for name in names:
        prefix = f"{name}/shown/{case}"
        keys = [f"{prefix}/{kind}" for kind in (*_PICTURES, "facts")]
        if not all(key in arrays.by_key for key in keys):
            continue
        *planes, facts = (arrays.by_key[key] for key in keys)
        sizes = {plane.shape[:2] for plane in planes}
        right = facts.shape == (_FACTS,) and len(sizes) == 1 and planes[0].ndim == 3 and planes[0].shape[2] in (1, 3)
        if not right or any(plane.ndim != 2 for plane in planes[1:]) or 0 in planes[0].shape:
            shapes = {key: arrays.by_key[key].shape for key in keys}
            raise FileError(f"{arrays.path}: the arrays of {prefix} do not fit together: {shapes}; compare again")
        dice, doubt, at, slices, stretch = (float(value) for value in facts)
        raters = arrays.by_key.get(f"{prefix}/raters")
        if raters is not None and raters.shape[1:] != planes[0].shape[:2]:
            raise FileError(f"{arrays.path}: {prefix}/raters has another size than the image; compare again")
        image, truth, predicted, total, epistemic = planes
        views[name] = _Shown(
            image, truth, predicted, total, epistemic, raters, dice, doubt, int(at), int(slices), stretch
        )
    return views


def _chosen(by_case: Mapping[str, Mapping[str, _Shown]]) -> list[tuple[str, str]]:
    """The names of the cases that are shown, each with the reason."""
    quality = {name: float(np.mean([view.dice for view in views.values()])) for name, views in by_case.items()}
    order = sorted(quality, key=lambda name: quality[name])
    places = {"Worst case": 0, "Median case": len(order) // 2, "Best case": len(order) - 1}
    chosen: dict[str, str] = {}
    for why, place in places.items():
        chosen.setdefault(order[place], why)
    for name, method in _surprises(by_case):
        if sum(why.startswith("Surprising") for why in chosen.values()) < _SURPRISING and name not in chosen:
            chosen[name] = f"Surprising case: {method} was sure and wrong"
    return list(chosen.items())


def _surprises(by_case: Mapping[str, Mapping[str, _Shown]]) -> list[tuple[str, str]]:
    """For each method the case with the lowest Dice of those it is surer of than of half; the lowest Dice first.

    A case whose Dice is not below the method's median is none: the method was sure and right.
    """
    surprises = []
    for method in dict.fromkeys(method for views in by_case.values() for method in views):
        seen = [(name, views[method]) for name, views in by_case.items() if method in views]
        doubt = float(np.median([view.doubt for _, view in seen]))
        dice = float(np.median([view.dice for _, view in seen]))
        sure = [(view.dice, name) for name, view in seen if view.doubt <= doubt]
        if sure and min(sure)[0] < dice:
            surprises.append((*min(sure), method))
    return [(name, method) for _, name, method in sorted(surprises)]


def _panel(name: str, why: str, views: Mapping[str, _Shown], highest: Mapping[str, float]) -> Panel:
    dice = float(np.mean([view.dice for view in views.values()]))
    first = next(iter(views.values()))
    at = f"; slice {first.slice + 1} of {first.slices}" if first.slices > 1 else ""
    portraits = tuple(_portrait(name, method, view, highest) for method, view in views.items())
    return Panel(f"{why}: {name}", f"mean Dice {dice:.2f}{at}", portraits=portraits)


def _portrait(case: str, method: str, view: _Shown, highest: Mapping[str, float]) -> Portrait:
    lines = []
    for mask in () if view.raters is None else view.raters:
        lines.append(Outline(_outlines(mask), RATER, "thin"))
    lines += [Outline(_outlines(view.truth), TRUE), Outline(_outlines(view.predicted), PREDICTED)]
    note = f"Dice {view.dice:.2f}, doubt {view.doubt:.3f}"
    height, width = view.truth.shape
    return Portrait(
        title=method,
        note=note,
        image=pictures.data_address(view.image if view.image.shape[2] == 3 else np.repeat(view.image, 3, 2)),
        total=pictures.data_address(pictures.heat(view.total.astype(np.float64), highest["total"])),
        epistemic=pictures.data_address(pictures.heat(view.epistemic.astype(np.float64), highest["epistemic"])),
        outlines=tuple(lines),
        width=width,
        height=round(height * view.stretch, 3),
        stretch=round(view.stretch, 4),
        words=f"{case} as {method} sees it: {note}",
    )


def _outlines(labels: Values) -> str:
    """One path around each class of the foreground."""
    return "".join(outline(labels == label, _LONGEST) for label in np.unique(labels) if label > 0)
