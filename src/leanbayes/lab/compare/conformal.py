"""What a comparison measures of conformal predictors: coverage with its exact interval, size, and coverage by class."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from leanbayes._calls import split_batch
from leanbayes.conformal import Intervals, RiskControl, Sets, coverage_of
from leanbayes.lab.data.task import Task

__all__ = ["conformal_metrics"]


def conformal_metrics(predictor: nn.Module, test: Iterable[Any], task: Task) -> dict[str, float]:
    """Return the metrics of a conformal predictor on the test set; those of another predictor are none.

    Args:
        predictor: the trained predictor.
        test: batches of the test set.
        task: names the classes, and gives widths the unit of the target.
    """
    if isinstance(predictor, RiskControl):
        losses = [predictor.losses(*split_batch(batch)) for batch in test]
        return {"conformal_risk": torch.cat(losses).mean().item()}
    if not isinstance(predictor, Sets | Intervals):
        return {}
    found = coverage_of(predictor, test)
    low, high = found.overall.interval
    size = found.size
    if isinstance(predictor, Intervals) and task.preparation is not None and len(task.preparation.target_std) == 1:
        size *= task.preparation.target_std[0]  # networks learn standardised targets
    metrics = {
        "conformal_coverage": found.overall.share,
        "conformal_coverage/low": low,
        "conformal_coverage/high": high,
        "conformal_size": size,
    }
    names = dict(enumerate(task.classes))
    by_class = {names.get(number, str(number)): share.share for number, share in found.by_class.items()}
    return metrics | {f"conformal_coverage/{name}": share for name, share in by_class.items()}
