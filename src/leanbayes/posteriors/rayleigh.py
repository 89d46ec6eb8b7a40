"""The Rayleigh posterior, w = μ + σ(ξ − √(π/2)), where ξ is the length of a two-dimensional Normal vector."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower

__all__ = ["Rayleigh"]


@dataclass(frozen=True)
class Rayleigh(GammaPower):
    """The weight is w = μ − σ√(π/2) + v with v ~ Rayleigh(σ) (Nazarovs et al. 2021, Table 1).

    Args:
        init_scale: where σ starts; see `Normal`.

    >>> import torch
    >>> Rayleigh().variance(torch.tensor(1.0))
    tensor(0.4292)
    """

    @property
    def gamma(self) -> tuple[float, float, float]:
        """The parameters of ξ = √(2G) with G ~ Gamma(1)."""
        return 1.0, 2.0, 2.0
