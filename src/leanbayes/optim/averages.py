"""Averages of the weights over the last steps of a training (Izmailov et al. 2018), in the state of an optimizer.

The counts are numbers in the parameter groups, and the averages are tensors in the state, so a checkpoint of the
optimizer holds both.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from leanbayes._sharding import local

__all__ = ["Turn", "begin_again", "coming_turn", "count_step", "first_averaged", "write_averages"]


def first_averaged(share: float, steps: int) -> int | None:
    """Return after how many steps of a training averaging begins, or None if nothing is averaged.

    >>> first_averaged(0.25, 100), first_averaged(0.0, 100), first_averaged(0.9, 1)
    (75, None, 0)
    """
    return min(round((1 - share) * steps), steps - 1) if share else None


@dataclass(frozen=True)
class Turn:
    """The part that the coming step has in the averages, before the step is counted.

    Attributes:
        counts: whether the step counts.
        number: how many steps are averaged after it.
    """

    counts: bool
    number: int

    @property
    def share(self) -> float:
        """The share of the new weights in the average."""
        return 1 / self.number if self.counts else 0.0

    def average(self, state: dict[str, Any], parameter: Tensor) -> Tensor | None:
        """Return the average of a parameter, whose state is given; None if the step does not count."""
        if not self.counts:
            return None
        if "average" not in state:
            state["average"] = parameter.detach().clone()
        elif self.number == 1:
            local(state["average"]).copy_(local(parameter.detach()))
        average: Tensor = state["average"]
        return average


def coming_turn(optimizer: Optimizer) -> Turn:
    """Return the part that the coming step has in the averages."""
    _, averaged, counts = _counts_after(optimizer)
    return Turn(counts, averaged)


def count_step(optimizer: Optimizer, parameters: list[Tensor]) -> None:
    """Count a step and, late in the training, let the present weights count in their averages."""
    taken, averaged, counts = _counts_after(optimizer)
    for group in optimizer.param_groups:
        group["taken"], group["averaged"] = taken, averaged
    if not counts:
        return
    for parameter in parameters:
        if "average" not in optimizer.state[parameter]:
            optimizer.state[parameter]["average"] = parameter.detach().clone()
    averages = [local(optimizer.state[parameter]["average"]) for parameter in parameters]
    if averages:
        torch._foreach_lerp_(averages, [local(parameter.detach()) for parameter in parameters], 1 / averaged)


def _counts_after(optimizer: Optimizer) -> tuple[int, int, bool]:
    """Return how many steps are taken and averaged after the coming one, and whether that one is averaged."""
    group = optimizer.param_groups[0]
    taken = group["taken"] + 1
    counts = group["average_from"] is not None and taken > group["average_from"]
    return taken, group["averaged"] + counts, counts


@torch.no_grad()
def write_averages(optimizer: Optimizer, parameters: list[Tensor]) -> bool:
    """Write the averages into the parameters, and return whether there are any."""
    if not optimizer.param_groups[0]["averaged"]:
        return False
    for parameter in parameters:
        if "average" in optimizer.state[parameter]:
            parameter.copy_(optimizer.state[parameter]["average"])
    return True


def begin_again(optimizer: Optimizer) -> None:
    """Forget all averages, for example because sparse weights stand in other positions now."""
    for group in optimizer.param_groups:
        group["averaged"] = 0
