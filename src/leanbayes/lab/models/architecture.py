"""The record of an architecture that users ask for by name."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

__all__ = ["Architecture"]


@dataclass(frozen=True)
class Architecture:
    """A name and a function that builds the network.

    Args:
        name: the name by which users ask for it, such as "resnet18".
        build: a function that builds an untrained network. It receives those of the following arguments that its
            signature names: ``in_channels`` and ``size`` (height, width) of images; ``in_features``, the number of all
            values of one input; and ``classes`` or ``num_classes``, the number of outputs.
    """

    name: str
    build: Callable[..., nn.Module]
