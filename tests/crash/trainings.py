"""Trainings by `fit`, one of each kind, as small as they can be and still write everything that a training writes."""

import os
import random
import sys
from collections.abc import Callable
from functools import partial as bound
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import leanbayes as lb
from leanbayes._files import write_tensors
from tests.crash.scenario import DONE, REFUSED, Scenario

__all__ = ["TRAININGS"]

_EXAMPLES = 24
_TOP = Path("checkpoints")


class Noisy(TensorDataset):
    """Adds noise from the global random states of torch and NumPy to each example, as augmentations do."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(5) + 0.1 * float(np.random.rand()), y  # noqa: NPY002


def _data() -> Noisy:
    x = torch.randn(_EXAMPLES, 5, generator=torch.Generator().manual_seed(0))
    return Noisy(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def _network(*, dropout: float = 0.2, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    between: list[nn.Module] = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(5, 8), *between, nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def _fit(model: nn.Module, loader: DataLoader[Any], **options: Any) -> lb.train.History:
    """Train for two epochs of three steps; a checkpoint falls into an epoch, and old checkpoints are removed."""
    data = _data()
    return lb.fit(
        model,
        loader,
        likelihood=lb.Categorical(),
        epochs=2,
        validate=DataLoader(TensorDataset(*data.tensors), batch_size=12),
        checkpoint=lb.Checkpointing(_TOP, every=2),
        seed=3,
        **options,
    )


def plain() -> tuple[nn.Module, lb.train.History]:
    """A network without randomness, with batch norm, dropout and a schedule."""
    model = _network(norm=True)
    how = lb.Optimization("adamw", lr=1e-2, weight_decay=0.1, schedule="cosine", micro_batches=2)
    return model, _fit(model, DataLoader(_data(), batch_size=8, shuffle=True), optimizer=how)


def partial() -> tuple[nn.Module, lb.train.History]:
    """A part of the weights is random, and the scales have an optimizer of their own."""
    bnn = lb.Bayesian(_network(), subspace=lb.random_k(0.3))
    weights = torch.arange(1.0, _EXAMPLES + 1.0)
    loader = DataLoader(_data(), batch_size=8, sampler=WeightedRandomSampler(weights, _EXAMPLES))
    how = lb.Optimization("sgd", lr=1e-2, clip=1.0)
    return bnn, _fit(bnn, loader, optimizer=how, kl_weight=lb.anneal(0.2, 0.01))


def sparse() -> tuple[nn.Module, lb.train.History]:
    """Sparse weights that move."""
    bnn = lb.Bayesian(_network(), subspace=lb.sparse(0.3), propagate="local")
    loader = DataLoader(_data(), batch_size=8, sampler=SubsetRandomSampler(range(_EXAMPLES)))
    return bnn, _fit(bnn, loader, optimizer=lb.Optimization(lr=1e-2), rewire=lb.Rewire(every=2, stop=0.95))


def moments() -> tuple[nn.Module, lb.train.History]:
    """Means and variances travel through the network."""
    bnn = lb.Bayesian(_network(), propagate="moments")
    sampler = BatchSampler(RandomSampler(_data()), 8, drop_last=False)
    return bnn, _fit(bnn, DataLoader(_data(), batch_sampler=sampler), optimizer=lb.Optimization(lr=1e-2))


def ivon() -> tuple[nn.Module, lb.train.History]:
    """Natural gradients, which keep the scales in the state of the optimizer."""
    bnn = lb.Bayesian(_network(norm=True), propagate="mirrored")
    loader = DataLoader(_data(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(7))
    return bnn, _fit(bnn, loader, optimizer="ivon")


def _work(train: Callable[[], tuple[nn.Module, lb.train.History]]) -> int:
    """Train, and write weights and history to one file at the end."""
    # Each process has other global random states, and none of them may reach the result.
    torch.manual_seed(os.getpid()), np.random.seed(os.getpid()), random.seed(os.getpid())  # noqa: NPY002
    try:
        model, history = train()
        rows = [[row.loss, row.nll, row.kl, row.kl_weight, row.validation] for row in history.epochs]
        scales = None if history.scales is None else vars(history.scales)
        header = {"kind": "end", "format": 1, "rows": rows, "best": history.best, "scales": scales}
        tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
        write_tensors(Path("end.safetensors"), tensors, header)
    except lb.errors.LeanBayesError as error:
        sys.stderr.write(f"leanbayes: {error}\n")
        return REFUSED
    return DONE


TRAININGS = tuple(Scenario(train.__name__, bound(_work, train)) for train in (plain, partial, sparse, moments, ivon))
