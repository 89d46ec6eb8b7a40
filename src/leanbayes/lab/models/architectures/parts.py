"""Parts that architectures share: how images enter, double convolutions, initial weights and checks."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torch import nn

from leanbayes.errors import InputError, UnknownName

__all__ = ["LARGE", "Stem", "double_convolution", "entry", "he_initialise", "require_positive", "require_size"]

Stem = Literal["small", "cifar7", "imagenet"]
"""How images enter a network.

"small" is a 3x3 convolution with stride 1, "cifar7" a 7x7 convolution with stride 1 (sensitivity-guided subnetworks,
appendix H.3.2), and "imagenet" a 7x7 convolution with stride 2, followed by max pooling.
"""

LARGE = 64
"""Images whose sides are longer than this enter by the stem "imagenet" by default."""

_CONVOLUTIONS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_NORMS: dict[int, type[nn.BatchNorm2d] | type[nn.BatchNorm3d]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def entry(stem: Stem, in_channels: int, channels: int) -> tuple[nn.Conv2d, nn.Module]:
    """Build the first convolution and the pooling that follows its norm. Only the stem "imagenet" pools.

    >>> entry("imagenet", 3, 64)[0]
    Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)
    """
    if stem not in get_args(Stem):
        raise UnknownName.of("stem", stem, get_args(Stem))
    kernel, stride = (3, 1) if stem == "small" else (7, 2 if stem == "imagenet" else 1)
    convolution = nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()


def double_convolution(in_channels: int, channels: int, stride: int = 1, rank: int = 2) -> nn.Sequential:
    """Build a convolution of 3 pixels along each axis, batch norm and ReLU, and all of them a second time.

    Args:
        in_channels: the number of channels that enter.
        channels: the number of channels after each convolution.
        stride: the stride of the first convolution.
        rank: 2 for images, 3 for volumes.

    >>> import torch
    >>> double_convolution(1, 4, stride=2, rank=3)(torch.zeros(2, 1, 6, 6, 8)).shape
    torch.Size([2, 4, 3, 3, 4])
    """
    convolution, norm = _CONVOLUTIONS[rank], _NORMS[rank]
    return nn.Sequential(
        convolution(in_channels, channels, 3, stride, padding=1, bias=False), norm(channels), nn.ReLU(),
        convolution(channels, channels, 3, padding=1, bias=False), norm(channels), nn.ReLU(),
    )  # fmt: skip


def he_initialise(model: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw the weights of convolutions from N(0, 2/fan), so that ReLU keeps the variance. Biases become zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def require_positive(model: str, **numbers: int) -> None:
    """Raise an error for the first of ``numbers`` that is no whole number of at least 1."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"{model}: {name} must be a whole number, 1 or more, got {number!r}")


def require_size(model: str, size: Sequence[int], smallest: int, instead: str) -> None:
    """Raise an error if ``size`` is no (height, width), or has a side below ``smallest``."""
    if len(size) != 2:
        raise InputError(f"{model} needs the size of images as (height, width), got {tuple(size)}")
    if min(size) < smallest:
        raise InputError(
            f"{model} needs images of {smallest}x{smallest} or more, got {size[0]}x{size[1]}; resize them or {instead}"
        )


def at_depth(make: Callable[..., nn.Module], depth: int, stem: Stem | None = None) -> Callable[..., nn.Module]:
    """Return a function that builds networks of one depth, with the arguments that data give.

    Args:
        make: builds a network of any depth, with any stem.
        depth: the depth.
        stem: the stem. By default it is "imagenet" for large images, which divides their sides by 4, and else "small".
    """

    def build(in_channels: int, classes: int, size: tuple[int, int] = (32, 32)) -> nn.Module:
        fitting = "imagenet" if min(size) > LARGE else "small"
        return make(depth, num_classes=classes, in_channels=in_channels, stem=stem or fitting)

    return build
