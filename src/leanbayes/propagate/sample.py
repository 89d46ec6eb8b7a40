"""`Sample`: one weight draw for the whole batch (Blundell et al. 2015; Abboud et al. 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leanbayes.propagate.propagation import Propagation, Weights

__all__ = ["Sample"]


@dataclass(frozen=True)
class Sample(Propagation):
    """One weight draw for the whole batch: every pass is an ordinary network.

    >>> Sample().name
    'sample'
    """

    name: ClassVar[str] = "sample"
    plain_draws: ClassVar[bool] = True
    works_on_pieces: ClassVar[bool] = True

    def stand_ins(
        self,
        weights: Weights,
        model: nn.Module,  # noqa: ARG002
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Draw plain tensors: w = μ + σξ at the random coordinates, μ elsewhere."""
        return {name: weight.draw(generator) for name, weight in weights.items()}
