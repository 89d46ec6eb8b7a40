"""What a comparison measures of conformal predictors: coverage or risk with an interval, size, and both by part."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.conformal import Coverage, Intervals, MeanLoss, RiskControl, Sets, coverage_of, risk_of
from leanbayes.conformal.coverage import Share
from leanbayes.lab.data.division import subgroup_names, subgroup_numbers
from leanbayes.lab.data.task import Task

__all__ = ["Guarantee", "measure_guarantee"]

_QUARTERS = ("narrowest quarter", "second quarter", "third quarter", "widest quarter")


@dataclass(frozen=True)
class Guarantee:
    """How a conformal predictor kept its promise on the test set; empty for other predictors.

    Attributes:
        metrics: by the full names of the metrics.
        arrays: what the figures draw. ``conformal/level`` holds the level, and ``conformal/all``, ``conformal/class``,
            ``conformal/size`` and ``conformal/group`` have a row (number, covered, count) for each part. Masks have
            ``conformal/risk`` and ``conformal/group_risk`` instead, with rows (number, mean loss, low, high).
    """

    metrics: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, Tensor] = field(default_factory=dict)


def measure_guarantee(predictor: nn.Module, test: Iterable[Any], task: Task) -> Guarantee:
    """Measure a conformal predictor on the test set.

    Args:
        predictor: the trained predictor.
        test: batches of the test set.
        task: names the classes, the patients and the groups, and gives widths the unit of the target.
    """
    subgroups = subgroup_numbers(task, task.test)
    names = dict(enumerate(subgroup_names(task)))
    if isinstance(predictor, RiskControl):
        return _masks(predictor, test, task, subgroups, names)
    if not isinstance(predictor, Sets | Intervals):
        return Guarantee()
    groups = task.groups if task.groups is not None else subgroups
    measured = coverage_of(predictor, test, groups=groups)
    size = measured.size
    if isinstance(predictor, Intervals) and task.preparation is not None and len(task.preparation.target_std) == 1:
        size *= task.preparation.target_std[0]  # networks learn standardised targets
    group_names = {} if task.groups is not None else names
    metrics = _metrics(measured, size, task, isinstance(predictor, Sets), group_names)
    return Guarantee(metrics, _arrays(measured, predictor.level))


def _masks(
    predictor: RiskControl,
    test: Iterable[Any],
    task: Task,
    subgroups: list[int] | None,
    names: Mapping[int, str],
) -> Guarantee:
    cases = getattr(task.test, "cases", None)
    patients = None if cases is None or not cases.patients else cases.patients
    measured = risk_of(predictor, test, patients=patients, groups=subgroups)
    low, high = measured.overall.interval
    metrics = {
        "conformal_risk": measured.overall.mean,
        "conformal_risk/low": low,
        "conformal_risk/high": high,
        "conformal_marked": measured.marked,
    }
    groups = {f"conformal_group_risk/{names[number]}": loss.mean for number, loss in measured.by_group.items()}
    arrays = {"conformal/level": torch.tensor([predictor.level]), "conformal/risk": _losses({0: measured.overall})}
    if measured.by_group:
        arrays["conformal/group_risk"] = _losses(measured.by_group)
    return Guarantee(metrics | groups, arrays)


def _losses(losses: Mapping[int, MeanLoss]) -> Tensor:
    rows = [(number, loss.mean, *loss.interval) for number, loss in losses.items()]
    return torch.tensor(rows, dtype=torch.float64)


def _metrics(measured: Coverage, size: float, task: Task, is_sets: bool, groups: Mapping[int, str]) -> dict[str, float]:
    low, high = measured.overall.interval
    classes = dict(enumerate(task.classes))
    sizes = {} if is_sets else dict(enumerate(_QUARTERS))
    return {
        "conformal_coverage": measured.overall.share,
        "conformal_coverage/low": low,
        "conformal_coverage/high": high,
        "conformal_size": size,
        "conformal_empty": measured.empty,
        **_named("conformal_class_coverage", measured.by_class, classes),
        **_named("conformal_group_coverage", measured.by_group, groups),
        **_named("conformal_size_coverage", measured.by_size, sizes),
    }


def _named(metric: str, shares: Mapping[int, Share], names: Mapping[int, str]) -> dict[str, float]:
    return {f"{metric}/{names.get(number, str(number))}": share.share for number, share in shares.items()}


def _arrays(measured: Coverage, level: float) -> dict[str, Tensor]:
    parts = {
        "all": {0: measured.overall},
        "class": measured.by_class,
        "size": measured.by_size,
        "group": measured.by_group,
    }
    arrays = {"conformal/level": torch.tensor([level])}
    for name, shares in parts.items():
        rows = [(number, share.covered, share.count) for number, share in shares.items()]
        if rows:
            arrays[f"conformal/{name}"] = torch.tensor(rows, dtype=torch.float64)
    return arrays
