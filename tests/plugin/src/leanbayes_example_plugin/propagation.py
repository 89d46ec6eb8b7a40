"""A propagation: every pass uses the means."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leanbayes.propagate import Propagation
from leanbayes.propagate.propagation import Weights


@dataclass(frozen=True)
class AtTheMean(Propagation):
    """Every pass uses the means of the weights."""

    name: ClassVar[str] = "at_the_mean"

    def stand_ins(self, weights: Weights, model: nn.Module, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {name: weight.mean for name, weight in weights.items()}
