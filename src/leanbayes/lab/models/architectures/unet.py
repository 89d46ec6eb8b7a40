"""A small U-Net (Ronneberger et al. 2015) for segmentation, with batch norm and bilinear up-sampling."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import double_convolution, require_positive

__all__ = ["UNet", "unet"]


class UNet(nn.Module):
    """Double convolutions whose images are halved ``depth`` times and then doubled as often.

    On the way up, each level also receives the outputs of the same level on the way down. Images whose sides are no
    multiples of 2^depth are padded with zeros, and the outputs are cut to the size of the images.
    """

    def __init__(self, in_channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.multiple = 2**depth
        down = zip([in_channels, *widths[:-1]], widths, strict=True)
        up = zip(widths[:0:-1], widths[-2::-1], strict=True)
        self.down = nn.ModuleList(double_convolution(a, b) for a, b in down)
        self.up = nn.ModuleList(double_convolution(a + b, b) for a, b in up)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, classes, H, W) of images (N, channels, H, W)."""
        height, width = x.shape[-2:]
        x = F.pad(x, (0, -width % self.multiple, 0, -height % self.multiple))
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = block(torch.cat([skip, x], dim=1))
        logits: Tensor = self.head(x)
        return logits[..., :height, :width]


def unet(in_channels: int, classes: int, width: int = 16, depth: int = 3) -> UNet:
    """Build an untrained U-Net for images of any size.

    Args:
        in_channels: the number of channels of the images.
        classes: the number of classes of a pixel.
        width: the number of channels at the first level. Each halving doubles them.
        depth: how often the images are halved. Sensitivity-guided subnetworks (appendix H.4) use ``width=64`` and
            ``depth=4``, which gives 64, 128, 256, 512 and 1024 channels.

    >>> unet(in_channels=3, classes=2)(torch.zeros(1, 3, 20, 33)).shape
    torch.Size([1, 2, 20, 33])
    """
    require_positive("unet", in_channels=in_channels, classes=classes, width=width)
    return UNet(in_channels, classes, width, depth)


MODELS = (Architecture("unet", unet), Architecture("unet64", partial(unet, width=64, depth=4)))
