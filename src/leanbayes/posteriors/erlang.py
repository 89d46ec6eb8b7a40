"""The Erlang posterior, a Gamma posterior whose shape is a whole number."""

from dataclasses import dataclass

from leanbayes.errors import InputError
from leanbayes.posteriors.gamma_power import GammaPower

__all__ = ["Erlang"]


@dataclass(frozen=True)
class Erlang(GammaPower):
    """The weight is w = μ − kσ + v, where v is the sum of k Exponentials of mean σ (Nazarovs et al. 2021, Table 1).

    Args:
        init_scale: where σ starts; see `Normal`.
        shape: the number k of Exponentials.

    >>> import torch
    >>> Erlang(shape=2).variance(torch.tensor(0.5))
    tensor(0.5000)
    """

    shape: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.shape, int) or self.shape < 1:
            raise InputError(
                f"Erlang needs a whole shape of at least 1, got {self.shape!r}; use Gamma for other shapes"
            )

    @property
    def gamma(self) -> tuple[float, float, float]:
        """The parameters of ξ = G with G ~ Gamma(k)."""
        return float(self.shape), 1.0, 1.0
