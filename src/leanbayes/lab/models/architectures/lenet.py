"""LeNet-5 (LeCun et al. 1998) and LeNet 300-100, the multi-layer perceptron of the same paper."""

from torch import nn

from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.mlp import mlp
from leanbayes.lab.models.architectures.parts import require_positive, require_size

__all__ = ["lenet5", "lenet300"]


def lenet5(in_channels: int, classes: int, size: tuple[int, int] = (28, 28)) -> nn.Sequential:
    """Build two 5x5 convolutions with ReLU and max pooling, and linear layers of 120, 84 and ``classes`` units.

    The original takes images of 32x32. Smaller images get a border of 2 pixels, so that 28x28 becomes 32x32.

    >>> import torch
    >>> sum(p.numel() for p in lenet5(in_channels=1, classes=10).parameters())
    61706
    """
    require_positive("lenet5", in_channels=in_channels, classes=classes)
    require_size("lenet5", size, 12, "use small_cnn")
    border = 2 if min(size) < 32 else 0
    height, width = (((side + 2 * border - 4) // 2 - 4) // 2 for side in size)
    return nn.Sequential(
        nn.Conv2d(in_channels, 6, 5, padding=border), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * height * width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


def lenet300(in_features: int, classes: int) -> nn.Sequential:
    """Build LeNet 300-100 with batch norm, as sensitivity-guided subnetworks train it (appendix H.2.1).

    Without batch norm it is ``mlp(in_features, classes, width=(300, 100))``.

    >>> lenet300(in_features=784, classes=10)[1]
    Linear(in_features=784, out_features=300, bias=True)
    """
    return mlp(in_features, classes, width=(300, 100), batch_norm=True)


MODELS = (Architecture("lenet5", lenet5), Architecture("lenet300", lenet300))
