"""What a metric is, and how to find one by its name.

A `Metric` holds everything that the library, the command line and the report know about one measure of quality: its
name, whether high or low values are better, its title, its meaning in plain words, and how it accumulates over batches.
A new metric is therefore one record. It is found because its module lies in this package, because an entry point of the
group "leanbayes.metrics" names it, or because the running program registers it:

    def margin(prediction, targets):
        top = prediction.mean.topk(2, dim=1).values
        return top[:, 0] - top[:, 1]

    METRICS.register(
        Metric(
            "margin",
            better=None,
            title="Margin",
            meaning="The mean gap between the two highest probabilities of an input.",
            accumulate=mean_of("margin", margin),
            kinds=("classes",),
        )
    )

`leanbayes.evaluate` then measures it, and the page and the terminal show it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError, UnknownName
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.calibration import Reliability
from leanbayes.metrics.ranking import RiskCoverage
from leanbayes.prediction import Prediction

__all__ = ["METRICS", "Accumulator", "Findings", "Metric", "accumulators_for", "mean_of", "metric_named"]


@dataclass
class Findings:
    """The values that accumulators report at the end of a pass over the data.

    Attributes:
        metrics: the values, by the full names of the metrics.
        bounds: the largest possible error of each metric that comes from a histogram.
        notes: which metrics could not be measured, and why.
        reliability: the points of the reliability diagram, where the kind of data has one.
        risk_coverage: the points of the risk-coverage curve, where the kind of data has one.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reliability: Reliability | None = None
    risk_coverage: RiskCoverage | None = None

    def put(self, name: str, value: Tensor | float, bound: Tensor | float | None = None) -> None:
        """Store the value of one metric and, if it has one, the bound of its error."""
        self.metrics[name] = float(value)
        if bound is not None:
            self.bounds[name] = float(bound)


class Accumulator(ABC):
    """Gathers one or more metrics batch by batch, in memory that does not grow with the number of batches."""

    @abstractmethod
    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in one batch of the data that is evaluated."""

    def add_shifted(self, name: str, prediction: Prediction, targets: object) -> None:  # noqa: B027
        """Take in one batch of the shifted set called ``name``; most metrics do not look at shifted sets."""

    @abstractmethod
    def report(self, findings: Findings) -> None:
        """Write the metrics of all batches so far into ``findings``."""


Factory = Callable[[Likelihood], Accumulator]
"""Makes a fresh accumulator for data of one likelihood; a class of accumulators is one."""


@dataclass(frozen=True)
class Metric:
    """One measure of the quality, or the cost, of predictions.

    Args:
        name: the name in results, such as "nll" or "ood/auroc". Full names may add a level after an "@"
            ("coverage@0.9"), a class at the end ("iou/lesion") or a set in the middle ("ood/letters/auroc").
        better: whether "high" or "low" values are better; None if neither is.
        title: the head of the metric's column in reports.
        meaning: one plain sentence for tooltips and help.
        accumulate: makes the accumulator that reports this metric. Metrics with the same factory share one accumulator,
            which runs once. A mapping gives each kind of data its own factory. None means that `evaluate` does not
            measure it: such as a cost, which the comparison of methods measures.
        kinds: the kinds of data (see `leanbayes.likelihood.Likelihood.kind`) that have this metric; None means every
            kind. Leave it out if ``accumulate`` is a mapping.
    """

    name: str
    better: Literal["high", "low"] | None
    title: str
    meaning: str
    accumulate: Factory | Mapping[str, Factory] | None = None
    kinds: Collection[str] | None = None

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise InputError(f'a metric needs a name without "@", got {self.name!r}')
        if self.better not in ("high", "low", None):
            raise InputError(f'better must be "high", "low" or None, got {self.better!r} for the metric {self.name!r}')
        if isinstance(self.accumulate, Mapping):
            if self.kinds is not None:
                raise InputError(f"the metric {self.name!r} has kinds twice: drop kinds=, as accumulate= names them")
            object.__setattr__(self, "kinds", tuple(self.accumulate))

    def factory(self, kind: str) -> Factory | None:
        """Return what makes this metric's accumulator for this kind of data; None if the kind has no such metric."""
        if self.accumulate is None or (self.kinds is not None and kind not in self.kinds):
            return None
        return self.accumulate[kind] if isinstance(self.accumulate, Mapping) else self.accumulate


