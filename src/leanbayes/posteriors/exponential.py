"""The Exponential posterior, w = μ + σ(ξ − 1) with ξ ~ Exponential(1)."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower

__all__ = ["Exponential"]


@dataclass(frozen=True)
class Exponential(GammaPower):
    """The weight is w = μ − σ + v, where v is Exponential with mean σ (Nazarovs et al. 2021, Table 1).

    Args:
        init_scale: where σ starts; see `Normal`.

    >>> import torch
    >>> Exponential().variance(torch.tensor(0.5))
    tensor(0.2500)
    """

    @property
    def gamma(self) -> tuple[float, float, float]:
        """The parameters of ξ = G with G ~ Gamma(1)."""
        return 1.0, 1.0, 1.0
