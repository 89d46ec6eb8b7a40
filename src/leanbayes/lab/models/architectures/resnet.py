"""ResNets (He et al. 2016) of 18 to 152 layers, pre-activated ResNets (He et al. 2016b), and a small one.

The parameters have the names that torchvision gives them.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import UnknownName
from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import Stem, at_depth, entry, he_initialise, require_positive

__all__ = [
    "BasicBlock", "Bottleneck", "PreActBlock", "ResNet", "Stem", "preact_resnet", "resnet", "resnet18", "resnet50",
    "small_resnet",
]  # fmt: skip

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut: y = relu(x' + bn(conv(relu(bn(conv(x)))))).

    The shortcut x' is x itself or, if the shape changes, a strided 1x1 convolution of x.

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
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        hidden = F.relu(self.bn1(self.conv1(x)))
        return F.relu(shortcut + self.bn2(self.conv2(hidden)))


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 beside a shortcut.

    The first two have a quarter of the channels, and the second has the stride.

    >>> import torch
    >>> Bottleneck(4, 8, stride=2)(torch.ones(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        inner = channels // 4
        self.conv1 = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        hidden = F.relu(self.bn1(self.conv1(x)))
        hidden = F.relu(self.bn2(self.conv2(hidden)))
        return F.relu(shortcut + self.bn3(self.conv3(hidden)))


class PreActBlock(nn.Module):
    """A block with batch norm and ReLU before each convolution: y = x' + conv(relu(bn(conv(relu(bn(x)))))).

    It has two 3x3 convolutions, or the three of a bottleneck. The shortcut x' is x itself or, if the shape changes, a
    strided 1x1 convolution of relu(bn(x)).

    >>> import torch
    >>> PreActBlock(4, 8, stride=2, bottleneck=True)(torch.ones(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1, bottleneck: bool = False) -> None:
        super().__init__()
        inner = channels // 4 if bottleneck else channels
        kernels, strides = ((1, 3, 1), (1, stride, 1)) if bottleneck else ((3, 3), (stride, 1))
        widths = [in_channels, *(inner for _ in kernels[1:]), channels]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[:-1])
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, kernel, s, padding=kernel // 2, bias=False)
            for a, b, kernel, s in zip(widths[:-1], widths[1:], kernels, strides, strict=True)
        )
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        hidden = shortcut = x
        for number, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            hidden = F.relu(norm(hidden))
            if number == 0 and self.shortcut is not None:
                shortcut = self.shortcut(hidden)
            hidden = conv(hidden)
        return shortcut + hidden


class ResNet(nn.Module):
    """A stem, four stages of blocks (64, 128, 256 and 512 channels), the mean over positions, and a linear head.

    From 50 layers on, the blocks are bottlenecks and have four times as many channels. One norm lies outside the
    blocks. It follows the stem or, if the blocks are pre-activated, the last stage (He et al. 2016b).
    """

    def __init__(
        self, num_classes: int, in_channels: int, stem: Stem, depth: int = 18, preactivated: bool = False
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise UnknownName.of("depth of a ResNet", depth, _BLOCKS)
        require_positive("ResNet", num_classes=num_classes, in_channels=in_channels)
        deep = depth >= 50
        block: Callable[[int, int, int], nn.Module] = Bottleneck if deep else BasicBlock
        if preactivated:
            block = partial(PreActBlock, bottleneck=deep)
        widths = [64, *(width * (4 if deep else 1) for width in (64, 128, 256, 512))]
        self.preactivated = preactivated
        self.conv1, self.maxpool = entry(stem, in_channels, 64)
        self.bn1 = nn.BatchNorm2d(widths[-1] if preactivated else 64)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(block, a, b, stride, blocks)
            for a, b, stride, blocks in zip(widths[:-1], widths[1:], (1, 2, 2, 2), _BLOCKS[depth], strict=True)
        )
        self.fc = nn.Linear(widths[-1], num_classes)
        he_initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, one row for each image."""
        x = self.conv1(x)
        x = self.maxpool(x if self.preactivated else F.relu(self.bn1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        if self.preactivated:
            x = F.relu(self.bn1(x))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet(depth: int, num_classes: int = 10, in_channels: int = 3, stem: Stem = "small") -> ResNet:
    """Build an untrained ResNet. With the stem "imagenet" it is that of torchvision.

    Args:
        depth: the number of layers: 18, 34, 50, 101 or 152.
        num_classes: the number of outputs.
        in_channels: the number of channels of the images.
        stem: how images enter. "small" and "cifar7" keep the size of the images, and "imagenet" divides each side by 4.
    """
    return ResNet(num_classes, in_channels, stem, depth)


def resnet18(num_classes: int = 10, in_channels: int = 3, stem: Stem = "small") -> ResNet:
    """Build an untrained ResNet-18; see `resnet`.

    >>> import torch
    >>> resnet18()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in resnet18(num_classes=1000, stem="imagenet").parameters())
    11689512
    """
    return resnet(18, num_classes, in_channels, stem)


def resnet50(num_classes: int = 10, in_channels: int = 3, stem: Stem = "small") -> ResNet:
    """Build an untrained ResNet-50; see `resnet`."""
    return resnet(50, num_classes, in_channels, stem)


def preact_resnet(depth: int, num_classes: int = 10, in_channels: int = 3, stem: Stem = "small") -> ResNet:
    """Build an untrained pre-activated ResNet of 18, 34, 50, 101 or 152 layers (Nazarovs et al. 2021, section 5).

    It has batch norm and ReLU after the last block, as in He et al. (2016b). The code of Nazarovs et al. 2021 leaves
    them out.

    >>> import torch
    >>> preact_resnet(18, in_channels=1)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return ResNet(num_classes, in_channels, stem, depth, preactivated=True)


def small_resnet(in_channels: int, classes: int, widths: Sequence[int] = (16, 16, 32, 64)) -> nn.Sequential:
    """Build a strided 3x3 convolution, max pooling, and a strided block for each of ``widths``.

    Sensitivity-guided subnetworks name four blocks with the widths 16, 32 and 64, but do not say which width comes
    twice. Here it is the first.

    >>> import torch
    >>> small_resnet(in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    require_positive("small_resnet", in_channels=in_channels, classes=classes)
    first = nn.Conv2d(in_channels, widths[0], 3, stride=2, padding=1, bias=False)
    blocks = [BasicBlock(a, b, stride=2) for a, b in zip([widths[0], *widths[:-1]], widths, strict=True)]
    model = nn.Sequential(
        first, nn.BatchNorm2d(widths[0]), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes),
    )  # fmt: skip
    he_initialise(model)
    return model


def _shortcut(in_channels: int, channels: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and in_channels == channels:
        return None
    return nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))


def _stage(
    block: Callable[[int, int, int], nn.Module], in_channels: int, channels: int, stride: int, blocks: int
) -> nn.Sequential:
    first = block(in_channels, channels, stride)
    return nn.Sequential(first, *(block(channels, channels, 1) for _ in range(1, blocks)))


MODELS = (
    *(Architecture(f"resnet{depth}", at_depth(resnet, depth)) for depth in (18, 34, 50, 101, 152)),
    *(Architecture(f"preact_resnet{depth}", at_depth(preact_resnet, depth)) for depth in (18, 34, 50, 101, 152)),
    Architecture("resnet18_cifar7", at_depth(resnet, 18, "cifar7")),
    Architecture("small_resnet", small_resnet),
)
