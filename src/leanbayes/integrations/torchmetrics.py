"""torchmetrics: the metrics of LeanBayes that torchmetrics lacks, as its ``Metric`` classes.

They are no second implementation. Each class names a record of `leanbayes.metrics.METRICS`, and that record's own
accumulator computes the value. A metric keeps the predictions of all batches until `compute`, as the exact metrics of
torchmetrics do, so that several processes can join theirs. `leanbayes.evaluate` measures the same in constant memory.
"""

import math
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

from leanbayes.errors import InputError, UnknownName
from leanbayes.integrations._optional import optional
from leanbayes.likelihood import Categorical, Gaussian, Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.metrics import METRICS, Findings, confidence, metric_named, real
from leanbayes.prediction import Prediction

with optional("leanbayes.integrations.torchmetrics", "torchmetrics", "torchmetrics"):
    from torchmetrics import Metric

__all__ = [
    "AdaptiveCalibrationError",
    "AreaUnderRiskCoverage",
    "ConfidentShare",
    "ErrorDetectionAUPR",
    "ErrorDetectionAUROC",
    "ErrorDetectionFPR95",
    "GaussianCRPS",
    "IntervalCoverage",
    "IntervalCoverageError",
    "MutualInformation",
    "PredictiveEntropy",
    "PredictiveNLL",
    "RecordedMetric",
    "ShiftDetectionAUROC",
]

_PARTS = ("mean", "total", "aleatoric", "epistemic")
_SHIFTED = "shifted"


