"""Models and predictors for the tests of costs, and their FLOPs by hand."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from leanbayes.prediction import Predictor, outputs_of


class Members(Predictor):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.inside = nn.ModuleList(members)
        self.members = len(members)

    def outputs(self, x: Any, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        for member in list(self.inside)[:draws]:
            yield from outputs_of(member, x, 1, generator)

    def parts(self) -> dict[str, nn.Module]:
        return {str(i): member for i, member in enumerate(self.inside)}


class Unregistered(Members):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = None
        self.secret = members

    def parts(self) -> dict[str, nn.Module]:
        return {str(i): member for i, member in enumerate(self.secret)}

    def outputs(self, x: Any, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        for _ in range(draws):
            yield self.secret[0](x)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


BATCH = 7
FIRST, MIDDLE, LAST = (2 * BATCH * n for n in (6 * 5, 5 * 4, 4 * 3))
WHOLE = FIRST + MIDDLE + LAST
X, Y = torch.ones(BATCH, 6), torch.zeros(BATCH, dtype=torch.long)


def sparse_network(density: float = 0.5, **options: Any) -> lb.Bayesian:
    return lb.Bayesian(network(), subspace=lb.sparse(density, **options), propagate="local")
