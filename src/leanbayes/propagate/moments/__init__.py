"""``moments``: mean and variance pass through the network together, in one pass and without samples (VDP++).

The package has two storeys. In the upper one, rules say what an operation does to mean and variance (`kinds` and
`rules`). In the lower one, a single object says what becomes of the noise that positions, neighbours and units have in
common (`correlations`). A convolution passes through `tensor`, `kinds`, `rules.linear` and `correlations`.
"""

import torch
from torch import Tensor

from leanbayes._ops.safe_sqrt import draw_normal
from leanbayes.errors import MissingRule
from leanbayes.propagate.moments import rules
from leanbayes.propagate.moments.correlations import Correlations
from leanbayes.propagate.moments.kinds import RULES
from leanbayes.propagate.moments.tensor import KERNELS, ORDERS, POSITIONS, MomentTensor, Setting

__all__ = [
    "KERNELS",
    "ORDERS",
    "POSITIONS",
    "RULES",
    "Correlations",
    "MissingRule",
    "MomentTensor",
    "Setting",
    "draw_moments",
    "rules",
]


def draw_moments(value: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return one draw of independent Gaussian numbers with these moments, and a plain tensor unchanged."""
    return draw_normal(value.expected, value.variance, generator) if isinstance(value, MomentTensor) else value
