"""The Weibull posterior, w = μ + σ(ξ − Γ(1 + 1/k)) with ξ^k ~ Exponential(1)."""

from dataclasses import dataclass

from leanbayes.posteriors.gamma_power import GammaPower
from leanbayes.posteriors.location_scale import check_positive

__all__ = ["Weibull"]


@dataclass(frozen=True)
class Weibull(GammaPower):
    """The weight is w = μ − σΓ(1 + 1/k) + v, where v is Weibull (Nazarovs et al. 2021, Table 1).

    The Weibull has shape k and scale σ.

    Args:
        init_scale: where σ starts; see `Normal`.
        shape: the shape k.

    >>> import torch
    >>> Weibull(shape=1.0).variance(torch.tensor(0.5))
    tensor(0.2500)
    """

    shape: float = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shape", self.shape)

    @property
    def gamma(self) -> tuple[float, float, float]:
        """The parameters of ξ = G^{1/k} with G ~ Gamma(1)."""
        return 1.0, 1.0, float(self.shape)
