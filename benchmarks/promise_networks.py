"""Networks that benchmarks train and the library does not have, and images that are changed at random."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

__all__ = [
    "Augmented",
    "HalfPrecisionTraining",
    "Quarter",
    "Residual",
    "Whitening",
    "cifar_resnet",
    "trial_cnn",
    "whitening_filters",
]


def trial_cnn() -> nn.Module:
    """Make the small network with batch norm on which natural gradients were first tried."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def cifar_resnet(filters: Tensor, width: int = 32, half: bool = False) -> nn.Module:
    """Make a residual network for 32x32 images.

    Args:
        filters: what `whitening_filters` makes of the training images.
        width: the channels of the first convolution that is trained.
        half: whether it is trained in bfloat16, which takes two thirds of the time on processors that have it. It
            always predicts in float32.
    """
    kind = HalfPrecisionTraining if half else nn.Sequential
    return kind(
        Whitening(filters),  # so the widest layers work on 16x16 positions
        _convolution(2 * len(filters), width),
        _convolution(width, 2 * width, nn.MaxPool2d(2)),
        Residual(2 * width),
        _convolution(2 * width, 4 * width, nn.MaxPool2d(2)),
        Residual(4 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
        Quarter(),
    ).to(memory_format=torch.channels_last)  # in which these convolutions take a fifth less time on a CPU


class Quarter(nn.Module):
    """Divide logits by four, so that the first ones after a global maximum are not too sure."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a quarter of the logits."""
        return x / 4


def whitening_filters(images: Tensor, noise: float = 1e-2) -> Tensor:
    """Return the filters that turn squares of two by two pixels into uncorrelated numbers of variance near 1.

    The filters are the eigenvectors v of the covariance of the squares, each divided by √(λ + noise), where λ is its
    eigenvalue: then v·x/√(λ + noise) has the variance λ/(λ + noise). Networks learn from such numbers in fewer epochs.

    Args:
        images: training images, of shape (images, channels, height, width); at most the first 5,000 are used.
        noise: what is added to each eigenvalue, so that directions without any variance are not blown up.

    Returns:
        Filters of shape (4 * channels, channels, 2, 2).
    """
    channels = images.shape[1]
    squares = F.unfold(images[:5000], 2, stride=2).transpose(1, 2).flatten(0, 1).double()
    values, vectors = torch.linalg.eigh(squares.T.cov())
    return (vectors / (values + noise).sqrt()).T.reshape(-1, channels, 2, 2).float()


class HalfPrecisionTraining(nn.Sequential):
    """Modules one after the other, in bfloat16 while they are trained and in float32 when they predict."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits in float32."""
        if not self.training:
            return super().forward(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            logits: Tensor = super().forward(x)
        return logits.float()


class Whitening(nn.Module):
    """Apply fixed filters to squares of two by two pixels, and return the positive and the negative part of each."""

    def __init__(self, filters: Tensor) -> None:
        super().__init__()
        self.register_buffer("filters", filters)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of half the height and width, with two channels for each filter."""
        filtered = F.conv2d(x, self.filters, stride=2)
        return torch.relu(torch.cat([filtered, -filtered], 1))


def _convolution(channels: int, out: int, *pool: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False), *pool, nn.BatchNorm2d(out), nn.ReLU())


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
