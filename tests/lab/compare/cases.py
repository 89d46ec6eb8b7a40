"""Recipes that fail, or that only count their calls, and the budget of the tests."""

from dataclasses import dataclass
from typing import Any

from torch import nn

import leanbayes as lb
from leanbayes.lab.recipes import Budget, Recipe, Run, parse

BUDGET = Budget(epochs=4, batch_size=30, lr=2e-2)
CALLS: list[int] = []


def named(*specifications: str) -> dict[str, Recipe]:
    return {specification: parse(specification) for specification in specifications}


@dataclass(frozen=True)
class Broken(Recipe):
    name = "broken"

    def train(self, task: Any, run: Run) -> nn.Module:
        raise lb.errors.NonFinite("step 3: the loss is nan\nand more")


@dataclass(frozen=True)
class Counted(Recipe):
    """An untrained network that counts how often it is asked for."""

    name = "counted"
    rate: float = 0.1

    def train(self, task: Any, run: Run) -> nn.Module:
        CALLS.append(run.seed)
        return run.new_model(task)
