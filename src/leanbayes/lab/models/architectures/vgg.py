"""VGG-16 (Simonyan and Zisserman 2015) and AlexNet (Krizhevsky et al. 2012) in their usual forms for 32x32 images."""

from collections import OrderedDict

from torch import nn

from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import he_initialise, require_positive

__all__ = ["alexnet", "vgg16"]

_VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(in_channels: int, classes: int, hidden: int | None = None, batch_norm: bool = True) -> nn.Sequential:
    """Build VGG-16: thirteen 3x3 convolutions in five stages, each of which ends with max pooling, and a head.

    Sides of odd length are rounded up when they are halved, so that images of any size fit. The original network has
    ``hidden=4096, batch_norm=False``. The code of Nazarovs et al. 2021 has ``hidden=2048, batch_norm=False``.

    Args:
        in_channels: the number of channels of the images.
        classes: the number of outputs.
        hidden: the number of units of the two hidden layers of the original head, which sees a grid of 7x7 and has
            dropout. By default the head is one linear layer on the mean over positions, as is usual for 32x32 images.
        batch_norm: whether batch norm follows each convolution.

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
    """Build AlexNet: five convolutions, three of them followed by max pooling, and one linear layer.

    Sides of odd length are rounded up when they are halved, so that images of any size fit. The layers are those in the
    code of Nazarovs et al. 2021, which has ``activation=nn.Softplus``.

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
    """Join the features, their mean over a grid and the head, under the names that torchvision gives them."""
    model = nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*features), avgpool=nn.AdaptiveAvgPool2d(grid), flatten=nn.Flatten(), classifier=head
        )
    )
    he_initialise(model, mode="fan_in")  # without norms, the weights must keep the variance in the forward pass
    return model


MODELS = (Architecture("alexnet", alexnet), Architecture("vgg16", vgg16))
