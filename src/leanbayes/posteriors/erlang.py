"""The Erlang posterior: a Gamma posterior with a whole shape, the sum of k Exponentials."""

from dataclasses import dataclass

from leanbayes.errors import InputError
from leanbayes.posteriors.gamma_power import GammaPower

__all__ = ["Erlang"]


@dataclass(frozen=True)
class Erlang(GammaPower):
    """w = μ − kσ + v with v the sum of k Exponentials of mean σ (003, Table 1, scaling).

    >>> import torch
    >>> Erlang(shape=2).variance(torch.tensor(0.5))
    tensor(0.5000)
    """

    shape: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.shape, int) or self.shape < 1:
            raise InputError(f"Erlang needs a whole shape of at least 1, got {self.shape!r}; for others there is Gamma")

    @property
    def gamma(self) -> tuple[float, float, float]:
        """ξ = G, G ~ Gamma(k)."""
        return float(self.shape), 1.0, 1.0
