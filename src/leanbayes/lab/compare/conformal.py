"""What a comparison measures of conformal predictors: coverage with its exact interval, size, and coverage by part."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import split_batch
from leanbayes.conformal import Coverage, Intervals, RiskControl, Sets, coverage_of
from leanbayes.conformal.coverage import Share
from leanbayes.lab.data.task import Task

__all__ = ["Guarantee", "measure_guarantee"]

_QUARTERS = ("narrowest quarter", "second quarter", "third quarter", "widest quarter")


@dataclass(frozen=True)
class Guarantee:
    """How a conformal predictor kept its promise on the test set; empty for other predictors.

    Attributes:
        metrics: by the full names of the metrics.
        arrays: what the figures draw. ``conformal/level`` holds the level, and ``conformal/all``, ``conformal/class``,
            ``conformal/size`` and ``conformal/group`` have a row (number, covered, count) for each part.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, Tensor] = field(default_factory=dict)


def measure_guarantee(predictor: nn.Module, test: Iterable[Any], task: Task) -> Guarantee:
    """Measure a conformal predictor on the test set.

    Args:
        predictor: the trained predictor.
        test: batches of the test set.
        task: names the classes and the groups, and gives widths the unit of the target.
    """
    if isinstance(predictor, RiskControl):
        losses = [predictor.losses(*split_batch(batch)) for batch in test]
        return Guarantee({"conformal_risk": torch.cat(losses).mean().item()})
    if not isinstance(predictor, Sets | Intervals):
        return Guarantee()
    measured = coverage_of(predictor, test, groups=task.groups)
    size = measured.size
    if isinstance(predictor, Intervals) and task.preparation is not None and len(task.preparation.target_std) == 1:
        size *= task.preparation.target_std[0]  # networks learn standardised targets
    return Guarantee(_metrics(measured, size, task, isinstance(predictor, Sets)), _arrays(measured, predictor.level))


def _metrics(measured: Coverage, size: float, task: Task, is_sets: bool) -> dict[str, float]:
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
        **_named("conformal_group_coverage", measured.by_group, {}),
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
