"""Predictions without draws of weights: mean and variance of the outputs, in one pass over each part of the batch."""

from collections.abc import Callable
from typing import Any

import torch

from leanbayes.bayesian import Bayesian
from leanbayes.calls import Inputs, take
from leanbayes.calls import batch_size as size_of
from leanbayes.errors import NonFinite
from leanbayes.likelihood import Likelihood
from leanbayes.moments import moments
from leanbayes.predict.prediction import Prediction, joined

__all__ = ["predict_in_one_pass"]


def predict_in_one_pass(
    bnn: Bayesian,
    x: Inputs,
    likelihood: Likelihood,
    *,
    points: int,
    keep_samples: bool,
    step: int,
    output: Callable[[Any], Any],
) -> Prediction:
    """Moments of the outputs, then what the likelihood makes of Gaussian outputs with these moments.

    ``points`` is how many evenly spread outputs stand for that Gaussian where no closed form exists: C numbers each.
    """
    size = size_of(x)
    weights, found = bnn.weights(), []
    for start in range(0, size, step):
        some = take(x, slice(start, start + step))
        mean, variance = moments(bnn, some, weights=weights, output=output)
        said = likelihood.uncertainty_of_moments(mean, variance, points)
        if not all(bool(torch.isfinite(part).all()) for part in (said.mean, said.total)):
            raise NonFinite(
                "the moments of the outputs are not finite; look for NaN in the inputs, and for scales so wide that "
                "variances overflow"
            )
        count = len(said.mean)
        kept = None
        if keep_samples:
            kept = torch.stack([likelihood.predictive(o) for o in likelihood.spread_outputs(mean, variance, points)])
        found.append(
            Prediction(
                *(said.mean, said.total, said.aleatoric, said.epistemic),
                standard_error=said.mean.new_zeros(count),
                draws=torch.ones(count, dtype=torch.long, device=said.mean.device),
                samples=kept,
            )
        )
    return joined(found, torch.arange(size))
