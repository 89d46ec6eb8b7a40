"""Predictions without draws of weights: moments of the outputs, in one pass over each part of the batch."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from leanbayes._calls import Inputs, take
from leanbayes._calls import batch_size as size_of
from leanbayes._covariance import covariance, roots, variances
from leanbayes._moments import moments
from leanbayes.bayesian import Bayesian
from leanbayes.errors import NonFinite
from leanbayes.likelihood import Likelihood
from leanbayes.prediction.prediction import Prediction, joined
from leanbayes.propagate.covariance import correlated

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
    jointly: bool,
) -> Prediction:
    """Moments of the outputs, then what the likelihood makes of Gaussian outputs with these moments.

    ``points`` is how many evenly spread outputs stand for that Gaussian where no closed form exists: C numbers each,
    ``jointly`` with their covariance, else with their variances alone.
    """
    size = size_of(x)
    weights, found = bnn.weights(), []
    for start in range(0, size, step):
        some = take(x, slice(start, start + step))
        if jointly:
            mean, spread = covariance(bnn, some, weights=weights, output=output)
            variance = variances(mean, spread)
            outputs = partial(_correlated_outputs, likelihood, mean, spread, points)
        else:
            mean, variance = moments(bnn, some, weights=weights, output=output)
            outputs = partial(likelihood.spread_outputs, mean, variance, points)
        if jointly and not likelihood.closed_form:
            said = likelihood.uncertainty_of_outputs(outputs(), points)
        else:  # a closed form needs the variances alone
            said = likelihood.uncertainty_of_moments(mean, variance, points)
        if not all(bool(torch.isfinite(part).all()) for part in (said.mean, said.total)):
            raise NonFinite(
                "the moments of the outputs are not finite; look for NaN in the inputs, and for scales so wide that "
                "variances overflow"
            )
        count = len(said.mean)
        kept = None
        if keep_samples:
            kept = torch.stack([likelihood.predictive(out) for out in outputs()])
        found.append(
            Prediction(
                *(said.mean, said.total, said.aleatoric, said.epistemic),
                standard_error=said.mean.new_zeros(count),
                draws=torch.ones(count, dtype=torch.long, device=said.mean.device),
                samples=kept,
            )
        )
    return joined(found, torch.arange(size))


def _correlated_outputs(likelihood: Likelihood, mean: Any, spread: Any, points: int) -> Iterator[Any]:
    """Outputs that stand for a Gaussian of these covariances: the likelihood's even noise, correlated."""
    factors = roots(spread)
    flat = tree_map(lambda m: m.reshape(len(m), -1), mean)
    even = likelihood.spread_outputs(tree_map(torch.zeros_like, flat), tree_map(torch.ones_like, flat), points)
    for noise in even:
        yield tree_map(lambda m, factor, xi: m + correlated(factor, xi.view(m.shape)), mean, factors, noise)
