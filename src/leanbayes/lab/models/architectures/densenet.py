"""DenseNet-BC (Huang et al. 2017) of 121 to 201 layers, with torchvision's parameter names."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import UnknownName
from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import Stem, at_depth, entry, he_initialise, require_positive

__all__ = ["DenseLayer", "DenseNet", "densenet"]

_PLANS = {
    121: (32, (6, 12, 24, 16)),
    161: (48, (6, 12, 36, 24)),
    169: (32, (6, 12, 32, 32)),
    201: (32, (6, 12, 48, 32)),
}


class DenseLayer(nn.Module):
    """A 1x1 and a 3x3 convolution, each after batch norm and ReLU, whose outputs are appended to the inputs.

    >>> DenseLayer(5, growth=3)(torch.zeros(1, 5, 4, 4)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels of x, followed by ``growth`` new channels."""
        hidden = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(hidden)))], dim=1)


class DenseNet(nn.Module):
    """A stem with 2k channels and four blocks whose layers add k channels each.

    Between two blocks, a transition halves the number of channels and the height and width.
    """

    def __init__(self, depth: int, num_classes: int, in_channels: int, stem: Stem) -> None:
        super().__init__()
        if depth not in _PLANS:
            raise UnknownName.of("depth of a DenseNet", depth, _PLANS)
        require_positive("DenseNet", num_classes=num_classes, in_channels=in_channels)
        growth, blocks = _PLANS[depth]
        channels = 2 * growth
        conv0, pool0 = entry(stem, in_channels, channels)
        features = OrderedDict[str, nn.Module](conv0=conv0)
        if stem == "imagenet":
            features |= {"norm0": nn.BatchNorm2d(channels), "relu0": nn.ReLU(), "pool0": pool0}
        for number, layers in enumerate(blocks, start=1):
            block = [(f"denselayer{i + 1}", DenseLayer(channels + i * growth, growth)) for i in range(layers)]
            features[f"denseblock{number}"] = nn.Sequential(OrderedDict(block))
            channels += layers * growth
            if number < len(blocks):
                features[f"transition{number}"] = _transition(channels)
                channels //= 2
        features["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(features)
        self.classifier = nn.Linear(channels, num_classes)
        he_initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, one row for each image."""
        logits: Tensor = self.classifier(F.relu(self.features(x)).mean((2, 3)))
        return logits


def densenet(depth: int, num_classes: int = 10, in_channels: int = 3, stem: Stem = "small") -> DenseNet:
    """Build an untrained DenseNet as Nazarovs et al. 2021 use it (section 5).

    Sides of odd length are rounded up when they are halved, so that images of any size fit.

    Args:
        depth: the number of layers: 121, 161, 169 or 201.
        num_classes: the number of outputs.
        in_channels: the number of channels of the images.
        stem: how images enter, as for ResNets. "small" has no norm, as in the experiments of Huang et al. 2017 on
            CIFAR. The code of Nazarovs et al. 2021 uses "imagenet" for images of 32x32 too, which costs a sixteenth.

    >>> densenet(121)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    return DenseNet(depth, num_classes, in_channels, stem)


def _transition(channels: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(channels),
            relu=nn.ReLU(),
            conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
            pool=nn.AvgPool2d(2, ceil_mode=True),
        )
    )


MODELS = tuple(Architecture(f"densenet{depth}", at_depth(densenet, depth)) for depth in (121, 161, 169, 201))
