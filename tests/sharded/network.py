"""A small network with the traits that matter for sharding, its data, and a loop of one's own."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb

__all__ = [
    "PROPAGATIONS",
    "Net",
    "batch",
    "bayesian",
    "errors",
    "noise",
    "objective_of",
    "optimizer_of",
    "train",
    "whole",
]

PROPAGATIONS = ("sample", "mirrored", "local", "flipout", "moments")
WIDTH, CLASSES, INPUTS, SIZE = 8, 3, 5, 8


class Block(nn.Module):
    """A residual block. ``checkpointed`` computes its inner part again in the backward pass."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return x + checkpoint(self.inner, x, use_reentrant=False)
        return x + self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """Its head is registered first and used last, so the order of names is not the order of use."""

    def __init__(self, checkpoints: str = "") -> None:
        super().__init__()
        self.head, self.stem = nn.Linear(WIDTH, CLASSES), nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList(Block(checkpoints == "inside") for _ in range(2))
        self.around = checkpoints == "around"

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.around else block(x)
        return self.head(x)


def bayesian(by: Any, *, rate: float | None = None, checkpoints: str = "", **options: Any) -> lb.Bayesian:
    torch.manual_seed(0)
    subspace = None if rate is None else lb.random_k(rate=rate, seed=1)
    options = {"posterior": lb.posteriors.Normal(init_scale=0.1), **options}
    return lb.Bayesian(Net(checkpoints), subspace=subspace, propagate=by, **options)


def objective_of(bnn: lb.Bayesian, learn: str) -> lb.Objective:
    return lb.Objective(bnn, lb.Categorical(), n_data=100, with_kl=learn == "adam")


def optimizer_of(learn: str, objective: lb.Objective) -> torch.optim.Optimizer:
    if learn == "adam":
        return torch.optim.Adam(objective.parameters(), lr=0.01)
    means = {"means": "adam", "average": 0.5} if learn == "ivon by adam" else {"lr": 0.1}
    return lb.optim.IVON(objective.model, n_data=100, steps=8, initial_scale=0.1, **means)


def batch(step: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(step)
    return torch.randn(SIZE, INPUTS, generator=source), torch.randint(CLASSES, (SIZE,), generator=source)


def noise(step: int, part: int) -> torch.Generator:
    """The noise depends on the step and the part of the batch alone."""
    return torch.Generator().manual_seed(1000 * step + part)


def train(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: int,
    mine: Iterable[int],
    steps: Iterable[int] = range(4),
) -> list[float]:
    """Train on batches that are cut into parts, of which this process takes ``mine``; return the loss of each step."""
    mine, size, losses = list(mine), SIZE // parts, []
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in mine:
            rows = slice(part * size, (part + 1) * size)
            loss = module(x[rows], y[rows], generator=noise(step, part)).loss / len(mine)
            loss.backward()
            total += loss.detach()
        if len(mine) < parts:
            torch.distributed.all_reduce(total)
            total /= parts / len(mine)
        optimizer.step()
        losses.append(float(total))
    return losses


def whole(module: nn.Module) -> list[Tensor]:
    values = [parameter.detach() for parameter in module.parameters()]
    return [value.full_tensor() if hasattr(value, "full_tensor") else value.clone() for value in values]


def errors(want: tuple[list[float], list[Tensor]], got: tuple[list[float], list[Tensor]]) -> dict[str, float]:
    """Return the largest relative error of a loss, and the largest error of a weight."""
    losses = max(abs(a - b) / abs(a) for a, b in zip(want[0], got[0], strict=True))
    weights = max(float((a - b).abs().max()) for a, b in zip(want[1], got[1], strict=True))
    return {"loss": losses, "weights": weights}
