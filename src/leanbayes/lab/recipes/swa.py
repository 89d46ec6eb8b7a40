"""SWA, stochastic weight averaging (Izmailov et al. 2018): one network with the mean of the weights of late epochs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, update_bn

from leanbayes._calls import call, map_tensors, split_batch
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.lab.recipes.budget import Budget
from leanbayes.train.schedules import rate_schedule

__all__ = ["SWA"]

_LOWEST = 0.01  # the learning rate at the end of a cycle, as a share of that at its beginning


@dataclass(frozen=True)
class SWA(Recipe):
    """The plain network with the mean of the weights that it had after each of the last epochs."""

    name = "swa"
    pretrain: float = option(0.75, "The share of the epochs before weights are averaged.", within="[0, 1)")
    lr: float | None = option(
        None, "The learning rate while weights are averaged; by default the budget's.", within="(0, inf)"
    )
    schedule: Literal["constant", "cyclical"] = option(
        "constant",
        "How the learning rate changes while weights are averaged: not at all (constant), or from lr down to one "
        "percent of it in each cycle (cyclical).",
    )
    cycle: int = option(1, "How many epochs lie between two averaged weights.", within="[1, inf)")

    def least_epochs(self) -> int:
        """Return how many epochs there must be for one cycle after pretraining."""
        least = super().least_epochs()
        while self.cycle > Run(Budget(epochs=least)).share(self.pretrain)[1]:
            least += 1
        return least

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the plain network, go on from its weights at the rate of averaging, and recompute batch norms.

        The weights at the start of the averaging count too, as in Algorithm 1 of the paper. The optimizer is that of
        the budget.
        """
        first, rest = run.share(self.pretrain)
        if self.cycle > rest:
            raise InputError(
                f"swa averages the weights of the last {rest} epochs of {run.budget.epochs}, and cycle={self.cycle} is "
                "longer than that; lower cycle or pretrain, or train for more epochs"
            )
        averaging = _Averaging(self._pretrained(task, run, first))

        def collect(epoch: Any) -> None:
            if (epoch.epoch + 1) % self.cycle == 0:
                averaging.collect()

        how = {
            "lr": run.budget.lr if self.lr is None else self.lr,
            "schedule": "constant" if self.schedule == "constant" else _cyclical(rest / self.cycle),
            "patience": None,
        }
        run.fit(averaging, task, self.name, rest, optimization=how, validate=None, callbacks=[collect])
        with run.charged():
            _recompute_norms(averaging.mean.module, run.tracked(task.train, "batch norms"), run.seed)
        return averaging.averaged()

    def _pretrained(self, task: Task, run: Run, epochs: int) -> nn.Module:
        """Train the plain network as it would be trained for the whole budget, and stop after its first epochs.

        Section 3.2 of the paper cuts the schedule of the learning rate off rather than compress it.
        """
        if run.budget.schedule == "constant" and epochs:
            return run.plain(task, epochs)
        model = run.new_model(task)
        if epochs:
            rates = rate_schedule(run.budget.schedule)
            whole = run.budget.epochs / epochs
            run.fit(
                model,
                task,
                "plain",
                epochs,
                optimization={"schedule": lambda optimizer, steps: rates(optimizer, round(steps * whole))},
            )
        return model


class _Averaging(nn.Module):
    """A network in training, and beside it the mean of its weights, so that a checkpoint holds both.

    Args:
        model: the network, whose present weights are the first that count.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.trained = [parameter.requires_grad for parameter in model.parameters()]
        self.mean = AveragedModel(model).requires_grad_(False)  # no optimizer may touch the mean
        self.collect()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network in training."""
        return self.model(*args, **kwargs)

    def collect(self) -> None:
        """Let the present weights count in the mean."""
        self.mean.update_parameters(self.model)

    def averaged(self) -> nn.Module:
        """Return the network with the mean weights, as trainable as the network in training."""
        for parameter, trained in zip(self.mean.module.parameters(), self.trained, strict=True):
            parameter.requires_grad_(trained)
        averaged: nn.Module = self.mean.module
        return averaged


class _Called(nn.Module):
    """A model that takes all inputs of a batch as one value, as torch's `update_bn` gives them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        """Call the model on the inputs of a batch."""
        return call(self.model, inputs)


def _recompute_norms(model: nn.Module, batches: Any, seed: int) -> None:
    """Compute the batch-norm statistics of the mean weights, which no network in training has had.

    Dropout is active meanwhile, as it was in training, and takes its noise from the seed.
    """
    device = next(model.parameters()).device
    inputs = ([map_tensors(lambda leaf: leaf.to(device), split_batch(batch)[0])] for batch in batches)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        update_bn(inputs, _Called(model))


def _cyclical(cycles: float) -> Callable[[Optimizer, int], LambdaLR]:
    """Return a schedule whose rate falls from lr to its lowest value in each cycle (section 3.2 of the paper)."""

    def schedule(optimizer: Optimizer, steps: int) -> LambdaLR:
        length = max(round(steps / cycles), 1)

        def factor(step: int) -> float:
            done = (step % length + 1) / length
            return (1 - done) + done * _LOWEST

        return LambdaLR(optimizer, factor)

    return schedule
