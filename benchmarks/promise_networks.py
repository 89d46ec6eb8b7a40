"""Networks that benchmarks train and the library does not have, and images that are changed at random."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

__all__ = ["Augmented", "Residual", "cifar_resnet", "trial_cnn"]


def trial_cnn() -> nn.Module:
    """Make the small network with batch norm on which natural gradients were first tried."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def cifar_resnet(width: int = 40) -> nn.Module:
    """Make a residual network for 32x32 images that reaches 85 % of CIFAR-10 in some twenty minutes of one core.

    Pixels are first gathered in squares of two by two, so that the widest layers work on 16x16 positions.
    """
    return nn.Sequential(
        nn.PixelUnshuffle(2),
        _convolution(12, width, 1),
        Residual(width),
        _convolution(width, 2 * width, 2),
        Residual(2 * width),
        _convolution(2 * width, 4 * width, 2),
        Residual(4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def _convolution(channels: int, out: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class Residual(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the shortcut and the two convolutions, added."""
        return torch.relu(x + self.last(self.second(torch.relu(self.norm(self.first(x))))))


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images of which half are mirrored, each moved by up to two pixels in both directions; the border is repeated.

    Args:
        data: images and their targets.
        reach: by how many pixels an image is moved at most.
    """

    def __init__(self, data: TensorDataset, reach: int = 2) -> None:
        self.images, self.targets = data.tensors
        self.reach = reach

    def __len__(self) -> int:
        """Count the images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one image, changed at random, and its target."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Return a batch of images, each changed at random by torch's own random numbers."""
        count, reach = len(indices), self.reach
        images = F.pad(self.images[indices], (reach,) * 4, mode="replicate")
        flipped = torch.where(torch.rand(count, 1, 1, 1) < 0.5, images, images.flip(-1))
        corners = torch.randint(2 * reach + 1, (count, 2)).tolist()
        height, width = self.images.shape[2:]
        cut = [image[:, i : i + height, j : j + width] for image, (i, j) in zip(flipped, corners, strict=True)]
        return list(zip(cut, self.targets[indices], strict=True))
