"""The plain network, with two optimizers."""

import copy

import torch

from contestants.base import Contestant, Task, cross_entropy, mean_of_passes, require, sgd, stepper


def build(task: Task, name: str, kind: str) -> Contestant:
    """Build the plain network."""
    model = copy.deepcopy(task.plain)
    optimizer = sgd(model) if kind == "sgd" else torch.optim.Adam(model.parameters(), 1e-3)

    def audit() -> dict[str, bool]:
        require(torch.equal(model(task.x), model(task.x)), name, "two passes differ")
        return {}

    step = stepper(optimizer, cross_entropy(model))
    return Contestant(name, "torch", model, mean_of_passes(model), "1 pass", audit, step, optimizer=optimizer)


ROWS = {
    "plain, SGD": lambda task: build(task, "plain, SGD", "sgd"),
    "plain, Adam": lambda task: build(task, "plain, Adam", "adam"),
}
