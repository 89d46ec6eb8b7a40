"""Images with the masks of several raters, who disagree. The sets are divided by patient."""

from collections.abc import Hashable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.source import Examples, Source

__all__ = ["Raters", "from_raters", "line_up"]

_VALIDATION = 0.15  # of the examples that are not for the test
_ROWS_AT_A_TIME = 1024


class Raters:
    """The masks of one rater for each image, of several raters.

    Training draws another rater whenever a mask is asked for, as Abboud et al. 2024 do (section 3.3). The draw comes
    from torch's random state, which `fit` sets. Validation and test fix one random rater for each image: probabilities
    are judged fairly by a random rater, but not by a majority of raters.

    Args:
        masks: the masks of all raters, (N, raters, height, width).
        fixed: the index of the rater for each image. By default a rater is drawn each time.
    """

    def __init__(self, masks: Tensor, fixed: Tensor | None = None) -> None:
        self.masks, self.fixed = masks, fixed

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> Tensor:
        of_raters = self.masks[index]
        rater = torch.randint(len(of_raters), ()) if self.fixed is None else self.fixed[index]
        return of_raters[int(rater)].long()

    def by_rater(self) -> Tensor:
        """Return the masks of all raters as `leanbayes.metrics.raters` takes them: (raters, N, height, width)."""
        return self.masks.transpose(0, 1).long()


def line_up(groups: Sequence[Hashable], seed: int) -> Tensor:
    """Lay examples out between 0 and 1, group by group in a random order, and return the position of each.

    All examples of a group have one position, the middle of the group. Sets that are cut by position therefore never
    divide a group, and each has about the size of its interval.

    Args:
        groups: the group of each example, such as its patient.
        seed: decides the order of the groups.

    >>> line_up(["a", "a", "b", "b"], seed=0).tolist()
    [0.25, 0.25, 0.75, 0.75]
    """
    names = sorted(set(groups), key=str)
    number = {name: index for index, name in enumerate(names)}
    group_of = torch.tensor([number[name] for name in groups])
    counts = group_of.bincount(minlength=len(names)).double()
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    ends = torch.zeros_like(counts)
    ends[order] = counts[order].cumsum(0)
    return ((ends - counts / 2) / len(group_of))[group_of]


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
) -> Source:
    """Make a source of images that several raters have segmented.

    No patient is in two sets. Training draws a rater each time; validation and test have one rater for each image. The
    targets of a set, such as ``source.test.targets``, are `Raters`.

    Args:
        path: the file of the data, for the name of the source and for errors.
        images: the images, (N, height, width).
        masks: the masks, (N, raters, height, width).
        patients: the patient of each image.
        classes: the names of the classes.
        seed: decides which patients are in which set, and the raters of validation and test.
        fold: which of ``folds`` parts is the test set. Of the other parts, 15 % are the validation set.
        folds: into how many parts the patients are divided.
    """
    alike = masks.dim() == 4 and images.shape == (len(masks), *masks.shape[2:])
    if not alike or len(patients) != len(images):
        raise ShapeMismatch(
            f"{path} has images {tuple(images.shape)}, masks {tuple(masks.shape)} and {len(patients)} patients; "
            "they should be (N, H, W), (N, raters, H, W) and N"
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
    plan = Preparation("pixels", mean, std, classes, size=(images.shape[1], images.shape[2]))
    drawn = torch.randint(masks.shape[1], (len(masks),), generator=torch.Generator().manual_seed(seed))
    sets = {
        name: Examples(images[rows][:, None], Raters(masks[rows], None if name == "train" else drawn[rows]), plan)
        for name, rows in chosen.items()
    }
    return Source(path.stem, sets["train"], sets["validation"], sets["test"], plan)
