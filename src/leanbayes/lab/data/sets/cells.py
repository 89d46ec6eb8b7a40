"""Synthetic blood cells: images whose kinds overlap, as those of real cells do. They need no files."""

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.named import DataSet
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.source import Examples, Source, source_of

__all__ = ["cells"]

KINDS = ("small", "large", "nucleated", "granular", "ring")

# The mean of each kind's features: the radius, how granular the inside is, how bright the middle is, and how lobed the
# outline is.
_MEANS = torch.tensor(
    [[0.36, 0.06, 0.00, 0.05], [0.62, 0.06, 0.00, 0.05], [0.48, 0.08, 0.30, 0.06], [0.50, 0.26, 0.00, 0.08],
     [0.50, 0.08, -0.35, 0.06]]
)  # fmt: skip
_SPREAD = torch.tensor([0.075, 0.06, 0.13, 0.04])


def cells(
    folder: Path | str | None = None,  # noqa: ARG001 - every data set takes it
    seed: int = 0,
    *,
    train: int = 800,
    validation: int = 400,
    test: int = 2000,
    size: int = 16,
) -> Source:
    """Draw grey images of one cell each, of five kinds, and of cells that no network has learnt.

    A kind decides the mean of four features, and a cell has its features from a Gaussian around it. The Gaussians
    overlap, so no classifier is always right, and a good one says where it is unsure. Noise, focus and contrast differ
    from image to image. The set "clumped" shows two cells that touch, and "artefact" a scratch across a cell; neither
    occurs in training, so a network should be unsure about them.

    Args:
        folder: is not used, because the set is computed.
        seed: decides all draws.
        train: how many images are for training.
        validation: how many are for validation.
        test: how many are for the test. A third as many are clumped, and as many have an artefact.
        size: the height and the width of the images.

    >>> source = cells(train=50, validation=20, test=30)
    >>> len(source.train), source.preparation.classes, list(source.shifted)
    (50, ('small', 'large', 'nucleated', 'granular', 'ring'), ['clumped', 'artefact'])
    """
    if min(train, validation, test) < len(KINDS) or size < 16:
        raise InputError(
            f"every set needs at least {len(KINDS)} images, and size must be at least 16, got {train}, {validation}, "
            f"{test} and {size}"
        )
    random = torch.Generator().manual_seed(seed)
    images, targets = {}, {}
    for name, count in (("train", train), ("validation", validation), ("test", test)):
        targets[name] = torch.arange(count)[torch.randperm(count, generator=random)] % len(KINDS)
        images[name] = _photograph(_cells(targets[name], size, random), random)
    strange = torch.arange(max(len(KINDS), test // 3)) % len(KINDS)
    clumped = torch.maximum(
        _cells(strange, size, random, aside=-0.45), _cells(strange.flip(0), size, random, aside=0.45)
    )
    scratched = _scratched(_cells(strange, size, random), random)
    mean, std = statistics([images["train"]])
    plan = Preparation("classes", mean, std, KINDS, size=(size, size), resize=True)
    shifted = {
        name: Examples(_photograph(cell, random), strange, plan)
        for name, cell in (("clumped", clumped), ("artefact", scratched))
    }
    return replace(source_of(Path("cells"), images, targets, plan), shifted=shifted)


def _cells(kinds: Tensor, size: int, random: torch.Generator, aside: float = 0.0) -> Tensor:
    """Return how much of each pixel is cell, (N, size, size) in [0, 1]; ``aside`` moves the cells to one side."""
    count = len(kinds)
    features = _MEANS[kinds] + _SPREAD * torch.randn(count, 4, generator=random)
    radius, granular, middle, lobed = (feature.view(-1, 1, 1) for feature in features.unbind(1))
    axis = torch.linspace(-1, 1, size)
    shift = 0.1 * torch.randn(2, count, 1, 1, generator=random)
    y, x = axis.view(1, -1, 1) - shift[0], axis.view(1, 1, -1) - shift[1] - aside
    turn = 2 * torch.pi * torch.rand(count, 1, 1, generator=random)
    angle, distance = torch.atan2(*torch.broadcast_tensors(y, x)), (x.square() + y.square()).sqrt()
    edge = radius.clamp(0.2, 0.8) * (0.75 if aside else 1.0) * (1 + lobed * torch.cos(3 * angle + turn))
    body = torch.sigmoid((edge - distance) / 0.05)
    coarse = torch.randn(count, 1, size // 3, size // 3, generator=random)
    grain = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=True)[:, 0]
    bump = torch.exp(-(distance / (0.5 * edge)).square())
    return (body * (0.6 + granular.clamp_min(0) * grain + middle * bump)).clamp(0, 1)


def _scratched(cell: Tensor, random: torch.Generator) -> Tensor:
    count, size = len(cell), cell.shape[-1]
    axis = torch.linspace(-1, 1, size)
    turn = torch.pi * torch.rand(count, 1, 1, generator=random)
    line = axis.view(1, -1, 1) * torch.cos(turn) + axis.view(1, 1, -1) * torch.sin(turn)
    offset = 0.2 * torch.randn(count, 1, 1, generator=random)
    return torch.maximum(cell, torch.exp(-((line - offset) / 0.06).square()))


def _photograph(cell: Tensor, random: torch.Generator) -> Tensor:
    """Return bytes: light and contrast differ between images, and every pixel has noise."""
    count = len(cell)
    light = 0.25 + 0.1 * torch.rand(count, 1, 1, generator=random)
    contrast = 0.4 + 0.25 * torch.rand(count, 1, 1, generator=random)
    noise = 0.015 + 0.035 * torch.rand(count, 1, 1, generator=random)
    pixels = light + contrast * cell + noise * torch.randn(cell.shape, generator=random)
    return (255 * pixels).clamp(0, 255).to(torch.uint8)[:, None]


SETS = (DataSet("cells", cells),)
