"""KL by drawing weights: for pairs without a closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError
from leanbayes.posterior import RandomWeight

__all__ = ["MonteCarlo"]


@dataclass(frozen=True)
class MonteCarlo:
    """KL(q‖p) ≈ 1/M Σ log q(wᵢ) − log p(wᵢ), wᵢ ~ q, reparameterised (003, eq. 3, direct).

    >>> MonteCarlo(100)
    MonteCarlo(samples=100)
    """

    samples: int = 100

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"MonteCarlo needs at least one sample, got {self.samples}")

    def __call__(self, weight: RandomWeight, prior: Distribution, generator: torch.Generator | None = None) -> Tensor:
        """Nats for one tensor. Half precision is summed in float32."""
        weight = weight.widened()
        posterior, mean = weight.distribution(), weight.random_mean
        total = torch.zeros((), dtype=mean.dtype, device=mean.device)
        for _ in range(self.samples):
            draw = weight.family.sample(mean, weight.spread, weight.noise(generator))
            try:
                total = total + (posterior.log_prob(draw) - prior.log_prob(draw)).sum()
            except ValueError as error:  # torch refuses values outside of the prior's support
                raise InputError(
                    f"KL(q‖p) of {weight.name!r} is infinite: the prior {prior} must give density to every value that "
                    "the posterior can take"
                ) from error
        return total / self.samples
