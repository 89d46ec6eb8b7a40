"""A multi-layer perceptron for rows of features."""

from torch import nn

__all__ = ["mlp"]


def mlp(in_features: int, classes: int, width: int = 64) -> nn.Sequential:
    """Build two hidden layers of ``width`` units with ReLU; inputs of more axes are flattened.

    >>> import torch
    >>> mlp(in_features=4, classes=3)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
