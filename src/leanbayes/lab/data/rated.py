"""Images with the masks of several raters, who disagree. The sets are divided by patient."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.source import Cases, Examples, Numbered, Source
from leanbayes.lab.data.splits import line_up

__all__ = ["EveryRater", "Raters", "Rating", "fixed_raters", "from_raters", "line_up", "rated_sets"]

Rating = Literal["random", "all"]
"""How several raters are learnt from: a random one in each step, or all of them."""


_VALIDATION = 0.15  # of the examples that are not for the test
_ROWS_AT_A_TIME = 1024


class Raters:
    """The masks of one rater for each image, of several raters.

    Training draws another rater whenever a mask is asked for, as Abboud et al. 2024 do (section 3.3). The draw comes
    from torch's random state, which `fit` sets. Validation and test fix one random rater for each image: probabilities
    are judged fairly by a random rater, but not by a majority of raters.

    Args:
        masks: the masks of all raters, (N, raters, height, width), or a sequence of N tensors (raters, ...).
        fixed: the index of the rater for each image. By default a rater is drawn each time.
        present: which rater has segmented which image, (N, raters). By default every rater has segmented every image.
    """

    def __init__(self, masks: Numbered, fixed: Tensor | None = None, present: Tensor | None = None) -> None:
        self.masks, self.fixed, self.present = masks, fixed, present

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> Tensor:
        of_raters = self.of(index)
        rater = torch.randint(len(of_raters), ()) if self.fixed is None else self.fixed[index]
        return of_raters[int(rater)].long() if self.fixed is None else self.masks[index][int(rater)].long()

    def of(self, index: int) -> Tensor:
        """Return the masks of all raters who have segmented one image, (raters, ...)."""
        masks = self.masks[index]
        return masks if self.present is None else masks[self.present[index]]

    def by_rater(self) -> Tensor:
        """Return the masks of all raters as `leanbayes.metrics.raters` takes them: (raters, N, height, width)."""
        if self.present is not None and not self.present.all():
            raise InputError("some raters have not segmented every image; take the masks of each image with of(index)")
        masks = self.masks if isinstance(self.masks, Tensor) else torch.stack([self.masks[i] for i in range(len(self))])
        return masks.transpose(0, 1).long()


def fixed_raters(present: Tensor, seed: int) -> Tensor:
    """Draw for each image one of the raters who have segmented it.

    Args:
        present: which rater has segmented which image, (N, raters).
        seed: decides the draws.
    """
    if present.all():
        return torch.randint(present.shape[1], (len(present),), generator=torch.Generator().manual_seed(seed))
    return present.double().multinomial(1, generator=torch.Generator().manual_seed(seed))[:, 0]


class EveryRater:
    """The pairs of an image and a rater as examples, so that one epoch sees every mask.

    Args:
        values: the inputs, one for each image, or the `Raters`.
        pairs: the image and the rater of each example.
    """

    def __init__(self, values: Numbered, pairs: Sequence[tuple[int, int]]) -> None:
        self.values, self.pairs = values, pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Tensor:
        image, rater = self.pairs[index]
        if isinstance(self.values, Raters):
            return self.values.masks[image][rater].long()
        return self.values[image]


def rated_sets(
    inputs: Mapping[str, Numbered],
    masks: Mapping[str, Numbered],
    present: Mapping[str, Tensor],
    rating: Rating,
    seed: int,
) -> tuple[dict[str, Numbered], dict[str, Numbered]]:
    """Return the inputs and the targets of three sets of images that several raters have segmented.

    Args:
        inputs: the images of each set.
        masks: the masks of each set, (raters, ...) for each image.
        present: which rater has segmented which image of each set, (N, raters).
        rating: "random" trains on a random rater each time. "all" makes an example of each pair of image and rater: an
            epoch is then as many times as long, and each rater counts as an observation of its own.
        seed: draws the rater of each image of the validation and the test set.
    """
    raters: dict[str, Numbered] = {
        name: Raters(masks[name], None if name == "train" else fixed_raters(present[name], seed), present[name])
        for name in masks
    }
    images = dict(inputs)
    if rating == "all":
        pairs = [(int(image), int(rater)) for image, rater in present["train"].nonzero()]
        images["train"] = EveryRater(inputs["train"], pairs)
        raters["train"] = EveryRater(raters["train"], pairs)
    return images, raters


def from_raters(
    path: Path,
    images: Tensor,
    masks: Tensor,
    patients: Sequence[Hashable],
    classes: tuple[str, ...],
    *,
    seed: int = 0,
    fold: int = 0,
    folds: int = 4,
    spacing: tuple[float, ...] | None = None,
) -> Source:
    """Make a source of images that several raters have segmented.

    No patient is in two sets. Training draws a rater each time; validation and test have one rater for each image. The
    targets of a set, such as ``source.test.targets``, are `Raters`.

    Args:
        path: the file of the data, for the name of the source and for errors.
        images: the images, (N, height, width), or volumes with one axis more.
        masks: the masks, (N, raters, height, width).
        patients: the patient of each image.
        classes: the names of the classes.
        seed: decides which patients are in which set, and the raters of validation and test.
        fold: which of ``folds`` parts is the test set. Of the other parts, 15 % are the validation set.
        folds: into how many parts the patients are divided.
        spacing: the distance of two voxels along each axis in millimetres, for volumes.
    """
    alike = masks.dim() in (4, 5) and images.shape == (len(masks), *masks.shape[2:])
    if not alike or len(patients) != len(images):
        raise ShapeMismatch(
            f"{path} has images {tuple(images.shape)}, masks {tuple(masks.shape)} and {len(patients)} patients; "
            "they should be (N, H, W), (N, raters, H, W) and N; volumes have one axis more"
        )
    if not 0 <= fold < folds:
        raise InputError(f"fold must be 0 to {folds - 1}, got {fold}")
    if not masks.numel() or int(masks.max()) >= len(classes):
        raise InputError(f"the masks of {path} must hold 0 to {len(classes) - 1}, and not be empty")
    position = (line_up(patients, seed) - fold / folds) % 1
    test = position < 1 / folds
    validation = ~test & (position < 1 / folds + _VALIDATION * (1 - 1 / folds))
    chosen = {"train": ~test & ~validation, "validation": validation, "test": test}
    for name, rows in chosen.items():
        if not rows.any():
            raise InputError(f"{path} has too few patients ({len(set(patients))}) for the {name} set; add patients")
    mean, std = statistics(images[chosen["train"]].unsqueeze(1).split(_ROWS_AT_A_TIME))
    plan = Preparation("pixels", mean, std, classes, size=tuple(images.shape[1:]), spacing=spacing)
    drawn = torch.randint(masks.shape[1], (len(masks),), generator=torch.Generator().manual_seed(seed))
    sets = {
        name: Examples(
            images[rows][:, None],
            Raters(masks[rows], None if name == "train" else drawn[rows]),
            plan,
            _cases(rows, patients),
        )
        for name, rows in chosen.items()
    }
    return Source(path.stem, sets["train"], sets["validation"], sets["test"], plan)


def _cases(rows: Tensor, patients: Sequence[Hashable]) -> Cases:
    numbers = rows.nonzero()[:, 0].tolist()
    return Cases(tuple(map(str, numbers)), tuple(str(patients[number]) for number in numbers))
