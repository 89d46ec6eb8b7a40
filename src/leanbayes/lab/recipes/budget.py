"""The budget: what every method may spend on one network, so that a comparison is fair."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leanbayes._calls import split_batch
from leanbayes.dice import DiceTerm, require_masks
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.options import option
from leanbayes.train import Optimization

__all__ = ["USUAL_BATCH", "Budget"]

USUAL_BATCH = 64
"""How many examples a batch holds if nothing speaks against it."""

_PIXELS = 2**18  # of a batch of segmentations; a small U-Net keeps 1 to 2 KB a pixel until the backward pass
_PIXELS_OF_CLASSES = 2**21  # networks that return one answer for an image shrink it at once


@dataclass(frozen=True)
class Budget:
    """What every method may spend on the training of one network."""

    epochs: int = option(40, "How many epochs one network is trained for, over all stages of its method.")
    batch_size: int | None = option(
        None,
        "How many examples a batch holds. By default it is 64, or fewer if images are large: at most 262,144 pixels "
        "for segmentation and 2,097,152 for classes, so that training needs less than 2 GB.",
    )
    optimizer: str = option("adam", "The optimizer: adam, adamw or sgd.")
    lr: float = option(2e-3, "The learning rate of the weights.")
    schedule: str = option("constant", "How the learning rate changes during training: constant or cosine.")
    weight_decay: float = option(0.0, "The weight decay of the weights' means; the scales have none.")
    clip: float | None = option(None, "The largest norm of the gradient; larger ones are scaled down to it.")
    patience: int | None = option(
        None, "Stop a stage after this many epochs without a better negative log likelihood on the validation set."
    )
    class_weights: str | None = option(
        None,
        "How much each class counts in training: balanced (every class counts alike, however rare it is), or one "
        "number for each class, with spaces between them. Scores never use these "
        "weights. By default all classes count 1.",
    )

    dice: float = option(
        0.0,
        "The weight of a Dice loss beside the likelihood, for segmentations; 1 is the DiceCE loss of MONAI. The Dice "
        "loss is no likelihood: the training then follows no bound on the evidence, and tends to be too sure.",
    )

    def __post_init__(self) -> None:
        DiceTerm(self.dice)
        self.weights_of_classes()
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        names = ("optimizer", "lr", "schedule", "weight_decay", "clip", "patience")
        Optimization(**{name: getattr(self, name) for name in names})  # refuses what it cannot use, before any training

    def fitting(self, task: Task) -> "Budget":
        """Return this budget with the batch size that suits the images of a task, if the user names none.

        The size is a power of two from 2 to 64. Two is the least, because mirrored draws need two examples.

        Raises:
            InputError: the budget has a Dice loss, and the task has no masks.
        """
        with torch.random.fork_rng(devices=[]):  # an example may be drawn: a window, or the mask of a random rater
            x, y = split_batch(task.train[0])
        if self.dice:
            require_masks(task.likelihood, torch.as_tensor(y)[None])
        return replace(self, batch_size=_usual_batch(x, torch.as_tensor(y))) if self.batch_size is None else self

    def weights_of_classes(self) -> list[float] | None:
        """Return the numbers of ``class_weights``; None for no weights and for balanced ones.

        >>> Budget(class_weights="1 2.5").weights_of_classes()
        [1.0, 2.5]
        """
        if self.class_weights in (None, "balanced"):
            return None
        try:
            weights = [float(number) for number in str(self.class_weights).replace(",", " ").split()]
        except ValueError:
            weights = []
        if not weights or not all(0 <= weight < math.inf for weight in weights):
            raise InputError(
                "class_weights must be balanced, or one number of at least 0 for each class with spaces between them, "
                f"got {self.class_weights!r}"
            )
        return weights


def _usual_batch(x: Any, y: Tensor) -> int:
    if not isinstance(x, Tensor) or x.dim() < 3:  # features
        return USUAL_BATCH
    most = (_PIXELS if y.dim() > 1 else _PIXELS_OF_CLASSES) // math.prod(x.shape[1:])
    return max(2, min(USUAL_BATCH, 1 << int(math.log2(max(most, 1)))))
