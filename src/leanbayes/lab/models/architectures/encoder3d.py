"""The encoder of a 3D U-Net as a classifier of volumes (Nazarovs et al. 2021, figure 9)."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import double_convolution, he_initialise, require_positive

__all__ = ["Encoder3d", "encoder3d"]

_STRIDES = (1, 1, 1, 3, 3)
_POOLS = (3, 2, 2, 2)


class Encoder3d(nn.Module):
    """Five double convolutions with max pooling between them, the mean over positions, and a linear head.

    The last two double convolutions have a stride of 3 in their first convolution. With these strides a volume of
    105x127x105, which the paper uses, ends as one position, as its figure 9 shows. A pooling window is never larger
    than the side that is left along an axis.
    """

    def __init__(self, in_channels: int, classes: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            double_convolution(a, b, stride, rank=3)
            for a, b, stride in zip([in_channels, *widths[:-1]], widths, _STRIDES, strict=True)
        )
        self.head = nn.Linear(widths[-1], classes)
        he_initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of volumes (N, channels, D, H, W)."""
        if x.ndim != 5:
            raise ShapeMismatch(f"encoder3d takes volumes (N, channels, D, H, W), got shape {tuple(x.shape)}")
        for pool, block in zip((1, *_POOLS), self.blocks, strict=True):
            x = block(x if pool == 1 else F.max_pool3d(x, [min(pool, side) for side in x.shape[2:]]))
        logits: Tensor = self.head(x.mean((2, 3, 4)))
        return logits


def encoder3d(
    in_channels: int,
    classes: int,
    size: Sequence[int] | None = None,
    widths: Sequence[int] = (16, 32, 64, 128, 256),
) -> Encoder3d:
    """Build an untrained encoder for volumes.

    Args:
        in_channels: the number of channels of a volume.
        classes: the number of outputs.
        size: (depth, height, width) of the volumes; any size fits.
        widths: the number of channels at each of the five levels.

    >>> import torch
    >>> encoder3d(in_channels=1, classes=2, widths=(2, 2, 4, 4, 8))(torch.zeros(2, 1, 28, 28, 28)).shape
    torch.Size([2, 2])
    """
    require_positive("encoder3d", in_channels=in_channels, classes=classes, width=min(widths, default=1))
    if len(widths) != len(_STRIDES):
        raise InputError(f"encoder3d has {len(_STRIDES)} levels and needs as many widths, got {tuple(widths)}")
    if size is not None and len(size) != 3:
        raise InputError(f"encoder3d takes volumes (depth, height, width), got the size {tuple(size)}; use small_cnn")
    return Encoder3d(in_channels, classes, widths)


MODELS = (Architecture("encoder3d", encoder3d),)
