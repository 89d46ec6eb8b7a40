"""`evaluate` measures all metrics that a kind of data has over a stream of batches, and returns them as one record."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._arrays import dtype_of, is_whole, tensors_of
from leanbayes._calls import Split, require_function, require_pair, split_batch
from leanbayes._wrappers import unwrap
from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.metrics.calibration import Reliability
from leanbayes.metrics.metric import Accumulator, Findings, accumulators_for, metric_named
from leanbayes.metrics.ranking import RiskCoverage
from leanbayes.prediction import Prediction, predict
from leanbayes.prediction.through import Through

__all__ = ["Evaluation", "PredictedBatch", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one predictor on one data set, as `evaluate` returns them.

    Attributes:
        metrics: finite numbers by the full names of the metrics; `leanbayes.metrics.metric_named` describes each.
        examples: how many inputs were evaluated.
        reliability: the reliability diagram: by bins of confidence, or for numbers by the level of the interval and the
            share of targets that it covers. None if the kind of data has no such diagram.
        risk_coverage: the mean loss of the most certain inputs on a grid of 100 shares. None if the kind of data has no
            such curve.
        bounds: the largest possible error of each metric that comes from a histogram. Scores that are truly tied make
            no error.
        notes: which metrics could not be measured, and why.
    """

    metrics: dict[str, float]
    examples: int
    reliability: Reliability | None
    risk_coverage: RiskCoverage | None
    bounds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PredictedBatch:
    """One batch and its prediction, as `evaluate` hands them to ``on_prediction``.

    Attributes:
        shifted: the name of the shifted set that the batch belongs to; None for the data that is evaluated.
        inputs: the inputs, as the batch gave them.
        targets: the targets, on the device of the prediction if they are a tensor.
        prediction: the prediction that is scored.
    """

    shifted: str | None
    inputs: Any
    targets: Any
    prediction: Prediction


def evaluate(
    predictor: nn.Module,
    batches: Any,
    *,
    likelihood: Likelihood,
    samples: int | Literal["auto"] = 32,
    shifted: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    through: Through | None = None,
    in_units: Callable[[Prediction, Any], tuple[Prediction, Any]] | None = None,
    on_prediction: Callable[[PredictedBatch], None] | None = None,
    batch: Split | None = None,
    keep_samples: bool = False,
) -> Evaluation:
    """Predict every batch and measure the predictions. The memory does not grow with the number of batches.

    The likelihood tells the kind of data from the targets, and the kind decides the metrics: all of
    `leanbayes.metrics.METRICS` that are for this kind. The NLL is that of the mean probabilities over draws; for
    numbers it is that of the Gaussian with the mean and variance of the prediction. Errors are detected by
    1 − confidence, and shifted inputs by the mean total uncertainty of an input.

    Args:
        predictor: anything that `predict` takes.
        batches: the batches, usually a DataLoader, or a tuple (inputs, targets) of NumPy arrays, pandas frames or
            tensors, which are then predicted in parts of ``batch_size``.
        likelihood: what the outputs of the predictor mean.
        samples: how many weight draws each prediction averages, or ``"auto"``.
        shifted: data sets by name of which the predictor should be less sure. They hold pairs too, but their targets
            are not scored.
        batch_size: predicts each batch in parts of this size.
        generator: the source of randomness for the draws.
        through: calls the network of each draw, for example window by window; see `leanbayes.predict`.
        in_units: takes each prediction with its targets, and returns both as they are to be scored. Models are often
            trained on standardised numbers, and their errors should be in the unit of the target.
        on_prediction: is called with each batch and its prediction, those of the shifted sets too. Use it to draw
            figures from the predictions that are scored, or to show progress.
        batch: a function that takes a batch and returns the pair (inputs, targets). By default a batch is such a pair,
            or a dictionary of MONAI or Hugging Face; see `leanbayes.fit`.
        keep_samples: whether the predictions that ``on_prediction`` sees keep what each draw predicts.

    Returns:
        The metrics, their bounds, and the curves behind them.

    >>> data = [(torch.tensor([[0.0, 1.0], [3.0, 0.0]]), torch.tensor([1, 0]))]
    >>> from leanbayes.likelihood import Categorical
    >>> evaluate(nn.Identity(), data, likelihood=Categorical()).metrics["accuracy"]
    1.0
    """
    require_likelihood(likelihood)
    if batch is not None:
        require_function("batch", batch)
    split, dtype = batch or split_batch, dtype_of(unwrap(predictor))

    def predictions(source: Any, name: str | None) -> Iterator[tuple[Prediction, Any]]:
        whole = batch is None and is_whole(source)
        for one in [source] if whole else source:
            inputs, targets = require_pair(split(one))
            targets = tensors_of(targets, dtype)
            prediction = predict(
                *(predictor, inputs),
                likelihood=likelihood,
                samples=samples,
                batch_size=batch_size,
                generator=generator,
                through=through,
                keep_samples=keep_samples,
            )
            targets = targets.to(prediction.mean.device) if isinstance(targets, Tensor) else targets
            if in_units is not None:
                prediction, targets = in_units(prediction, targets)
            yield prediction, targets
            if on_prediction is not None:
                on_prediction(PredictedBatch(name, inputs, targets, prediction))

    accumulators: list[Accumulator] = []
    examples = 0
    for prediction, targets in predictions(batches, None):
        if not isinstance(targets, Tensor):
            raise InputError(f"targets must be a tensor, got a {type(targets).__name__}")
        accumulators = accumulators or accumulators_for(likelihood, targets)
        for accumulator in accumulators:
            accumulator.add(prediction, targets)
        examples += len(prediction)
    if not accumulators:
        raise InputError("there are no batches to evaluate; an iterator that is used up? Give a list or a DataLoader")

    for name, source in (shifted or {}).items():
        empty = True
        for prediction, targets in predictions(source, name):
            empty = False
            for accumulator in accumulators:
                accumulator.add_shifted(name, prediction, targets)
        if empty:
            raise InputError(f"the shifted set {name!r} has no examples to measure")

    findings = Findings()
    for accumulator in accumulators:
        accumulator.report(findings)
    for name in findings.metrics:
        metric_named(name)  # raises if an accumulator reports what no metric describes
    return Evaluation(
        findings.metrics, examples, findings.reliability, findings.risk_coverage, findings.bounds, tuple(findings.notes)
    )
