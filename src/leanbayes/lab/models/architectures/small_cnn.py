"""A small convolutional network for images of any size from 8x8."""

from torch import nn

from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import require_positive, require_size

__all__ = ["small_cnn"]


def small_cnn(in_channels: int, classes: int, size: tuple[int, int] = (8, 8)) -> nn.Sequential:
    """Build two blocks of convolution, batch norm, ReLU and pooling, followed by two linear layers.

    The outputs of the blocks are averaged over a grid, so that images of any size from 8x8 fit. The grid is 2x2 for
    images of 8x8, and at most 4x4.

    >>> import torch
    >>> small_cnn(in_channels=3, classes=5, size=(30, 45))(torch.zeros(2, 3, 30, 45)).shape
    torch.Size([2, 5])
    """
    require_positive("small_cnn", in_channels=in_channels, classes=classes)
    require_size("small_cnn", size, 8, "use mlp")
    grid = min(4, min(size) // 4)
    return nn.Sequential(
        nn.Conv2d(in_channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(grid), nn.Flatten(), nn.Linear(64 * grid * grid, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


MODELS = (Architecture("small_cnn", small_cnn),)
