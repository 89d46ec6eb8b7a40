"""The Rayleigh posterior: w = μ + σ(ξ − √(π/2)), ξ the length of a two-dimensional Normal vector."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower

__all__ = ["Rayleigh"]


@dataclass(frozen=True)
class Rayleigh(GammaPower):
    """w = μ − σ√(π/2) + v with v ~ Rayleigh(σ) (003, Table 1, scaling).

    >>> import torch
    >>> Rayleigh().variance(torch.tensor(1.0))
    tensor(0.4292)
    """

    @property
    def gamma(self) -> tuple[float, float, float]:
        """ξ = √(2G), G ~ Gamma(1)."""
        return 1.0, 2.0, 2.0
