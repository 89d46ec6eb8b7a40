"""Images that several raters have segmented, each in their own way, divided by patient."""

from collections.abc import Hashable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.source import Examples, Source

__all__ = ["Raters", "from_raters", "line_up"]

_VALIDATION = 0.15  # of what is not for the test
_ROWS = 1024


class Raters:
    """Masks by number, each that of one rater of several. ``masks`` has all of them: (N, raters, height, width).

    Without ``fixed`` the rater is drawn anew whenever a mask is asked for, as Abboud et al. 2024 train, from
    torch's random state, which `fit` sets. ``fixed`` has the rater of each image: one drawn once is a fair judge of
    probabilities, which a majority is not.
    """

    def __init__(self, masks: Tensor, fixed: Tensor | None = None) -> None:
        self.masks, self.fixed = masks, fixed

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, place: int) -> Tensor:
        of_all = self.masks[place]
        rater = torch.randint(len(of_all), ()) if self.fixed is None else self.fixed[place]
        return of_all[int(rater)].long()

    def by_rater(self) -> Tensor:
        """All masks as the scores of `leanbayes.metrics.raters` take them: (raters, N, height, width)."""
        return self.masks.transpose(0, 1).long()


def line_up(groups: Sequence[Hashable], seed: int) -> Tensor:
    """Where each example lies when all are laid out from 0 to 1 group by group, in an order drawn by ``seed``.

    A group has one place, its middle: sets that are cut by place never part a group, and are about as large as cut.

    >>> line_up(["a", "a", "b", "b"], seed=0).tolist()
    [0.25, 0.25, 0.75, 0.75]
    """
    names = sorted(set(groups), key=str)
    number = {name: place for place, name in enumerate(names)}
    of = torch.tensor([number[name] for name in groups])
    counts = of.bincount(minlength=len(names)).double()
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    ends = torch.zeros_like(counts)
    ends[order] = counts[order].cumsum(0)
    return ((ends - counts / 2) / len(of))[of]


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
    """Make a source of images (N, height, width) and masks (N, raters, height, width); ``path`` names it.

    One of ``folds`` parts is the test set, 15 % of the rest the validation set; no patient is in two sets. In training
    a rater is drawn each time, for validation and test once for each image: ``source.test.targets`` is a `Raters`.
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
    at = (line_up(patients, seed) - fold / folds) % 1
    judge = (at >= 1 / folds) & (at < 1 / folds + _VALIDATION * (1 - 1 / folds))
    chosen = {"train": (at >= 1 / folds) & ~judge, "validation": judge, "test": at < 1 / folds}
    for name, some in chosen.items():
        if not some.any():
            raise InputError(f"{path} has too few patients ({len(set(patients))}) to have some for {name}")
    mean, std = statistics(images[chosen["train"]].unsqueeze(1).split(_ROWS))
    plan = Preparation("pixels", mean, std, classes, size=(images.shape[1], images.shape[2]))
    drawn = torch.randint(masks.shape[1], (len(masks),), generator=torch.Generator().manual_seed(seed))
    sets = {
        name: Examples(images[some][:, None], Raters(masks[some], None if name == "train" else drawn[some]), plan)
        for name, some in chosen.items()
    }
    return Source(path.stem, preparation=plan, **sets)
