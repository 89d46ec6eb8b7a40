"""``sample``: one weight draw for the whole batch (Blundell et al. 2015; 000 and 001)."""

import torch
from torch import Tensor

from leanbayes.posteriors import RandomWeight

__all__ = ["stand_in"]


def stand_in(weight: RandomWeight, generator: torch.Generator | None) -> Tensor:
    """A plain tensor: w = μ + σξ at the random coordinates, μ elsewhere."""
    return weight.draw(generator)
