"""ResNet-18 (He et al. 2016), with torchvision's parameter names and a stem for small or large images."""

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import UnknownName

__all__ = ["BasicBlock", "ResNet", "Stem", "resnet18"]

Stem = Literal["small", "cifar7", "imagenet"]
"""3x3 with stride 1; 7x7 with stride 1 (001, H.3.2); 7x7 with stride 2 and max pooling. The first two do not pool."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut: y = relu(x' + bn(conv(relu(bn(conv(x)))))).

    x' is x itself, or a strided 1x1 convolution of it where the shape changes.

    >>> import torch
    >>> BasicBlock(4, 8, stride=2)(torch.ones(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != channels:
            shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        hidden = F.relu(self.bn1(self.conv1(x)))
        return F.relu(shortcut + self.bn2(self.conv2(hidden)))


class ResNet(nn.Module):
    """A stem, four stages of two blocks (64, 128, 256 and 512 channels), the mean over positions, a linear head."""

    def __init__(self, num_classes: int, in_channels: int, stem: Stem) -> None:
        super().__init__()
        if stem not in get_args(Stem):
            raise UnknownName.of("stem", stem, get_args(Stem))
        kernel, stride = (3, 1) if stem == "small" else (7, 2 if stem == "imagenet" else 1)
        self.conv1 = nn.Conv2d(in_channels, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, one row an image."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet18(num_classes: int = 10, in_channels: int = 3, stem: Stem = "small") -> ResNet:
    """Build an untrained ResNet-18, its parameters named as torchvision's and, but for a small stem, shaped so.

    ``stem`` says how images enter: "small" and "cifar7" keep 32x32 images large, "imagenet" divides each side by 4.

    >>> import torch
    >>> resnet18()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in resnet18(num_classes=1000, stem="imagenet").parameters())
    11689512
    """
    return ResNet(num_classes, in_channels, stem)


def _stage(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(in_channels, channels, stride), BasicBlock(channels, channels))
