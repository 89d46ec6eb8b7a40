"""What a posterior family must say of itself: its parameters, its noise, how noise becomes a weight."""

from abc import ABC, abstractmethod
from collections.abc import Set

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError
from leanbayes.posteriors.terms import Form, Statistics, Term, power

__all__ = ["Family"]


class Family(ABC):
    """A distribution for random coordinates, w = W(μ, spread, ξ) with parameter-free noise ξ.

    Each random tensor holds one raw parameter beside its mean (called ``rho``), as many numbers as it has random
    coordinates. Everything else of the engine (storage, drawing, KL, propagation) follows from these methods.

    Attributes:
        symmetric: whether W − μ is symmetric about zero, which ``propagate="mirrored"`` and "flipout" need.
        positive: whether the weight has a positive part, v > 0, of which a prior on the positive numbers speaks.
        relative: whether W − μ depends on μ.
        joint: whether the coordinates of one tensor depend on each other.
        sampled_exactly: whether `sampled` has the very law of the statistics, where it has one at all.
    """

    symmetric: bool = True
    positive: bool = False
    relative: bool = False
    joint: bool = False
    sampled_exactly: bool = True

    @abstractmethod
    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """Raw parameter ρ to start from, one for each of ``weights``."""

    @abstractmethod
    def spread(self, rho: Tensor) -> Tensor:
        """The constrained parameter (a scale σ > 0) from the raw one."""

    @abstractmethod
    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ for one tensor, shaped like ``like``, or ``samples`` of them along a new first axis."""

    @abstractmethod
    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:
        """W − μ; ``mean`` is given where the family is ``relative`` or ``joint``."""

    def sample(self, mean: Tensor, spread: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """W, written to ``out`` where that is given."""
        return torch.add(mean, self.perturbation(spread, noise, mean), out=out)

    def draw(
        self, mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
    ) -> Tensor:
        """W for fresh noise: as ``sample`` of ``noise``, in fewer sweeps where a family knows how."""
        return self.sample(mean, spread, self.noise(mean, None, generator), out)

    def draw_and_sums(
        self,
        mean: Tensor,  # noqa: ARG002
        rho: Tensor,  # noqa: ARG002
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor] | None:
        """W and (Σμ, Σμ², Σσ², Σ log σ) in one sweep, where a family knows how."""
        return None

    @abstractmethod
    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:
        """Var(W); ``mean`` is given where the family is ``relative`` or ``joint``."""

    @abstractmethod
    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """The same law as a torch distribution, for densities, entropies and exact divergences."""

    @abstractmethod
    def form(self, mean: Tensor, spread: Tensor, part: bool) -> Form:
        """How the weight, or its positive part, is made of noise."""

    @abstractmethod
    def log_noise(self, noise: Tensor) -> Tensor:
        """log f(ξ), coordinate by coordinate; for a ``joint`` family one number for each of the first axis."""

    @abstractmethod
    def expected(self, term: Term, count: int) -> float:
        """E[term(ξ)] for one of ``count`` coordinates; infinite where it diverges."""

    def noise_mean(self) -> float:
        """E ξ, one coordinate's."""
        return self.expected(power(1), 1)

    def has_moment(self, order: float) -> bool:  # noqa: ARG002
        """Whether E|W|^order is finite."""
        return True

    @abstractmethod
    def noise_entropy(self, count: int) -> float:
        """−E[log f(ξ)] of ``count`` coordinates."""

    def sampled(
        self,
        wanted: Set[Term],  # noqa: ARG002
        samples: int,  # noqa: ARG002
        like: Tensor,  # noqa: ARG002
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> Statistics | None:
        """The means over ``samples`` draws, drawn from their own law; None where that is not known."""
        return None

    def output_noise(self, variance: Tensor, axis: int, count: int, generator: torch.Generator | None) -> Tensor:
        """Standardised noise of a linear operation's outputs, for ``propagate="local"``; asked of joint families only.

        Args:
            variance: of the outputs.
            axis: along which are the features, which have weights of their own.
            count: the random coordinates of the weight.
            generator: for the draw.
        """
        raise NotImplementedError(f"{self} is joint, and does not say what its outputs are")

    def log_density(self, mean: Tensor, spread: Tensor, weight: Tensor) -> Tensor:
        """log q(w), coordinate by coordinate; ``weight`` has a first axis of draws."""
        form = self.form(mean, spread, part=False)
        base = weight if form.sign is None else (form.sign * weight).log()
        located = base if form.location is None else base - form.location
        return self.change(form, base, self.log_noise(located / form.scale))

    def change(self, form: Form, base: Tensor, log_noise: Tensor) -> Tensor:
        """log f(ξ) − log|dx/dξ|: the change of variables from noise to x."""
        by_coordinate = -form.scale.log() - base if form.exponential else -form.scale.log()
        if not self.joint:
            return log_noise + by_coordinate
        return log_noise + by_coordinate.sum()

    def no_part(self) -> InputError:
        """For families on the whole line."""
        return InputError(f"{self} has no positive part")
