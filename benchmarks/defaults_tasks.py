"""The tasks of benchmarks/defaults.py: small ones that differ in data, network and likelihood.

Each task has three sets. ``train`` is learnt from. ``validation`` chooses the epoch to keep, and the temperature. The
set in the place of ``test`` is a second validation set, on which settings are compared. It is cut from the training
part of the data, or generated; the test sets of the data are never read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from leanbayes.lab.data import Source, Task, load_data
from leanbayes.lab.data.sets.cells import cells
from leanbayes.lab.data.sets.lesions import lesions
from leanbayes.lab.data.source import Examples
from leanbayes.lab.models.architectures.unet import unet
from leanbayes.likelihood import Gaussian
from leanbayes_papers.training import as_tensors, digit_images

__all__ = ["TASKS", "SmallTask"]

_FAR = 10_000  # the seeds of generated scoring sets begin here, far from those of the training sets


@dataclass(frozen=True)
class SmallTask:
    """One task of the benchmark.

    Args:
        make: a function of the data directory and the seed that returns the task.
        epochs: the epochs of every training.
        batch_size: the examples of a batch.
        about: what a table says about it.
    """

    make: Callable[[str, int], Task]
    epochs: int
    batch_size: int
    about: str


def _cut(task: Task, whole: TensorDataset, counts: tuple[int, int, int], seed: int) -> Task:
    """Deal the rows of one set anew for each seed into training, validation and scoring."""
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    parts = []
    for count in counts:
        chosen, order = order[:count], order[count:]
        parts.append(TensorDataset(*(tensor[chosen] for tensor in whole.tensors)))
    return replace(task, train=parts[0], validation=parts[1], test=parts[2])


def _joined(source: Source) -> TensorDataset:
    parts = [as_tensors(examples) for examples in (source.train, source.validation)]
    return TensorDataset(*(torch.cat(tensors) for tensors in zip(*(p.tensors for p in parts), strict=True)))


def _concrete(folder: str, seed: int) -> Task:
    """A table with the usual network, which gives a noise for each input."""
    source = load_data("uci-concrete", folder, seed=0)  # always split 0, whose test rows are never read
    whole = _joined(source)
    return _cut(source.task(None), whole, (int(0.6 * len(whole)), int(0.15 * len(whole)), len(whole)), seed)


def _energy(folder: str, seed: int) -> Task:
    """A table with one noise for all inputs, which training learns."""
    source = load_data("uci-energy", folder, seed=0)
    whole = _joined(source)
    features = whole.tensors[0].shape[1]
    task = _cut(source.task(None), whole, (int(0.6 * len(whole)), int(0.15 * len(whole)), len(whole)), seed)
    return replace(task, likelihood=Gaussian("learned", initial=0.2), model=lambda: _little_mlp(features))


def _little_mlp(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))


def _digits(folder: str, seed: int) -> Task:  # noqa: ARG001 - every task takes it
    source = digit_images()
    task = _cut(source.task(None), _joined(source), (300, 250, 600), seed)
    return replace(task, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))


def _small(examples: TensorDataset) -> TensorDataset:
    images, targets = examples.tensors
    return TensorDataset(F.avg_pool2d(images, 2), targets)


def _fashion(folder: str, seed: int) -> Task:
    """Fashion-MNIST of 14x14, and a network like LeNet-5 with a tenth of its weights."""
    source = load_data("fashion-mnist", folder)
    task = _cut(source.task("lenet5"), _small(as_tensors(source.train, 20_000)), (1000, 400, 800), seed)
    return replace(task, model=_little_lenet)


def _little_lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip


def _generated(source: Source, other: Source, counts: tuple[int, int, int], model: Callable[[], nn.Module]) -> Task:
    """Take the scoring set from another drawing of the data, standardised like the first."""
    scoring = Examples(other.train.inputs, other.train.targets, source.preparation)
    sets = (source.train, source.validation, scoring)
    train, validation, test = (as_tensors(part, count) for part, count in zip(sets, counts, strict=True))
    return replace(source.task(None), train=train, validation=validation, test=test, model=model)


def _cells(folder: str, seed: int) -> Task:  # noqa: ARG001 - every task takes it
    one, two = cells(seed=seed, train=600, validation=400, test=10), cells(seed=_FAR + seed, train=1000, test=10)
    return _generated(one, two, (600, 400, 1000), _little_norms)


def _little_norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 5),
    )  # fmt: skip


def _lesions(folder: str, seed: int) -> Task:  # noqa: ARG001 - every task takes it
    def drawn(number: int) -> Any:
        return lesions(seed=number, patients=80, size=24, raters=1)

    return _generated(drawn(seed), drawn(_FAR + seed), (120, 40, 120), lambda: unet(1, 2, width=4, depth=2))


TASKS = {
    "uci-concrete": SmallTask(_concrete, 50, 64, "UCI concrete, the usual network for tables, noise for each input"),
    "uci-energy": SmallTask(_energy, 50, 64, "UCI energy, two hidden layers, one learnt noise"),
    "digits": SmallTask(_digits, 50, 50, "300 digits of 8x8, a network with one hidden layer"),
    "fashion": SmallTask(_fashion, 20, 50, "1,000 Fashion-MNIST images of 14x14, a small LeNet"),
    "cells": SmallTask(_cells, 20, 50, "600 generated blood cells, a small network with batch norm"),
    "lesions": SmallTask(_lesions, 16, 20, "120 generated lesions of 24x24, a small U-Net with batch norm"),
}
