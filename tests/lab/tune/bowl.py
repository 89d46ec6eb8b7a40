"""A recipe with a known optimum, and a process that tunes it.

Run it with ``python -m tests.lab.tune.bowl STORAGE TRIALS METHOD``.
"""

import dataclasses
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import leanbayes as lb
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes import RECIPES, Budget, Recipe, Run
from leanbayes.lab.recipes.base import option
from leanbayes.lab.tune import Search, tune

SEARCH = {"x": "0.001..10:log", "n": "1..3", "word": "a,b"}
BEST, LEAST = 0.3, -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
SURE = BEST * 10 ** -math.log(3)  # from here on class 1 is the likelier one


def nll_at(x: float) -> float:
    logit = math.log10(x / BEST) + math.log(3)
    return 0.75 * math.log1p(math.exp(-logit)) + 0.25 * math.log1p(math.exp(logit))


class Constant(nn.Module):
    """One logit for class 1, whatever comes in."""

    def __init__(self, logit: float) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(logit))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.zeros(len(x)), self.logit.expand(len(x))], dim=1)


@dataclasses.dataclass(frozen=True)
class Bowl(Recipe):
    """Three of four targets are 1: the nll is least, the entropy of that, where the logit is log 3, at x = 0.3."""

    name = "bowl"
    x: float = option(1.0, "logarithmic")
    n: int = option(1, "matters little: 1 is best")
    word: str = option("a", "does not matter")
    limit: float = option(math.inf, "no x above it can be trained")
    log: str | None = option(None, "file for what is trained")
    seconds: float = option(0.0, "that a training takes")

    def __post_init__(self) -> None:
        if self.n < 1:
            raise lb.errors.InputError(f"n must be at least 1, got {self.n}")

    def train(self, task: Task, run: Run) -> nn.Module:
        if self.log is not None:
            file = Path(self.log)
            with file.open("a") as lines:
                lines.write(f"{os.getpid()} {self.x}\n")
            if file.read_text().count(f"{os.getpid()} ") == int(os.environ.get("HANG_AT", 0)):
                time.sleep(600)
        time.sleep(self.seconds)
        if self.x > self.limit:
            raise RuntimeError(f"x is {self.x}\nand that is too much")
        run.tell("bowl", 1, 1)
        return Constant(math.log10(self.x / BEST) + math.log(3) + 0.1 * (self.n - 1))


class Forbidden(Dataset[Any]):
    """There are examples, but nobody may look at them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the test set was read")


def model() -> nn.Module:
    return Constant(0.0)


def task() -> Task:
    data = TensorDataset(torch.zeros(8, 1), torch.tensor([1, 1, 1, 0] * 2))
    return Task("bowl", data, data, Forbidden(), model, lb.Categorical(), ("0", "1"), {"far": Forbidden()})


def tuned(storage: Path, trials: int, method: str = "bowl", **options: Any) -> dict[str, Any]:
    """Tune the bowl; ``options`` are fields of `Search` and parameters of `tune`."""
    settings = {"options": SEARCH, "budget": Budget(epochs=1), "samples": 1, "trials": trials}
    fields = {field.name for field in dataclasses.fields(Search)}
    settings |= {name: options.pop(name) for name in fields & options.keys()}
    return tune(task(), method, Search(**settings), storage=storage, **options)


if __name__ == "__main__":
    RECIPES.register(Bowl)
    tuned(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], options={"x": SEARCH["x"]})
