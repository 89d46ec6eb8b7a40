"""VGG-16 (Simonyan and Zisserman 2015) and AlexNet (Krizhevsky et al. 2012) in the forms used for 32x32 images."""

from collections import OrderedDict

from torch import nn

from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import he_initialise, require_positive

__all__ = ["alexnet", "vgg16"]

_VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(in_channels: int, classes: int, hidden: int | None = None, batch_norm: bool = True) -> nn.Sequential:
    """Build thirteen 3x3 convolutions in five stages, each ended by max pooling, and a head.

    The head is one linear layer on the mean over positions, as is usual for 32x32 images; with ``hidden`` it is the
    original one: a grid of 7x7, and two layers of so many units with ReLU and dropout. The original has
    ``hidden=4096, batch_norm=False``, the code of Nazarovs et al. 2021 ``hidden=2048, batch_norm=False``. Odd sides are
    halved upwards, so that images of any size fit.

    >>> import torch
    >>> vgg16(in_channels=1, classes=10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    require_positive("vgg16", in_channels=in_channels, classes=classes, hidden=1 if hidden is None else hidden)
    features: list[nn.Module] = []
    for stage in _VGG16:
        for channels in stage:
            features.append(nn.Conv2d(in_channels, channels, 3, padding=1, bias=not batch_norm))
            features += [nn.BatchNorm2d(channels), nn.ReLU()] if batch_norm else [nn.ReLU()]
            in_channels = channels
        features.append(nn.MaxPool2d(2, ceil_mode=True))
    if hidden is None:
        grid, head = 1, nn.Sequential(nn.Linear(in_channels, classes))
    else:
        grid, head = 7, nn.Sequential(
            nn.Linear(in_channels * 49, hidden), nn.ReLU(), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, classes),
        )  # fmt: skip
    return _joined(features, grid, head)


def alexnet(in_channels: int, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Build five convolutions, three of them followed by max pooling, and one linear layer.

    The code of Nazarovs et al. 2021 has ``activation=nn.Softplus``. Odd sides are halved upwards: any size fits.

    >>> import torch
    >>> alexnet(in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    require_positive("alexnet", in_channels=in_channels, classes=classes)
    features = [
        nn.Conv2d(in_channels, 64, 11, stride=4, padding=5), activation(), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(64, 192, 5, padding=2), activation(), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(192, 384, 3, padding=1), activation(),
        nn.Conv2d(384, 256, 3, padding=1), activation(),
        nn.Conv2d(256, 128, 3, padding=1), activation(), nn.MaxPool2d(2, ceil_mode=True),
    ]  # fmt: skip
    return _joined(features, 1, nn.Linear(128, classes))


def _joined(features: list[nn.Module], grid: int, head: nn.Module) -> nn.Sequential:
    """The features averaged over a grid, and the head on it, under torchvision's names."""
    model = nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*features), avgpool=nn.AdaptiveAvgPool2d(grid), flatten=nn.Flatten(), classifier=head
        )
    )
    he_initialise(model, mode="fan_in")  # without norms the forward pass must keep its variance by itself
    return model


MODELS = (Architecture("alexnet", alexnet), Architecture("vgg16", vgg16))
