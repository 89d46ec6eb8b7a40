"""The Gamma posterior, w = μ + σ(ξ − k) with ξ ~ Gamma(k, 1)."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower
from leanbayes.posteriors.location_scale import check_positive

__all__ = ["Gamma"]


@dataclass(frozen=True)
class Gamma(GammaPower):
    """The weight is w = μ − kσ + v, where v is Gamma with shape k and scale σ (Nazarovs et al. 2021, Table 1).

    Args:
        init_scale: where σ starts; see `Normal`.
        shape: the shape k.

    >>> import torch
    >>> Gamma(shape=4.0).variance(torch.tensor(0.5))
    tensor(1.)
    """

    shape: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shape", self.shape)

    @property
    def gamma(self) -> tuple[float, float, float]:
        """The parameters of ξ = G with G ~ Gamma(k)."""
        return float(self.shape), 1.0, 1.0
