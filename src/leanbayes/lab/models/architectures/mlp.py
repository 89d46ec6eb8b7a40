"""A multi-layer perceptron for rows of features."""

from collections.abc import Sequence

from torch import nn

from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import require_positive

__all__ = ["mlp"]


def mlp(in_features: int, classes: int, width: int | Sequence[int] = 64, batch_norm: bool = False) -> nn.Sequential:
    """Build a multi-layer perceptron with ReLU. It flattens inputs that have several axes.

    Args:
        in_features: the number of values of one input.
        classes: the number of outputs.
        width: the number of units of the two hidden layers, or a sequence with one number for each hidden layer.
        batch_norm: whether batch norm follows each hidden layer.

    >>> import torch
    >>> mlp(in_features=4, classes=3)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    >>> mlp(in_features=4, classes=3, width=(300, 100))[3]
    Linear(in_features=300, out_features=100, bias=True)
    """
    widths = [width, width] if isinstance(width, int) else list(width)
    require_positive("mlp", in_features=in_features, classes=classes, width=min(widths, default=1))
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip([in_features, *widths], widths, strict=False):
        layers.append(nn.Linear(before, after))
        layers += [nn.BatchNorm1d(after), nn.ReLU()] if batch_norm else [nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([in_features, *widths][-1], classes))


MODELS = (Architecture("mlp", mlp),)
