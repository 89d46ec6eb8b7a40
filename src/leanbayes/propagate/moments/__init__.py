"""``moments``: mean and variance pass through the net together, in one pass and without samples (002, VDP++)."""

import torch
from torch import Tensor

from leanbayes._ops.safe_sqrt import draw_normal
from leanbayes.errors import MissingRule
from leanbayes.propagate.moments import rules
from leanbayes.propagate.moments.tensor import KERNELS, ORDERS, POSITIONS, RULES, MomentTensor, Setting

__all__ = [
    "KERNELS",
    "ORDERS",
    "POSITIONS",
    "RULES",
    "MissingRule",
    "MomentTensor",
    "Setting",
    "draw_moments",
    "rules",
]


def draw_moments(value: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One draw of a Gaussian with these moments, entry by entry; a plain tensor as it is."""
    return draw_normal(value.expected, value.variance, generator) if isinstance(value, MomentTensor) else value
