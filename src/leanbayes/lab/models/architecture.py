"""An architecture that users ask for by name."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

__all__ = ["Architecture"]


@dataclass(frozen=True)
class Architecture:
    """A name and a function that builds the network.

    Args:
        name: the name by which users ask for it, such as "resnet18".
        build: builds an untrained network. It is called with those arguments that its signature names: for images
            ``in_channels`` and ``size`` (height, width); ``in_features``, which counts all numbers of one input; and
            ``classes`` or ``num_classes``, which is how many outputs are needed.
    """

    name: str
    build: Callable[..., nn.Module]
