"""Helpers for the tests of likelihoods."""

import numpy as np
import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.likelihood import Uncertainty

HALVES = [torch.bfloat16, torch.float16]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def from_draws(likelihood: lb.Likelihood, outputs: list[object]) -> Uncertainty:
    """Return the prediction from a stream of draws: averages of the statistics, then the uncertainty."""
    centre = likelihood.centre(outputs[0])
    averages = torch.stack([likelihood.statistics(output, centre) for output in outputs]).mean(0)
    return likelihood.uncertainty(averages, torch.full((len(averages),), len(outputs)), centre)


def entropy(p: np.ndarray, axis: int) -> np.ndarray:
    return -(p * np.log(p)).sum(axis)
