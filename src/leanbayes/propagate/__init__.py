"""HOW randomness passes through the net: draws, mirrored draws, local reparameterization, flipout, moments and more."""

from collections.abc import Callable

import torch
from torch import Tensor

from leanbayes.posteriors import RandomWeight
from leanbayes.propagate import covariance, flipout, local, mirrored, moments, sample
from leanbayes.propagate.registry import Registry

StandInMaker = Callable[[RandomWeight, torch.Generator | None], Tensor]

PROPAGATIONS: dict[str, StandInMaker] = {
    "sample": sample.stand_in,
    "local": local.stand_in,
    "mirrored": mirrored.stand_in,
    "flipout": flipout.stand_in,
    "moments": moments.stand_in,
    "covariance": covariance.stand_in,
}

__all__ = ["PROPAGATIONS", "Registry", "StandInMaker"]
