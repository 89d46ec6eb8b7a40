"""`evaluate`: every metric that a task's likelihood has, of a stream of batches, as one record."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import split_batch
from leanbayes.errors import InputError, UnknownName
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.metrics.accumulate import ClassAuc, Confidence, Findings, Histogram, Masks, Part, Real, detection
from leanbayes.metrics.calibration import Reliability
from leanbayes.metrics.quality import not_ignored
from leanbayes.metrics.ranking import RiskCoverage
from leanbayes.prediction import Prediction, predict

__all__ = ["BETTER", "Evaluation", "better", "evaluate", "input_uncertainty", "metrics_for"]

BETTER: dict[str, Literal["high", "low"] | None] = {
    "accuracy": "high",
    "auc": "high",
    "aurc": "low",
    "brier": "low",
    "coverage": None,
    "coverage_error": "low",
    "crps": "low",
    "dice": "high",
    "ece": "low",
    "ece_mass": "low",
    "entropy": None,
    "error/aupr": "high",
    "error/auroc": "high",
    "error/fpr95": "low",
    "iou": "high",
    "miou": "high",
    "mutual_information": None,
    "nll": "low",
    "ood/aupr": "high",
    "ood/auroc": "high",
    "ood/fpr95": "low",
    "rmse": "low",
    "set_accuracy": "high",
    "set_size": None,
}
"""Whether high or low is better; None where neither is: a coverage should be its level, and of entropies and the
sizes of confidence sets no value is good in itself."""


def better(name: str) -> Literal["high", "low"] | None:
    """`BETTER` for any metric's full name: ``ood/<set>/auroc``, ``iou/<class>`` and ``set_accuracy@<threshold>`` too.

    >>> better("ood/unseen digits/fpr95"), better("set_accuracy@0.9"), better("coverage@0.9")
    ('low', 'high', None)
    """
    base = name.partition("@")[0]
    if name.startswith("ood/"):
        base = "ood/" + name.rpartition("/")[2]
    elif name.startswith("iou/"):
        base = "iou"
    if base not in BETTER:
        raise UnknownName.of("metric", name, BETTER)
    return BETTER[base]


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    ``metrics`` are finite numbers by name; `better` tells their directions. ``bounds`` says how far at most those that
    come from a histogram are from the exact ones (scores that are truly tied make no error), ``notes`` what could not
    be measured and why. ``reliability`` is by bins of confidence (for regression by nominal level and share covered),
    ``risk_coverage`` on a grid of 100 points.
    """

    metrics: dict[str, float]
    examples: int
    reliability: Reliability
    risk_coverage: RiskCoverage
    bounds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def evaluate(
    predictor: nn.Module,
    batches: Iterable[Any],
    *,
    likelihood: Likelihood,
    samples: int | Literal["auto"] = 32,
    shifted: Mapping[str, Iterable[Any]] | None = None,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    on_batch: Callable[[], None] | None = None,
) -> Evaluation:
    """Predict every batch and measure; memory does not grow with their number.

    The likelihood and the targets' shape choose the metrics: classes, pixels (`Categorical` with targets of more than
    one axis, `Bernoulli` with more than two: (N, labels, ...)), labels, or real numbers. NLL is that of the mean
    probabilities over draws; for `Gaussian` it is that of the Gaussian with the mixture's mean and variance.
    Errors are detected by 1 − confidence, shifted inputs by the mean total uncertainty of an input.

    Args:
        predictor: whatever `predict` takes.
        batches: pairs (inputs, targets).
        likelihood: what outputs mean.
        samples: draws, or ``"auto"``.
        shifted: sets by name that the predictor should be less sure of; pairs too, whose targets are not scored.
        batch_size: predict each batch in parts of this size.
        generator: for the draws.
        on_batch: called after each batch, the shifted ones too: for a progress bar.

    >>> data = [(torch.tensor([[0.0, 1.0], [3.0, 0.0]]), torch.tensor([1, 0]))]
    >>> evaluate(nn.Identity(), data, likelihood=Categorical()).metrics["accuracy"]
    1.0
    """

    def predictions(source: Iterable[Any]) -> Iterable[tuple[Prediction, Any]]:
        for batch in source:
            inputs, targets = split_batch(batch)
            found = predict(
                predictor, inputs, likelihood=likelihood, samples=samples, batch_size=batch_size, generator=generator
            )
            targets = targets.to(found.mean.device) if isinstance(targets, Tensor) else targets
            yield found, targets
            if on_batch is not None:
                on_batch()

    parts: list[Part] = []
    known, findings, examples = Histogram(1), Findings(), 0
    for prediction, targets in predictions(batches):
        if not isinstance(targets, Tensor):
            raise InputError(f"targets must be a tensor, got a {type(targets).__name__}")
        parts = parts or metrics_for(likelihood, targets)
        for part in parts:
            part.add(prediction, targets)
        _count(known, input_uncertainty(likelihood, prediction, targets))
        examples += len(prediction)
    if not parts:
        raise InputError("there are no batches to evaluate; an iterator that is used up? Give a list or a DataLoader")
    for part in parts:
        part.report(findings)

    for name, source in (shifted or {}).items():
        unknown = Histogram(1)
        for prediction, targets in predictions(source):
            _count(unknown, input_uncertainty(likelihood, prediction, targets))
        if not len(unknown):
            raise InputError(f"the shifted set {name!r} has no examples to measure")
        detection(findings, f"ood/{name}", known.table[:, 0], unknown.table[:, 0], missing=("", ""))

    assert findings.reliability is not None
    assert findings.risk_coverage is not None
    return Evaluation(
        findings.metrics, examples, findings.reliability, findings.risk_coverage, findings.bounds, tuple(findings.notes)
    )


