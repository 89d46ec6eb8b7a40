"""What the tests of several priors share."""

import torch
from torch import Tensor

from leanbayes.posteriors import Normal, RandomWeight


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def some_weight(index: list[int] | None = None, seed: int = 0) -> RandomWeight:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(3, 4, dtype=torch.float64, generator=generator) * 0.7
    size = mean.shape if index is None else (len(index),)
    scale = torch.rand(size, dtype=torch.float64, generator=generator) + 0.05
    return RandomWeight("w", mean, None if index is None else torch.tensor(index), scale, Normal())
