"""The Inverse-Gamma posterior: w = μ + σ(ξ − 1/(k−1)), 1/ξ ~ Gamma(k, 1)."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower
from leanbayes.posteriors.location_scale import check_positive

__all__ = ["InverseGamma"]


@dataclass(frozen=True)
class InverseGamma(GammaPower):
    """w = μ − σ/(k−1) + v with v ~ Inverse-Gamma of shape k and scale σ (003, Table 1, scaling).

    Its tails are those of v^−(k+1): a mean needs k > 1, a variance k > 2, a finite KL to a Normal prior k > 2.

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
        """ξ = 1/G, G ~ Gamma(k)."""
        return float(self.shape), 1.0, -1.0

    def has_moment(self, order: float) -> bool:
        """Only below k."""
        return order < self.shape
