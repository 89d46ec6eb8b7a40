"""Windows of images that are too large, or too different in size, to be learnt from as a whole."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.images import Size
from leanbayes.lab.data.preparation import Preparation
from leanbayes.lab.data.source import Examples, Source

__all__ = ["Windows", "windowed"]

_FOREGROUND = 0.5  # the share of windows that are laid around a voxel of the foreground
_NOT_COUNTED = -100  # what `Categorical` leaves out by default


class Windows(Examples):
    """Several windows of each image with its mask, as examples.

    A window lies at a random place, and every second one around a random pixel of the foreground, which is rare in most
    scans. Training draws new windows each time, from torch's random state, which `fit` sets. Where an image is smaller
    than a window, its mean is added around it, and the mask there does not count.

    Args:
        whole: the whole images and their masks.
        plan: the preparation, which has the size of the window.
        count: how many windows of each image an epoch has.
        seed: lays the windows once and for all, for validation; None draws new ones each time.
    """

    def __init__(self, whole: Examples, plan: Preparation, count: int, seed: int | None = None) -> None:
        super().__init__(whole.inputs, whole.targets, plan, whole.cases)
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return len(self.targets) * self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = index // self.count
        x, y = self.inputs[row], self.targets[row]
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed + index)
        window = self.preparation.window or ()
        starts = _starts(y, window, generator)
        cut = tuple(slice(start, start + side) for start, side in zip(starts, window, strict=True))
        outside = _NOT_COUNTED if self.preparation.ignore is None else self.preparation.ignore
        return padded(self.preparation.standardise(x[(slice(None), *cut)]), window), padded(y[cut], window, outside)

    def row_of(self, index: int) -> int:
        """Return the image that a window belongs to."""
        return index // self.count

    def whole(self) -> Examples:
        """Return the whole images."""
        return Examples(self.inputs, self.targets, self.preparation, self.cases)


def padded(values: Tensor, window: Size, value: float = 0.0) -> Tensor:
    """Return a window whose last axes were shorter than wanted with ``value`` added evenly at both ends."""
    missing = [side - have for side, have in zip(window, values.shape[-len(window) :], strict=True)]
    if not any(missing):
        return values
    ends = [end for gap in reversed(missing) for end in (gap // 2, gap - gap // 2)]
    return F.pad(values, ends, value=value)


def windowed(source: Source, window: Size, count: int, seed: int) -> Source:
    """Return the same data such that training and validation see windows, and the test set whole images.

    Args:
        source: the whole images.
        window: the sides of a window.
        count: how many windows of each image an epoch has.
        seed: lays the windows of the validation set.
    """
    plan, axes = source.preparation, len(source.preparation.size or ())
    if plan.kind != "pixels":
        raise InputError(f"window= is for segmentation, but {source.name} has {plan.kind}; leave it out")
    if len(window) != axes or min(window) < 1:
        raise InputError(f"window must be {axes} positive numbers, one for each axis, got {' '.join(map(str, window))}")
    if count < 1:
        raise InputError(f"patches must be at least 1, got {count}")
    plan = replace(plan, size=window, window=window, resize=False)
    return replace(
        source,
        train=Windows(source.train, plan, count),
        validation=Windows(source.validation, plan, count, seed),
        test=Examples(source.test.inputs, source.test.targets, plan, source.test.cases),
        preparation=plan,
    )


def _starts(y: Tensor, window: Sequence[int], generator: torch.Generator | None) -> list[int]:
    """Return where a window begins along each axis."""
    room = [max(have - side, 0) for have, side in zip(y.shape, window, strict=True)]
    if float(torch.rand((), generator=generator)) < _FOREGROUND:
        marked = (y > 0).nonzero()
        if len(marked):
            centre = marked[int(torch.randint(len(marked), (), generator=generator))].tolist()
            return [min(max(at - side // 2, 0), most) for at, side, most in zip(centre, window, room, strict=True)]
    return [int(torch.randint(most + 1, (), generator=generator)) for most in room]
