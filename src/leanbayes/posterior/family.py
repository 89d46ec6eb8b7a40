"""What a posterior family must say of itself: its parameters, its noise, how noise becomes a weight."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.distributions import Distribution

__all__ = ["Family"]


class Family(ABC):
    """A distribution for random coordinates, w = W(μ, spread, ξ) with parameter-free noise ξ.

    Each random tensor holds one raw parameter beside its mean (called ``rho``), as many numbers as it has random
    coordinates. Everything else of the engine (storage, drawing, KL, propagation) follows from these methods.
    The noise must be symmetric about zero for ``propagate="flipout"``; ``symmetric`` says whether it is.
    """

    symmetric: bool = True

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
    def perturbation(self, spread: Tensor, noise: Tensor) -> Tensor:
        """W − μ."""

    def sample(self, mean: Tensor, spread: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """W, written to ``out`` where that is given."""
        return torch.add(mean, self.perturbation(spread, noise), out=out)

    def draw(
        self, mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
    ) -> Tensor:
        """W for fresh noise: as ``sample`` of ``noise``, in fewer sweeps where a family knows how."""
        return self.sample(mean, spread, self.noise(spread, None, generator), out)

    def draw_and_sums(
        self,
        mean: Tensor,  # noqa: ARG002
        rho: Tensor,  # noqa: ARG002
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor] | None:
        """W and (Σμ, Σμ², Σσ², Σ log σ) in one sweep, where a family knows how."""
        return None

    @abstractmethod
    def variance(self, spread: Tensor) -> Tensor:
        """Var(W)."""

    @abstractmethod
    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """The same law as a torch distribution, for densities, entropies and exact divergences."""