METRICS: Catalogue[Metric] = Catalogue(
    "metric",
    lambda value: value.name if isinstance(value, Metric) else None,
    package="leanbayes.metrics",
    group="leanbayes.metrics",
)
"""Every metric by its name. ``METRICS.register(Metric(...))`` adds one."""


def metric_named(full_name: str) -> Metric:
    """Return the metric that a full name stands for, with the name and the title completed.

    Args:
        full_name: a key of `Evaluation.metrics`: the name of a metric, or one with a set ("ood/<set>/auroc"), a class
            ("iou/<class>") or a level ("coverage@0.9") in it.

    Raises:
        UnknownName: no metric has this name.

    >>> metric_named("ood/letters/auroc").title, metric_named("set_size@0.9").title, metric_named("iou/lesion").title
    ('AUROC, letters', 'Share sure at 0.9', 'IoU, lesion')
    >>> metric_named("ood/letters/fpr95").better, metric_named("coverage@0.9").better
    ('low', None)
    """
    if full_name in METRICS:
        return METRICS[full_name]
    base, _, level = full_name.partition("@")
    if base in METRICS:
        return _completed(METRICS[base], full_name, f" at {level}")
    first, _, middle = base.partition("/")
    middle, _, last = middle.rpartition("/")
    if middle and f"{first}/{last}" in METRICS:
        return _completed(METRICS[f"{first}/{last}"], full_name, f", {middle}")
    if last and first in METRICS:
        return _completed(METRICS[first], full_name, ", " + base.removeprefix(f"{first}/"))
    raise UnknownName.of("metric", full_name, METRICS)


def _completed(metric: Metric, full_name: str, ending: str) -> Metric:
    kinds = None if isinstance(metric.accumulate, Mapping) else metric.kinds
    complete = replace(metric, title=metric.title + ending, kinds=kinds)
    object.__setattr__(complete, "name", full_name)  # a full name may hold a level, which a metric's own name may not
    return complete


def accumulators_for(likelihood: Likelihood, targets: Tensor) -> list[Accumulator]:
    """Return fresh accumulators of all metrics that data with this likelihood and such targets have.

    Raises:
        InputError: no metric measures how good predictions of this kind of data are.
    """
    kind = likelihood.kind(targets)
    factories = [factory for metric in METRICS.values() if (factory := metric.factory(kind)) is not None]
    if all(metric.kinds is None for metric in METRICS.values() if metric.factory(kind) is not None):
        known = sorted({kind for metric in METRICS.values() for kind in metric.kinds or ()})
        raise InputError(
            f"no metrics are known for the kind of data {kind!r} that {type(likelihood).__name__} has; register them "
            f"with METRICS.register(Metric(..., kinds=[{kind!r}])), or let kind() return one of {', '.join(known)}"
        )
    return [factory(likelihood) for factory in dict.fromkeys(factories)]


def mean_of(name: str, function: Callable[[Prediction, Tensor], Tensor]) -> Factory:
    """Return a factory of accumulators that average one number for each input, which suits most simple metrics.

    Args:
        name: the name of the metric.
        function: takes a `Prediction` and the targets of a batch, and returns a tensor with one value for each input
            (or each pixel, label or output): the metric is the mean of all values.
    """
    return lambda likelihood: _Mean(name, function)  # noqa: ARG005


class _Mean(Accumulator):
    def __init__(self, name: str, function: Callable[[Prediction, Tensor], Tensor]) -> None:
        self.name, self.function = name, function
        self.sum: Tensor | float = 0.0
        self.count = 0

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        values = self.function(prediction, targets)
        self.sum = self.sum + values.sum(dtype=torch.float64)
        self.count += values.numel()

    def report(self, findings: Findings) -> None:
        if self.count:
            findings.put(self.name, self.sum / self.count)
        else:
            findings.notes.append(f"{self.name}: left out, because there are no values to average")
