"""How much masks lose on test data, and how much they mark."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leanbayes._calls import split_batch
from leanbayes.conformal.grouped import as_labels
from leanbayes.conformal.risk_control import RiskControl
from leanbayes.conformal.testing import mean_interval
from leanbayes.errors import InputError, ShapeMismatch

__all__ = ["MeanLoss", "MeasuredRisk", "risk_of"]


@dataclass(frozen=True)
class MeanLoss:
    """A mean loss, with a 95 % interval of the expected loss that holds for every law of losses between 0 and 1.

    Attributes:
        mean: the mean over cases, or over patients.
        count: how many of them there are.
    """

    mean: float
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the expected loss."""
        return mean_interval(self.mean, self.count)


@dataclass(frozen=True)
class MeasuredRisk:
    """How the masks of a `RiskControl` do on test data.

    Attributes:
        overall: the loss over all cases, or patients.
        marked: the mean share of the pixels, or labels, of a case that is marked.
        by_group: the loss of each group, if groups were given.
    """

    overall: MeanLoss
    marked: float
    by_group: dict[int, MeanLoss]


@torch.no_grad()
def risk_of(
    control: RiskControl,
    loader: Iterable[Any],
    *,
    patients: Sequence[Hashable] | Tensor | None = None,
    groups: Iterable[int] | Tensor | None = None,
) -> MeasuredRisk:
    """Measure calibrated masks on test batches (inputs, targets), of which two numbers a case are kept.

    Args:
        control: a calibrated `RiskControl`.
        loader: the batches, which must not be those of the calibration.
        patients: the patient of each case, in the order of the loader. The loss of a patient is the mean over the
            patient's cases, and the mean and its interval are then over patients.
        groups: the group of each case, in the order of the loader.
    """
    pairs = [control.losses_and_shares(*split_batch(batch)) for batch in loader]
    losses, shares = (torch.cat([pair[part] for pair in pairs]) if pairs else torch.zeros(0) for part in (0, 1))
    if not len(losses):
        raise InputError("there are no test cases to measure; an iterator that is used up? Give a DataLoader")
    whose = torch.arange(len(losses)) if patients is None else _numbered(patients)
    labels = None if groups is None else as_labels(groups)
    for name, given in (("patients", whose), ("groups", labels)):
        if given is not None and len(given) != len(losses):
            raise ShapeMismatch(f"{name}= must have one entry for each of {len(losses)} cases, got {len(given)}")
    whose = whose.to(losses.device)
    by_group = {}
    if labels is not None:
        labels = labels.to(losses.device)
        for name in labels.unique().tolist():
            chosen = labels == name
            by_group[int(name)] = MeanLoss(*_mean(losses[chosen], whose[chosen]))
    return MeasuredRisk(MeanLoss(*_mean(losses, whose)), _mean(shares, whose)[0], by_group)


def _mean(values: Tensor, whose: Tensor) -> tuple[float, int]:
    """Return the mean over patients of each patient's mean, and how many patients there are."""
    places = whose.unique(return_inverse=True)[1]
    each = torch.bincount(places, values) / torch.bincount(places)
    return each.mean().item(), len(each)


def _numbered(patients: Sequence[Hashable] | Tensor) -> Tensor:
    names = patients.tolist() if isinstance(patients, Tensor) else list(patients)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names], dtype=torch.int64)
