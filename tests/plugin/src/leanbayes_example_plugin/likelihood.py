"""A likelihood: counts, whose log rate the network puts out."""

import torch
from torch import Tensor

from leanbayes.likelihood import Likelihood, Uncertainty


class Poisson(Likelihood):
    """p(y | f) = Poisson(exp f)."""

    usual_for = ("counts",)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.nn.functional.poisson_nll_loss(output, target, full=True, reduction="sum")

    def statistics(self, output: Tensor, centre: Tensor | None) -> Tensor:
        return torch.cat([output.exp(), (2 * output).exp()], dim=1)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        mean, square = averages.chunk(2, dim=1)
        epistemic = (square - mean.square()).clamp_min(0)
        return Uncertainty(mean, mean + epistemic, mean, epistemic)

    def predictive(self, output: Tensor) -> Tensor:
        return output.exp()