class RecordedMetric(Metric):
    """Any metric of LeanBayes by its name, as a ``Metric`` of torchmetrics.

    Args:
        name: the name of a record of `leanbayes.metrics.METRICS`, such as "aurc", or a full name with a level, such as
            "coverage@0.9".
        likelihood: what the predictions are of; `leanbayes.Categorical` by default.
        options: what every ``Metric`` of torchmetrics takes, such as ``sync_on_compute``.

    >>> from leanbayes import predict
    >>> metric = RecordedMetric("accuracy")
    >>> metric.update(predict(torch.nn.Identity(), torch.eye(3)), torch.arange(3))
    >>> metric.compute()
    tensor(1., dtype=torch.float64)
    """

    is_differentiable: bool | None = False
    full_state_update: bool | None = False
    default_likelihood: ClassVar[type[Likelihood]] = Categorical

    def __init__(self, name: str, likelihood: Likelihood | None = None, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(name, str):
            raise InputError(f"the name of a metric is a text, such as 'aurc', got {name!r}")
        record = metric_named(name)
        if record.accumulate is None:
            measured = [known for known, metric in METRICS.items() if metric.accumulate is not None]
            raise UnknownName.of("metric of predictions", name, measured)
        self.record_name = name
        self.likelihood = self.default_likelihood() if likelihood is None else require_likelihood(likelihood)
        for state in (*_PARTS, "targets", *(f"{_SHIFTED}_{part}" for part in _PARTS)):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool | None:
        """Whether high values are better; None if neither high nor low ones are."""
        better = metric_named(self.record_name).better
        return None if better is None else better == "high"

    def update(self, prediction: Prediction, targets: Tensor | None = None, *, shifted: bool = False) -> None:
        """Take in one batch.

        Args:
            prediction: what `leanbayes.predict` returns.
            targets: the targets of the batch; not needed for a shifted batch.
            shifted: whether the batch is of the unfamiliar kind that a metric of shifts tells from the usual one.
        """
        if not isinstance(prediction, Prediction):
            raise InputError(
                f"the metric takes what leanbayes.predict returns, got a {type(prediction).__name__}; give "
                "leanbayes.predict(model, x)"
            )
        if shifted and not self.record_name.startswith("ood/"):
            raise InputError(
                f"the metric {self.record_name!r} does not compare usual inputs with shifted ones; leave shifted=True "
                "to ShiftDetectionAUROC"
            )
        if not shifted and not isinstance(targets, Tensor):
            raise InputError(f"the targets must be a tensor, got a {type(targets).__name__}")
        if not shifted and isinstance(targets, Tensor) and len(targets) != len(prediction):
            raise InputError(f"there are {len(prediction)} predictions and {len(targets)} targets; give a target each")
        prefix = f"{_SHIFTED}_" if shifted else ""
        for part in _PARTS:
            getattr(self, prefix + part).append(getattr(prediction, part).detach())
        if not shifted:
            self.targets.append(targets)

    def compute(self) -> Tensor:
        """Return the value over all batches; NaN, with a warning that says why, if it cannot be measured."""
        targets = _joined(self.targets)
        if targets is None:
            raise InputError(f"{type(self).__name__} has seen no batch; call update(prediction, targets) first")
        factory = metric_named(self.record_name).factory(self.likelihood.kind(targets))
        if factory is None:
            raise InputError(
                f"the metric {self.record_name!r} is not for the kind of data {self.likelihood.kind(targets)!r}"
            )
        accumulator, findings, name = factory(self.likelihood), Findings(), self.record_name
        usual = self._prediction("")
        assert usual is not None
        accumulator.add(usual, targets)
        shifted = self._prediction(f"{_SHIFTED}_")
        if shifted is not None:
            accumulator.add_shifted(_SHIFTED, shifted, None)
            group, _, last = name.partition("/")
            name = f"{group}/{_SHIFTED}/{last}" if group == "ood" else name
        accumulator.report(findings)
        if name not in findings.metrics:
            why = "; ".join(findings.notes) or f"the accumulator reports {sorted(findings.metrics)}"
            warnings.warn(f"{self.record_name} cannot be measured: {why}", UserWarning, stacklevel=2)
        value = findings.metrics.get(name, math.nan)
        return torch.tensor(value, dtype=torch.float64, device=usual.mean.device)

    def _prediction(self, prefix: str) -> Prediction | None:
        parts: dict[str, Any] = {part: _joined(getattr(self, prefix + part)) for part in _PARTS}
        mean = parts["mean"]
        if mean is None:
            return None
        draws = torch.ones(len(mean), dtype=torch.long, device=mean.device)
        return Prediction(**parts, standard_error=mean.new_zeros(len(mean)), draws=draws)


def _level(level: Any, known: tuple[float, ...]) -> float:
    """Return a level if it is one of those that are measured."""
    if level not in known:
        raise InputError(f"level must be one of {', '.join(map(str, known))}, got {level!r}")
    return known[known.index(level)]


def _joined(batches: Any) -> Tensor | None:
    """Return the batches as one; torchmetrics has joined them already where several processes took part."""
    if isinstance(batches, Tensor):
        return batches
    return torch.cat(list(batches)) if batches else None


class _Named(RecordedMetric):
    """A metric whose record is known."""

    record: ClassVar[str]

    def __init__(self, likelihood: Likelihood | None = None, **options: Any) -> None:
        super().__init__(self.record, likelihood, **options)


class PredictiveNLL(_Named):
    """The negative log-likelihood of the mean prediction, in nats."""

    record = "nll"


class AdaptiveCalibrationError(_Named):
    """The expected calibration error with bins of equal mass; torchmetrics has bins of equal width only."""

    record = "ece_mass"


class PredictiveEntropy(_Named):
    """The mean entropy of the predictions, which is their total uncertainty, in nats."""

    record = "entropy"


class MutualInformation(_Named):
    """The mean mutual information of prediction and weights, which is the epistemic uncertainty, in nats."""

    record = "mutual_information"


class ErrorDetectionAUROC(_Named):
    """How well 1 − confidence tells wrong predictions from right ones, as the area under the ROC curve."""

    record = "error/auroc"


class ErrorDetectionAUPR(_Named):
    """How well 1 − confidence tells wrong predictions from right ones, as the area under precision and recall."""

    record = "error/aupr"


class ErrorDetectionFPR95(_Named):
    """The share of right predictions that are rejected where 95 % of the wrong ones are."""

    record = "error/fpr95"


class AreaUnderRiskCoverage(_Named):
    """The mean loss of the most certain inputs, averaged over how many of them are kept."""

    record = "aurc"


class ConfidentShare(RecordedMetric):
    """The share of predictions whose confidence is at least a level.

    Args:
        level: one of the levels that `leanbayes.evaluate` reports, such as 0.9.
        likelihood: what the predictions are of.
        options: what every ``Metric`` of torchmetrics takes.
    """

    def __init__(self, level: float = 0.9, likelihood: Likelihood | None = None, **options: Any) -> None:
        super().__init__(f"set_size@{_level(level, confidence.THRESHOLDS)}", likelihood, **options)


class GaussianCRPS(_Named):
    """The continuous ranked probability score of Gaussian predictions, in closed form."""

    record = "crps"
    default_likelihood = Gaussian


class IntervalCoverage(RecordedMetric):
    """The share of targets inside the central interval of a level.

    Args:
        level: one of the levels that `leanbayes.evaluate` reports, such as 0.9.
        likelihood: what the predictions are of; `leanbayes.Gaussian` by default.
        options: what every ``Metric`` of torchmetrics takes.
    """

    default_likelihood = Gaussian

    def __init__(self, level: float = 0.9, likelihood: Likelihood | None = None, **options: Any) -> None:
        super().__init__(f"coverage@{_level(level, real.LEVELS)}", likelihood, **options)


class IntervalCoverageError(_Named):
    """The mean distance between the level of central intervals and the share of targets inside them."""

    record = "coverage_error"
    default_likelihood = Gaussian


class ShiftDetectionAUROC(_Named):
    """How well the total uncertainty tells shifted inputs from usual ones, as the area under the ROC curve.

    Give the shifted batches as ``metric.update(prediction, shifted=True)``.
    """

    record = "ood/auroc"
