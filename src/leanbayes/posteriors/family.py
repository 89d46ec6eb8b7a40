"""The base class of posterior families: parameters, noise, and how noise becomes a weight."""

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError
from leanbayes.posteriors.terms import Form, Statistics, Term, power

__all__ = ["Family"]


class Family(ABC):
    """A distribution for random coordinates, w = W(μ, spread, ξ), where the noise ξ has no parameters.

    Each random tensor holds one raw parameter ρ (called ``rho``) for each random coordinate beside its mean. Storage,
    drawing, divergences and propagation follow from the methods of this class. Most families derive from
    `LocationScale` or `GammaPower`, which fill in most of the methods.

    Attributes:
        symmetric: whether W − μ is symmetric about zero, which the propagations "mirrored" and "flipout" need.
        positive: whether the weight has a positive part v > 0. A prior on the positive numbers then speaks of v.
        relative: whether W − μ depends on μ.
        joint: whether the coordinates of one tensor depend on each other.
        sampled_exactly: whether `sampled`, where it returns something, draws from the exact law of the statistics.
    """

    symmetric: bool = True
    positive: bool = False
    relative: bool = False
    joint: bool = False
    sampled_exactly: bool = True

    @abstractmethod
    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the raw parameter ρ to start from, one number for each weight.

        Args:
            weights: the trained weights that become random.
            generator: the source of random numbers; None for the global one of torch.
        """

    @abstractmethod
    def spread(self, rho: Tensor) -> Tensor:
        """Return the constrained parameter, a scale σ > 0, of a raw one."""

    @abstractmethod
    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ for one tensor.

        Args:
            like: a tensor of the shape, dtype and device that the noise gets.
            samples: how many draws to stack along a new first axis; None for a single draw without that axis.
            generator: the source of random numbers; None for the global one of torch.
        """

    @abstractmethod
    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:
        """Return W − μ. The caller passes ``mean`` where the family is ``relative`` or ``joint``."""

    def sample(self, mean: Tensor, spread: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the weight W that a noise stands for, written to ``out`` if there is one."""
        return torch.add(mean, self.perturbation(spread, noise, mean), out=out)

    def draw(
        self, mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
    ) -> Tensor:
        """Draw a weight: `sample` of fresh `noise`.

        A family may override this method to go over memory fewer times.
        """
        return self.sample(mean, spread, self.noise(mean, None, generator), out)

    def draw_and_sums(
        self,
        mean: Tensor,  # noqa: ARG002
        rho: Tensor,  # noqa: ARG002
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor] | None:
        """Draw a weight and return it with (Σμ, Σμ², Σσ², Σ log σ), or None where the family cannot do both at once."""
        return None

    def pair(self, mean: Tensor, rho: Tensor, noise: Tensor) -> tuple[Tensor, Tensor] | None:  # noqa: ARG002
        """Return the weights of ξ and of −ξ, or None where the family cannot compute both at once."""
        return None

    def pairs(
        self,
        means: Sequence[Tensor],  # noqa: ARG002
        rhos: Sequence[Tensor],  # noqa: ARG002
        noise: Tensor,  # noqa: ARG002
    ) -> Sequence[Tensor] | None:
        """Return what `pair` does for many tensors at once, each pair stacked along a first axis, or None.

        Args:
            means: the means of each tensor.
            rhos: their raw scales, each shaped as its means.
            noise: ξ of all of them, one after the other, as one flat tensor.
        """
        return None

    def seed(self, mean: Tensor, rho: Tensor, generator: torch.Generator | None) -> int | None:  # noqa: ARG002
        """Draw a seed of which kernels make the noise of a tensor where they need it, or None where they cannot.

        It takes the place of `noise`, which would draw the same numbers.
        """
        return None

    @abstractmethod
    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:
        """Return Var(W). The caller passes ``mean`` where the family is ``relative`` or ``joint``."""

    def raw_variance(self, rho: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return Var(W) from the raw parameter in one sweep over memory, or None where the family has no such sweep."""
        return None

    @abstractmethod
    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """Return the law as a torch distribution, for densities, entropies and exact divergences."""

    @abstractmethod
    def form(self, mean: Tensor, spread: Tensor, part: bool) -> Form:
        """Return how the weight, or its positive part if ``part`` is true, is made of noise."""

    @abstractmethod
    def log_noise(self, noise: Tensor) -> Tensor:
        """Return log f(ξ) for each coordinate, or for each draw along the first axis where the family is ``joint``."""

    @abstractmethod
    def expected(self, term: Term, count: int) -> float:
        """Return E[term(ξ)] for one of ``count`` coordinates, which is infinite where it diverges."""

    def noise_mean(self) -> float:
        """Return E ξ of one coordinate."""
        return self.expected(power(1), 1)

    def has_moment(self, order: float) -> bool:  # noqa: ARG002
        """Return whether E|W|^order is finite."""
        return True

    @abstractmethod
    def noise_entropy(self, count: int) -> float:
        """Return −E[log f(ξ)] of ``count`` coordinates together."""

    def sampled(
        self,
        wanted: Set[Term],  # noqa: ARG002
        samples: int,  # noqa: ARG002
        like: Tensor,  # noqa: ARG002
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> Statistics | None:
        """Draw the means of terms of the noise over many draws, in one step, from the law of these means.

        Args:
            wanted: the terms.
            samples: the number M of draws that the means stand for.
            like: a tensor of the shape, dtype and device of the coordinates.
            generator: the source of random numbers; None for the global one of torch.

        Returns:
            The means, or None where their law is not known.
        """
        return None

    def integrated(
        self,
        wanted: Set[Term],  # noqa: ARG002
        samples: int,  # noqa: ARG002
        like: Tensor,  # noqa: ARG002
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> Statistics | None:
        """Draw a part of the noise of many draws, and return the expected means of terms given that part.

        Divergences and their gradients are linear in these means, so both stay unbiased, and by the theorem of Rao and
        Blackwell their variance does not grow. The arguments are those of `sampled`. A family whose noise has no part
        that is cheap to draw returns None.
        """
        return None

    def output_noise(self, variance: Tensor, axis: int, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw standardised noise for the outputs of a linear operation; only joint families need this method.

        The propagation "local" draws outputs in place of weights, so it asks a joint family how these are distributed.

        Args:
            variance: the variances of the outputs.
            axis: the axis of the features, each of which has weights of its own.
            count: how many coordinates of the weight are random.
            generator: the source of random numbers; None for the global one of torch.
        """
        raise NotImplementedError(f"{self} is joint and has no output_noise, which the propagation 'local' needs")

    def log_density(self, mean: Tensor, spread: Tensor, weight: Tensor) -> Tensor:
        """Return log q(w) for each coordinate; ``weight`` has a first axis of draws."""
        form = self.form(mean, spread, part=False)
        base = weight if form.sign is None else (form.sign * weight).log()
        located = base if form.location is None else base - form.location
        return self.change(form, base, self.log_noise(located / form.scale))

    def change(self, form: Form, base: Tensor, log_noise: Tensor) -> Tensor:
        """Return log f(ξ) − log|dx/dξ|, the change of variables from noise to x."""
        by_coordinate = -form.scale.log() - base if form.exponential else -form.scale.log()
        if not self.joint:
            return log_noise + by_coordinate
        return log_noise + by_coordinate.sum()

    def no_part(self) -> InputError:
        """Build the error of families on the whole line."""
        return InputError(f"{self} has no positive part")