@singledispatch
def metrics_for(likelihood: Likelihood, targets: Tensor) -> list[Part]:
    """What to measure under a likelihood. For one of your own: ``@metrics_for.register``, and `input_uncertainty`."""
    raise InputError(
        f"no metrics are known for {type(likelihood).__name__} and targets {tuple(targets.shape)}; "
        "register them: @metrics_for.register"
    )


@metrics_for.register
def _(likelihood: Categorical, targets: Tensor) -> list[Part]:
    ignored = likelihood.ignore_index
    return [Confidence(ignored), Masks(ignored) if targets.dim() > 1 else ClassAuc(ignored)]


@metrics_for.register
def _(likelihood: Bernoulli, targets: Tensor) -> list[Part]:  # noqa: ARG001
    return [Confidence(), Masks() if targets.dim() > 2 else ClassAuc()]


@metrics_for.register
def _(likelihood: Gaussian, targets: Tensor) -> list[Part]:  # noqa: ARG001
    return [Real()]


@singledispatch
def input_uncertainty(likelihood: Likelihood, prediction: Prediction, targets: Any) -> Tensor:
    """One number ≥ 0 for each input, by which shifted inputs are told from known ones: the mean entropy, in nats.

    Targets matter only in that those ignored, such as void pixels, do not count; inputs without others have none.
    """
    total, counted = prediction.total, torch.ones_like(prediction.total, dtype=torch.bool)
    if isinstance(likelihood, Categorical) and isinstance(targets, Tensor) and targets.shape == total.shape:
        counted = not_ignored(targets, likelihood.ignore_index)
    total, counted = total.reshape(len(total), -1), counted.reshape(len(total), -1)
    means = (total * counted).sum(1) / counted.sum(1)
    return means[counted.any(1)]


@input_uncertainty.register
def _(likelihood: Gaussian, prediction: Prediction, targets: Any) -> Tensor:  # noqa: ARG001
    """The geometric mean of the outputs' standard deviations, which does not depend on their units."""
    return (0.5 * prediction.total.reshape(len(prediction), -1).log().mean(1)).exp()


def _count(histogram: Histogram, scores: Tensor) -> None:
    histogram.add(scores, torch.ones(len(scores), 1, device=scores.device))
