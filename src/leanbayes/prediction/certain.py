"""Predictions of models whose weights are not random: all draws would be equal, so one of them is computed."""

from typing import Any

import torch
from torch import Tensor

from leanbayes._calls import take
from leanbayes.errors import NonFinite
from leanbayes.likelihood import Likelihood
from leanbayes.prediction.draws import Draws
from leanbayes.prediction.prediction import Prediction, joined

__all__ = ["predict_with_certain_weights"]


def predict_with_certain_weights(
    source: Draws, likelihood: Likelihood, size: int, *, draws: int, keep_samples: bool, step: int
) -> Prediction:
    """Predict from one pass, whose statistics are those of any number of equal draws.

    Args:
        source: the draws, which are all equal.
        likelihood: says what the outputs mean.
        size: how many inputs there are.
        draws: how many equal draws the prediction stands for.
        keep_samples: whether to keep what each draw predicts.
        step: how many inputs are computed at a time.
    """
    whole = source.inputs
    parts = []
    for start in range(0, size, step):
        part = source if step >= size else source.only(take(whole, slice(start, start + step)))
        (output,) = part.take(1)
        parts.append(_prediction(output, likelihood, draws, keep_samples))
    return joined(parts, torch.arange(size))


def _prediction(output: Any, likelihood: Likelihood, draws: int, keep_samples: bool) -> Prediction:
    centre = likelihood.centre(output)
    statistics = likelihood.statistics(output, centre)
    if not torch.isfinite(statistics).all():
        raise NonFinite("the model's output has NaN or infinite values; check the inputs and the weights")
    counts = torch.full((len(statistics),), draws, device=statistics.device)
    predicted = likelihood.uncertainty(statistics, counts, centre)
    samples: Tensor | None = None
    if keep_samples:
        one = likelihood.predictive(output)
        samples = one.repeat(draws, *[1] * one.dim())
    return Prediction(
        *(predicted.mean, predicted.total, predicted.aleatoric, predicted.epistemic),
        standard_error=statistics.new_zeros(len(statistics)),
        draws=counts,
        samples=samples,
    )
