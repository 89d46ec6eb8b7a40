"""A prior that is the same for every coordinate."""

from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError
from leanbayes.posteriors import RandomWeight
from leanbayes.priors.prior import Prior

__all__ = ["FixedPrior"]


@dataclass(frozen=True)
class FixedPrior(Prior):
    """One distribution of a single number for every coordinate.

    `Bayesian` wraps a torch distribution in this class, so users seldom need it.

    >>> from torch.distributions import Normal
    >>> FixedPrior(Normal(0.0, 1.0)).law
    Normal(loc: 0.0, scale: 1.0)
    """

    law: Distribution

    def __post_init__(self) -> None:
        if self.law.batch_shape or self.law.event_shape:
            raise InputError(
                f"a prior must be a distribution of one number, got {self.law} with batch shape "
                f"{tuple(self.law.batch_shape)} and event shape {tuple(self.law.event_shape)}; give it scalars"
            )

    def distribution(self, weight: RandomWeight, memory: Tensor | None) -> Distribution:  # noqa: ARG002
        """Return the one distribution."""
        return self.law
