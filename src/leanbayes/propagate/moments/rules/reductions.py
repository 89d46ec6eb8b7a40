"""Sums and means over axes."""

import torch
from torch import Tensor

from leanbayes.propagate.moments.kinds import RULES

__all__: list[str] = []

RULES.reducing(
    *(torch.sum, Tensor.sum),
    means=(torch.mean, Tensor.mean),
    assumes="independent entries, except for what positions share",
)
