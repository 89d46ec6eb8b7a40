"""Test-time augmentation, which goes on top of any other recipe for images: ``deterministic+tta``."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from leanbayes._calls import split_batch
from leanbayes.baselines import Augmented
from leanbayes.baselines.augmentation import FLIPS, SHIFTS, require_images
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import OnTop, Recipe, Run, option
from leanbayes.lab.recipes.deterministic import Deterministic

__all__ = ["TTA"]

_VIEWS = {
    "none": ("identity",),
    "horizontal": ("identity", "horizontal"),
    "vertical": ("identity", "vertical"),
    "both": tuple(FLIPS),
}


@dataclass(frozen=True)
class TTA(OnTop):
    """Another recipe's predictor, averaged over views of each image: as it is, flipped and shifted."""

    name = "tta"
    of: Recipe = field(default_factory=Deterministic)
    flips: Literal["auto", "none", "horizontal", "vertical", "both"] = option(
        "auto",
        "How images are flipped. With auto, the validation set decides which flips, and whether shifts, lower the NLL.",
    )
    shift: int = option(
        1,
        "By how many pixels images are shifted to the left, right, up and down; 0 for no shifts, as in segmentation.",
        within="[0, inf)",
    )

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the recipe underneath, then choose the views on the validation set."""
        x, y = split_batch(next(iter(run.loader(task.validation))))
        images = require_images(x)  # before any training
        shift = 0 if task.likelihood.kind(y) == "pixels" else self.shift
        if shift >= min(images.shape[-2:]):
            raise InputError(f"images of {tuple(images.shape[-2:])} pixels cannot be shifted by {shift}; lower shift")
        model = self.of.train(task, run)
        if self.flips != "auto":
            views = (*_VIEWS[self.flips], *(SHIFTS if shift else ()))
            return Augmented(model, views, max(shift, 1))
        source = torch.Generator(images.device).manual_seed(run.seed)
        with run.charged():
            batches = run.tracked(task.validation, "views")
            return Augmented.fit(model, batches, task.likelihood, shift=shift, generator=source)
