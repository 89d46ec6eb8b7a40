"""A prior whose scale is fitted to the weights in closed form (empirical Bayes)."""

from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution, Normal

from leanbayes.posteriors import RandomWeight
from leanbayes.priors.prior import Prior

__all__ = ["FittedPrior"]


@dataclass(frozen=True)
class FittedPrior(Prior):
    """N(0, s²) with s² = mean(μ² + σ²) over the tensor: empirical Bayes in closed form.

    This s minimises KL(q‖N(0, s²)). By the envelope theorem the gradient through s is then zero, so s is held constant.
    """

    def distribution(self, weight: RandomWeight, memory: Tensor | None) -> Distribution:  # noqa: ARG002
        """Return the best Normal with mean zero for the weight as it is now."""
        second_moment = weight.random_mean.detach().square() + weight.random_variance().detach()
        return Normal(second_moment.new_zeros(()), second_moment.mean().sqrt(), validate_args=False)
