"""Predictions without draws of weights: one pass over each part of the batch gives the distribution of the outputs."""

from collections.abc import Callable
from typing import Any

import torch

from leanbayes._calls import Inputs, take
from leanbayes._calls import batch_size as size_of
from leanbayes.bayesian import Bayesian
from leanbayes.errors import NonFinite
from leanbayes.likelihood import Likelihood
from leanbayes.prediction.prediction import Prediction, joined
from leanbayes.propagate import OnePass

__all__ = ["predict_in_one_pass"]


def predict_in_one_pass(
    bnn: Bayesian,
    x: Inputs,
    likelihood: Likelihood,
    by: OnePass,
    *,
    points: int,
    keep_samples: bool,
    step: int,
    output: Callable[[Any], Any],
) -> Prediction:
    """Predict from the distribution of the outputs.

    Args:
        bnn: the network.
        x: a batch of inputs.
        likelihood: says what the outputs mean.
        by: the propagation, which gives the distribution of the outputs.
        points: how many evenly spread outputs stand for that distribution where no closed form exists.
        keep_samples: whether to keep what each of these outputs predicts.
        step: how many inputs are computed at a time.
        output: picks the tensor from what the model returns.
    """
    size, weights = size_of(x), None if bnn.held else bnn.weights()
    predictions = []
    for start in range(0, size, step):
        law = by.law(bnn, take(x, slice(start, start + step)), weights=weights, output=output)
        predicted = law.uncertainty(likelihood, points)
        if not all(bool(torch.isfinite(part).all()) for part in (predicted.mean, predicted.total)):
            raise NonFinite(
                "the moments of the outputs are not finite; look for NaN in the inputs, and for scales so wide that "
                "variances overflow"
            )
        count = len(predicted.mean)
        samples = None
        if keep_samples:
            samples = torch.stack([likelihood.predictive(out) for out in law.spread(likelihood, points)])
        predictions.append(
            Prediction(
                *(predicted.mean, predicted.total, predicted.aleatoric, predicted.epistemic),
                standard_error=predicted.mean.new_zeros(count),
                draws=torch.ones(count, dtype=torch.long, device=predicted.mean.device),
                samples=samples,
            )
        )
    return joined(predictions, torch.arange(size))
