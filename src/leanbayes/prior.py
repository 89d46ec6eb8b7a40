"""What is believed of a weight before the data: fixed, by glob, fitted in closed form, or around trained weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal

from leanbayes.errors import InputError, SelectionError
from leanbayes.posterior import RandomWeight

__all__ = ["CentredPrior", "FittedPrior", "FixedPrior", "Prior", "PriorLike", "resolve_priors"]


class Prior(ABC):
    """The prior of one tensor's random coordinates."""

    @abstractmethod
    def distribution(self, weight: RandomWeight, memory: Tensor | None) -> Distribution:
        """p(w) for the random coordinates of ``weight``, given what `remember` kept."""

    def remember(self, random_mean: Tensor) -> Tensor | None:  # noqa: ARG002 - most priors need no memory
        """What must be kept from the moment of conversion, if anything."""
        return None


@dataclass(frozen=True)
class FixedPrior(Prior):
    """One scalar distribution for every coordinate.

    >>> FixedPrior(TorchNormal(0.0, 1.0)).law
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
        """The same law for all."""
        return self.law


@dataclass(frozen=True)
class FittedPrior(Prior):
    """N(0, s²) with s² = mean(μ² + σ²) over the tensor: empirical Bayes in closed form.

    That s minimises KL(q‖N(0, s²)), so by the envelope theorem the gradient through s is zero: s is held constant.
    """

    def distribution(self, weight: RandomWeight, memory: Tensor | None) -> Distribution:  # noqa: ARG002
        """The best zero-mean Normal for the weight as it is now."""
        second_moment = weight.random_mean.detach().square() + weight.family.variance(weight.spread.detach())
        return TorchNormal(second_moment.new_zeros(()), second_moment.mean().sqrt(), validate_args=False)


@dataclass(frozen=True)
class CentredPrior(Prior):
    """N(w₀, scale²) around the weights w₀ that the model had when it was converted (kept: k numbers).

    >>> CentredPrior(scale=0.1)
    CentredPrior(scale=0.1)
    """

    scale: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise InputError(f"CentredPrior needs a positive finite scale, got {self.scale}")

    def remember(self, random_mean: Tensor) -> Tensor:
        """The trained weights."""
        return random_mean.detach().clone()

    def distribution(self, weight: RandomWeight, memory: Tensor | None) -> Distribution:  # noqa: ARG002
        """A Normal around the kept weights."""
        assert memory is not None
        return TorchNormal(memory, memory.new_tensor(self.scale), validate_args=False)


PriorLike = Distribution | Prior | Mapping[str, "Distribution | Prior"]


def resolve_priors(prior: PriorLike, names: list[str]) -> dict[str, Prior]:
    """The prior of each named tensor; in a mapping the first glob that matches a name decides.

    >>> resolve_priors({"fc.*": FittedPrior(), "*": TorchNormal(0.0, 1.0)}, ["fc.weight"])
    {'fc.weight': FittedPrior()}
    """
    if not isinstance(prior, Mapping):
        return dict.fromkeys(names, _as_prior(prior))
    for pattern in prior:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SelectionError(
                f"the prior's pattern {pattern!r} matched none of {len(names)} random tensors; "
                f"the first are {names[:3]}"
            )
    found: dict[str, Prior] = {}
    for name in names:
        match = next((law for pattern, law in prior.items() if fnmatchcase(name, pattern)), None)
        if match is None:
            raise SelectionError(f"no prior for {name!r} among the patterns {list(prior)}; add '*' as the last one")
        found[name] = _as_prior(match)
    return found


def _as_prior(law: Distribution | Prior) -> Prior:
    if isinstance(law, Prior):
        return law
    if isinstance(law, Distribution):
        return FixedPrior(law)
    raise InputError(f"a prior is a torch distribution, a leanbayes Prior or a mapping of globs to them, got {law!r}")
