"""Predictions without draws of weights: one pass over each part of the batch gives the distribution of the outputs.

A predictor on top of several networks, such as an ensemble, needs one pass for each of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leanbayes._calls import Inputs, take
from leanbayes._calls import batch_size as size_of
from leanbayes.errors import NonFinite
from leanbayes.likelihood import Likelihood, Uncertainty
from leanbayes.prediction.prediction import Prediction, joined, laws_of
from leanbayes.propagate import Propagation
from leanbayes.propagate.outputs import Outputs

__all__ = ["predict_in_one_pass"]

_FEWEST_POINTS = 32  # of "auto"; Categorical says how close they are


def predict_in_one_pass(
    model: nn.Module,
    x: Inputs,
    likelihood: Likelihood,
    by: Propagation | None,
    *,
    points: int,
    tolerance: float | None,
    keep_samples: bool,
    step: int,
    output: Callable[[Any], Any],
) -> Prediction | None:
    """Predict from the distribution of the outputs; return None for a model that predicts by draws.

    Args:
        model: the network, or a predictor on top of networks.
        x: a batch of inputs.
        likelihood: says what the outputs mean.
        by: a propagation to use instead of that of the model.
        points: how many evenly spread outputs stand for that distribution where no closed form exists.
        tolerance: the change of the total uncertainty in nats below which fewer points are enough; None for no fewer.
        keep_samples: whether to keep what each of these outputs predicts.
        step: how many inputs are computed at a time.
        output: picks the tensor from what the model returns.
    """
    size = size_of(x)
    predictions = []
    for start in range(0, size, step):
        laws = laws_of(model, take(x, slice(start, start + step)), output, by)
        if laws is None:
            return None
        parts = [_uncertainty(law, likelihood, points, tolerance) for law in laws]
        predicted = parts[0] if len(parts) == 1 else likelihood.mixed(parts)
        if not all(bool(torch.isfinite(part).all()) for part in (predicted.mean, predicted.total)):
            raise NonFinite(
                "the moments of the outputs are not finite; look for NaN in the inputs, and for scales so wide that "
                "variances overflow"
            )
        count = len(predicted.mean)
        samples = None
        if keep_samples:
            outs = (out for law in laws for out in law.spread(likelihood, points))
            samples = torch.stack([likelihood.predictive(out) for out in outs])
        predictions.append(
            Prediction(
                *(predicted.mean, predicted.total, predicted.aleatoric, predicted.epistemic),
                standard_error=predicted.mean.new_zeros(count),
                draws=torch.full((count,), len(laws), device=predicted.mean.device),
                samples=samples,
            )
        )
    return joined(predictions, torch.arange(size))


def _uncertainty(law: Outputs, likelihood: Likelihood, points: int, tolerance: float | None) -> Uncertainty:
    """Return the uncertainty; with a tolerance, from twice as many points again and again until no input changes."""
    count = points if tolerance is None else min(_FEWEST_POINTS, points)
    predicted: Uncertainty = law.uncertainty(likelihood, count)
    while tolerance is not None and count < points:
        count = min(2 * count, points)
        before, predicted = likelihood.nats(predicted), law.uncertainty(likelihood, count)
        change = (likelihood.nats(predicted) - before).abs()
        if (change.flatten(1).mean(1) if change.dim() > 1 else change).le(tolerance).all():
            break
    return predicted
