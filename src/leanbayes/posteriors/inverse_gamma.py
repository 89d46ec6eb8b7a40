"""The Inverse-Gamma posterior, w = μ + σ(ξ − 1/(k−1)) with 1/ξ ~ Gamma(k, 1)."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower
from leanbayes.posteriors.location_scale import check_positive

__all__ = ["InverseGamma"]


@dataclass(frozen=True)
class InverseGamma(GammaPower):
    """The weight is w = μ − σ/(k−1) + v, where v is Inverse-Gamma (Nazarovs et al. 2021, Table 1).

    The Inverse-Gamma has shape k and scale σ. Its density falls as v^−(k+1), so the mean exists for k > 1, and the
    variance and a finite KL to a Normal prior exist for k > 2.

    Args:
        init_scale: where σ starts; see `Normal`.
        shape: the shape k, above 1.

    >>> import torch
    >>> InverseGamma(shape=3.0).variance(torch.tensor(2.0))
    tensor(1.)
    """

    shape: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shape", self.shape, above=1)

    @property
    def gamma(self) -> tuple[float, float, float]:
        """The parameters of ξ = 1/G with G ~ Gamma(k)."""
        return float(self.shape), 1.0, -1.0

    def has_moment(self, order: float) -> bool:
        """Moments exist for orders below k."""
        return order < self.shape
