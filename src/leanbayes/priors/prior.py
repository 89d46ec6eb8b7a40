"""The base class of priors that depend on the weight, and what may stand for a prior."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor
from torch.distributions import Distribution

from leanbayes.posteriors import RandomWeight

__all__ = ["Prior", "PriorLike"]


class Prior(ABC):
    """The prior of the random coordinates of one tensor.

    A distribution of torch says the same of every weight. A `Prior` may look at the weight: at its present mean and
    scale, or at the values that the weight had when the model was converted.
    """

    @abstractmethod
    def distribution(self, weight: RandomWeight, memory: Tensor | None) -> Distribution:
        """Return p(w) for the random coordinates of a weight.

        Args:
            weight: the weight as it is now.
            memory: what `remember` returned when the model was converted.
        """

    def remember(self, random_mean: Tensor) -> Tensor | None:  # noqa: ARG002 - most priors need no memory
        """Return what must be kept from the moment of conversion, or None if nothing must.

        Args:
            random_mean: the means of the random coordinates at that moment.
        """
        return None


PriorLike = Distribution | Prior | Mapping[str, "Distribution | Prior"]
"""A distribution, a `Prior`, or a mapping of patterns of parameter names to either."""
