"""A prior around the weights that the model had when it was converted."""

import math
from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution, Normal

from leanbayes.errors import InputError
from leanbayes.posteriors import RandomWeight
from leanbayes.priors.prior import Prior

__all__ = ["CentredPrior"]


@dataclass(frozen=True)
class CentredPrior(Prior):
    """N(w₀, scale²) around the weights w₀ that the model had when it was converted.

    The prior keeps one number for each random coordinate.

    Args:
        scale: the standard deviation around w₀.

    >>> CentredPrior(scale=0.1)
    CentredPrior(scale=0.1)
    """

    scale: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise InputError(f"CentredPrior needs a positive finite scale, got {self.scale}")

    def remember(self, random_mean: Tensor) -> Tensor:
        """Return the trained weights."""
        return random_mean.detach().clone()

    def distribution(self, weight: RandomWeight, memory: Tensor | None) -> Distribution:  # noqa: ARG002
        """Return a Normal around the remembered weights."""
        assert memory is not None
        return Normal(memory, memory.new_tensor(self.scale), validate_args=False)
