"""A posterior family: w = μ + σξ with ξ uniform on [−1, 1]."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors import LocationScale, Term


@dataclass(frozen=True)
class Uniform(LocationScale):
    """The weight is uniform on [μ − σ, μ + σ]."""

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        shape = like.shape if samples is None else (samples, *like.shape)
        return 2 * torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator) - 1

    def log_noise(self, noise: Tensor) -> Tensor:
        return torch.full_like(noise, -math.log(2))

    def expected(self, term: Term, count: int) -> float:
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        return 0.0 if k % 2 else 1 / (k + 1)

    def noise_entropy(self, count: int) -> float:
        return math.log(2) * count
