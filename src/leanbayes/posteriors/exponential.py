"""The Exponential posterior: w = μ + σ(ξ − 1), ξ ~ Exponential(1)."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower

__all__ = ["Exponential"]


@dataclass(frozen=True)
class Exponential(GammaPower):
    """w = μ − σ + v with v ~ Exponential of mean σ (003, Table 1, scaling).

    >>> import torch
    >>> Exponential().variance(torch.tensor(0.5))
    tensor(0.2500)
    """

    @property
    def gamma(self) -> tuple[float, float, float]:
        """ξ = G, G ~ Gamma(1)."""
        return 1.0, 1.0, 1.0
