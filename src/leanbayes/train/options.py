"""The two records that `fit` takes beside the model and the data: `Optimization` and `Checkpointing`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from leanbayes.errors import InputError, UnknownName
from leanbayes.optim import OPTIMIZERS, OptimizerBuilder
from leanbayes.train.schedules import RateSchedule, rate_schedule

__all__ = ["Checkpointing", "Optimization", "OptimizerChoice"]

OptimizerChoice = str | Optimizer | OptimizerBuilder | Callable[[list[dict[str, Any]]], Optimizer]
"""A name, an optimizer, a builder of one, or a function of parameter groups that returns one."""

_PRECISIONS = ("no", "fp16", "bf16", "fp8")


@dataclass(frozen=True)
class Optimization:
    """How `fit` changes the weights.

    Args:
        optimizer: a name ("adam", "adamw", "sgd", "ivon", or one that another package adds), a
            ``torch.optim.Optimizer``, or a function that takes parameter groups and returns an optimizer. An optimizer
            that exists already keeps its own learning rates and weight decays.
        lr: the learning rate of the means. By default it is that of the optimizer: 0.5 for "ivon", else 0.001.
        scale_lr: the learning rate of the scales. By default it is ``lr``, and 0.01 for "sgd". The optimizer "sgd"
            trains the scales by Adam, because plain gradients of the KL are too small to move them.
        weight_decay: the weight decay of the means. The scales have none.
        schedule: how the learning rate changes from step to step: "constant", "cosine", "warmup_cosine" (5 % of the
            steps rise, the others fall as half a cosine), the name of a schedule that another package adds, or a
            function of the optimizer and the number of steps that returns a scheduler.
        clip: the largest norm that the gradient may have. By default it is not clipped. The gradients of scales that
            the optimizer owns ("ivon") neither count nor change, because they give the curvature.
        micro_batches: into how many parts `fit` cuts each batch. The parts pass through the network one after the
            other, each with its own weight draw, and one optimizer step follows.
        mixed_precision: "fp16" or "bf16" for mixed precision, which needs the package accelerate.
        hold_statistics: whether batch norms keep their running statistics fixed (see `fix_statistics`). By default they
            do if the model is a `Bayesian` whose draws are the same for all examples of a batch.
        patience: after how many epochs without a better validation loss the training stops. By default it does not.

    >>> Optimization("sgd", lr=0.1, schedule="cosine").micro_batches
    1
    >>> Optimization(lr=-1.0)
    Traceback (most recent call last):
        ...
    leanbayes.errors.InputError: lr must be a positive, finite number, got -1.0; leave it None ...
    """

    optimizer: OptimizerChoice = "adam"
    lr: float | None = None
    scale_lr: float | None = None
    weight_decay: float = 0.0
    schedule: str | RateSchedule = "constant"
    clip: float | None = None
    micro_batches: int = 1
    mixed_precision: str | None = None
    hold_statistics: bool | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            OPTIMIZERS.named(self.optimizer)
        elif not (callable(self.optimizer) or isinstance(self.optimizer, Optimizer | OptimizerBuilder)):
            raise InputError(
                f"optimizer must be a name of {list(OPTIMIZERS)}, a torch.optim.Optimizer or a function of parameter "
                f"groups, got {self.optimizer!r}"
            )
        if isinstance(self.schedule, str):
            rate_schedule(self.schedule)
        elif not callable(self.schedule):
            raise InputError(f"schedule must be a name or a function of optimizer and steps, got {self.schedule!r}")
        _check_positive("lr", self.lr, "leave it None for the default of the optimizer")
        _check_positive("scale_lr", self.scale_lr, "leave it None to use lr")
        _check_positive("clip", self.clip, "leave it None for no clipping")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay must be finite and at least 0, got {self.weight_decay}")
        _check_count("micro_batches", self.micro_batches)
        _check_count("patience", self.patience)
        if self.mixed_precision not in (None, *_PRECISIONS):
            raise UnknownName.of("mixed_precision", self.mixed_precision, _PRECISIONS)


@dataclass(frozen=True)
class Checkpointing:
    """Where and how often `fit` writes checkpoints.

    Args:
        folder: the folder of the checkpoints. `fit` makes it if needed. If it holds a checkpoint of the same training,
            `fit` goes on from there.
        every: how many optimizer steps lie between two checkpoints. By default `fit` writes one after each epoch.
        keep: how many of the newest checkpoints stay. If the newest one is damaged, `fit` goes on from the one before.
        exact: whether a training that goes on must end with the same weights bit for bit. `fit` then refuses data that
            cannot be read again in the same order, such as those of persistent workers. With False it goes on with
            them, and ends with other weights than without the kill.

    >>> Checkpointing("run", every=100).keep
    2
    """

    folder: str | Path
    every: int | None = None
    keep: int = 2
    exact: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path) or not str(self.folder):
            raise InputError(f"folder must be the path of a folder, got {self.folder!r}")
        _check_count("every", self.every)
        _check_count("keep", self.keep)


def _check_positive(name: str, value: float | None, hint: str) -> None:
    if value is not None and not 0 < value < math.inf:
        raise InputError(f"{name} must be a positive, finite number, got {value}; {hint}")


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
