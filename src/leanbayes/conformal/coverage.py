"""How often sets and intervals hold the truth on test data, and how large they are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leanbayes._calls import split_batch
from leanbayes.conformal.binomial import clopper_pearson
from leanbayes.conformal.grouped import GivenGroups, GroupFunction, labels_for
from leanbayes.conformal.intervals import Intervals
from leanbayes.conformal.sets import Sets
from leanbayes.errors import InputError

__all__ = ["Coverage", "Share", "coverage_of"]


@dataclass(frozen=True)
class Share:
    """How many examples of a group are covered, with the exact 95 % interval of Clopper and Pearson.

    Attributes:
        covered: how many are covered.
        count: how many there are.
    """

    covered: int
    count: int

    @property
    def share(self) -> float:
        """The share that is covered."""
        return self.covered / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the probability of being covered."""
        return clopper_pearson(self.covered, self.count)


@dataclass(frozen=True)
class Coverage:
    """How a conformal predictor does on test data.

    Attributes:
        overall: the coverage of all examples.
        size: the mean number of classes in a set, or the mean width of an interval.
        empty: the share of sets without any class, or of intervals with the lower end above the upper one.
        by_class: the coverage of each true class; empty for intervals.
        by_size: the coverage of the sets of each size. Intervals are divided into four quarters by their width, from 0
            for the narrowest to 3 for the widest; empty if all have one width.
        by_group: the coverage of each group, for predictors that were calibrated by group or if groups were given.
    """

    overall: Share
    size: float
    empty: float
    by_class: dict[int, Share]
    by_size: dict[int, Share]
    by_group: dict[int, Share]


@torch.no_grad()
def coverage_of(
    predictor: Sets | Intervals, loader: Iterable[Any], *, groups: GroupFunction | Iterable[int] | Tensor | None = None
) -> Coverage:
    """Measure a calibrated predictor on test batches (inputs, targets).

    Args:
        predictor: a calibrated `Sets` or `Intervals`. Of intervals with several outputs each output counts by itself.
        loader: the batches, which must not be those of the calibration.
        groups: a function of the inputs of a batch that returns an integer for each, or the integers of all examples in
            the order of the loader. By default it is the function by which the predictor was calibrated. A predictor
            whose guarantee is over all inputs can be measured by group too.
    """
    group_of = groups if callable(groups) else predictor.per if groups is None and callable(predictor.per) else None
    given = GivenGroups(None if callable(groups) else groups)
    hits, sizes, classes, numbers = [], [], [], []
    for batch in loader:
        x, y = split_batch(batch)
        labels = given.take(len(y))
        if group_of is not None:
            labels = labels_for(group_of, x, None, len(y), y.device)
        hit, size, label, row = _measured(predictor, x, y, labels if predictor.per == "group" else None)
        hits.append(hit)
        sizes.append(size)
        classes.append(label)
        if labels is not None:
            numbers.append(labels.to(hit.device)[row])
    given.finish()
    if not hits or not sum(map(len, hits)):
        raise InputError("there are no test examples to measure; an iterator that is used up? Give a DataLoader")
    hit, size = torch.cat(hits), torch.cat(sizes)
    is_sets = isinstance(predictor, Sets)
    return Coverage(
        Share(int(hit.sum()), len(hit)),
        size.clamp_min(0).mean().item(),
        (size <= 0 if is_sets else size < 0).double().mean().item(),
        _shares(hit, torch.cat(classes)) if is_sets else {},
        _shares(hit, size.long() if is_sets else _quarters(size)),
        _shares(hit, torch.cat(numbers)) if numbers else {},
    )


def _measured(
    predictor: Sets | Intervals, x: Any, y: Tensor, groups: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for each target that counts, whether it is covered, the size of its set, its class, and its input."""
    if isinstance(predictor, Sets):
        sets = predictor.sets(x, groups=groups)
        labels = y.to(sets.device).long()
        counted = predictor.likelihood.counted(labels)
        chosen, labels = sets[counted], labels[counted]
        return chosen.gather(1, labels[:, None])[:, 0], chosen.sum(1).double(), labels, counted.nonzero()[:, 0]
    lower, upper = predictor.intervals(x, groups=groups)
    target = y.to(lower)
    hit = ((target >= lower) & (target <= upper)).flatten()
    rows = torch.arange(len(target), device=hit.device).repeat_interleave(len(hit) // max(len(target), 1))
    return hit, (upper - lower).flatten(), torch.zeros_like(rows), rows


def _quarters(widths: Tensor) -> Tensor:
    """Return the quarter of each width, from 0 for the narrowest; nothing if the widths are equal but for rounding."""
    low, high = widths.amin(), widths.amax()
    if not high - low > 1e-9 * high.abs():
        return widths.new_zeros(0, dtype=torch.int64)
    ranks = widths.argsort(stable=True).argsort()
    return ranks * 4 // len(widths)


def _shares(hit: Tensor, groups: Tensor) -> dict[int, Share]:
    """Return the share of each group; nothing if there are no groups."""
    names, places = groups.unique(return_inverse=True)
    if not len(names):
        return {}
    counts = torch.bincount(places)
    covered = torch.bincount(places, hit.double())
    rows = zip(names.tolist(), covered.tolist(), counts.tolist(), strict=True)
    return {int(name): Share(round(hits), count) for name, hits, count in rows}
