"""What is believed of a weight before the data: fixed, by glob, fitted in closed form, or around trained weights.

Any torch distribution of one number can be a prior; here are those of 003's Table 1 that torch lacks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, Weibull, constraints, register_kl
from torch.distributions import Normal as TorchNormal

from leanbayes.errors import InputError, SelectionError
from leanbayes.posteriors import FamilyLaw, GeneralisedError, Horseshoe, Logistic, Radial, RandomWeight

__all__ = [
    "LAWS",
    "CentredPrior",
    "ErrorLaw",
    "FittedPrior",
    "FixedPrior",
    "HorseshoeLaw",
    "InverseGaussianLaw",
    "LogUniformLaw",
    "LogisticLaw",
    "Prior",
    "PriorLike",
    "RadialLaw",
    "rayleigh",
    "resolve_priors",
    "wald",
]


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
        second_moment = weight.random_mean.detach().square() + weight.random_variance().detach()
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


class LogisticLaw(FamilyLaw):
    """p(w) = e^−z/(s(1 + e^−z)²), z = (w − m)/s.

    >>> LogisticLaw(0.0, 1.0).log_prob(torch.tensor(0.0))
    tensor(-1.3863)
    """

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Logistic(), loc, scale, validate_args)


class HorseshoeLaw(FamilyLaw):
    """w = m + sλz with z ~ N(0, 1) and a half-Cauchy λ, which is integrated out (Carvalho et al. 2010).

    >>> HorseshoeLaw(0.0, 1.0).log_prob(torch.tensor(1.0))
    tensor(-2.1439)
    """

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Horseshoe(), loc, scale, validate_args)


class ErrorLaw(FamilyLaw):
    """p(w) = exp(−½|z|^{2/c})/(s 2^{c/2+1} Γ(1 + c/2)), z = (w − m)/s: the generalised error law.

    >>> ErrorLaw(0.0, 1.0, shape=1.0).log_prob(torch.tensor(0.0))
    tensor(-0.9189)
    """

    def __init__(self, loc: Any, scale: Any, shape: Any, validate_args: bool | None = None) -> None:
        self.shape = torch.as_tensor(shape)
        super().__init__(GeneralisedError(shape=float(self.shape)), loc, scale, validate_args)

    arg_constraints = FamilyLaw.arg_constraints | {"shape": constraints.positive}


class RadialLaw(FamilyLaw):
    """w = m + s·r·z/‖z‖ for a whole tensor: one density for all of its coordinates (Farquhar et al. 2020).

    >>> RadialLaw(0.0, 1.0).log_prob(torch.ones(3)).shape
    torch.Size([])
    """

    joint = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Radial(), loc, scale, validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Of a tensor as one point."""
        loc, scale = self.loc.expand(value.shape), self.scale.expand(value.shape)
        return self.family.log_density(loc, scale, value[None]).view(())


class InverseGaussianLaw(Distribution):
    """p(v) = √(λ/2πv³) e^{−λ(v−m)²/2m²v} for v > 0: mean m, shape λ.

    >>> InverseGaussianLaw(1.0, 1.0).log_prob(torch.tensor(1.0))
    tensor(-0.9189)
    """

    arg_constraints: dict[str, Any] = {"loc": constraints.positive, "concentration": constraints.positive}  # noqa: RUF012
    support = constraints.positive

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = torch.broadcast_tensors(torch.as_tensor(loc), torch.as_tensor(concentration))
        super().__init__(self.loc.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(v)."""
        distance: Tensor = self.concentration * (value / self.loc - 1).square() / (2 * value)
        constant: Tensor = 0.5 * (self.concentration.log() - math.log(2 * math.pi))
        return constant - 1.5 * value.log() - distance


class LogUniformLaw(Distribution):
    """p(w) ∝ 1/|w − m|, of no finite mass: log|w − m| is uniform on the whole line (Molchanov et al. 2017).

    A KL to it is known up to a constant, which is chosen so that it is 0 for pure noise, σ/|μ| → ∞.

    >>> LogUniformLaw(0.0).log_prob(torch.tensor(1.0))
    tensor(-0.)
    """

    arg_constraints: dict[str, Any] = {"loc": constraints.real}  # noqa: RUF012
    support = constraints.real

    def __init__(self, loc: Any, validate_args: bool | None = None) -> None:
        self.loc = torch.as_tensor(loc)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """−log|w − m|."""
        return -(value - self.loc).abs().log()


@register_kl(TorchNormal, LogUniformLaw)
def _normal_to_log_uniform(posterior: TorchNormal, prior: LogUniformLaw) -> Tensor:
    """Molchanov et al. 2017, eq. 14: within 0.01 of the truth for every α = σ²/μ²."""
    mean, variance = posterior.loc - prior.loc, posterior.scale.square()
    log_alpha = variance.log() - (mean.square() + 1e-8 * variance).log()  # at μ = 0 the slope is 0, not infinite
    return 0.63576 * (1 - torch.sigmoid(1.87320 + 1.48695 * log_alpha)) + 0.5 * F.softplus(-log_alpha)


def wald(shape: Any) -> InverseGaussianLaw:
    """The standard Wald law: an inverse Gaussian of mean 1.

    >>> wald(2.0).concentration
    tensor(2.)
    """
    return InverseGaussianLaw(1.0, shape)


def rayleigh(scale: Any) -> Weibull:
    """The Rayleigh law as torch has it: a Weibull of shape 2 and scale √2 times as large.

    >>> rayleigh(1.0).log_prob(torch.tensor(1.0))
    tensor(-0.5000)
    """
    return Weibull(torch.as_tensor(scale) * math.sqrt(2), torch.as_tensor(2.0))


LAWS: dict[str, type[Distribution]] = {
    law.__name__: law for law in (LogisticLaw, HorseshoeLaw, ErrorLaw, RadialLaw, InverseGaussianLaw, LogUniformLaw)
}
