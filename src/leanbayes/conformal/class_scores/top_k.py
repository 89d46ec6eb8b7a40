"""The rank of a class, whose sets all have one size (Angelopoulos et al. 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leanbayes.conformal.class_scores.score import ClassScore

__all__ = ["TopK", "ranks"]


@dataclass(frozen=True)
class TopK(ClassScore):
    """The rank of the class: 1 for the most probable one. Every set then holds equally many classes."""

    name: ClassVar[str] = "top_k"
    needs_noise: ClassVar[bool] = False

    def scores(self, probabilities: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Return the rank."""
        return ranks(probabilities)


def ranks(probabilities: Tensor) -> Tensor:
    """Return the rank of each class, from 1; of equally probable classes the first comes first.

    >>> ranks(torch.tensor([[0.2, 0.5, 0.3]]))
    tensor([[3., 1., 2.]])
    """
    order = probabilities.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, probabilities.shape[1] + 1, dtype=probabilities.dtype, device=probabilities.device)
    return torch.empty_like(probabilities).scatter_(1, order, places.expand_as(probabilities))
