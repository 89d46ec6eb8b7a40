"""The NLL of each input of a test set, by which two methods can be compared on the same inputs."""

import torch
from torch import Tensor

from leanbayes.likelihood import Likelihood
from leanbayes.metrics.quality import cells_of
from leanbayes.metrics.regression import gaussian_terms
from leanbayes.prediction import Prediction

__all__ = ["nll_of_inputs"]


def nll_of_inputs(prediction: Prediction, targets: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
    """Return the mean NLL of each input, and over how many targets that count (pixels, labels or outputs) it is taken.

    The NLL of the whole set is the mean of all inputs with these numbers as weights. An input of which nothing counts
    has the NLL 0.
    """
    if likelihood.kind(targets) == "regression":
        values = gaussian_terms(prediction.mean, prediction.total, targets)["nll"]
        counted = torch.ones_like(values, dtype=torch.bool)
    else:
        cells = cells_of(prediction.mean, targets, likelihood.ignore_index)
        values = cells.nll.new_zeros(targets.shape)
        values[cells.counted], counted = cells.nll, cells.counted
    numbers = counted.reshape(len(targets), -1).sum(1)
    return values.reshape(len(targets), -1).sum(1) / numbers.clamp_min(1), numbers
