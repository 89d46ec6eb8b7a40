"""Every predictor, small: what the suite in test_conformance.py runs through. A new one is one more entry."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leanbayes.baselines import Ensemble, LaplaceApproximation, MCDropout, Swag, Temperature
from leanbayes.bayesian import Bayesian
from leanbayes.likelihood import Categorical
from leanbayes.prediction import Predictor
from leanbayes.subspace import random_k


class Net(nn.Module):
    """Takes one tensor, two of them, or the same by name."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.last = nn.Linear(8, 3)

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(a if b is None else a + b))))


def net(seed: int, dtype: torch.dtype, *, norm: bool = False) -> Net:
    torch.manual_seed(seed)
    return Net(norm).to(dtype)


def batches(dtype: torch.dtype, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(5)
    return [
        (torch.randn(6, 4, generator=source).to(dtype), torch.randint(3, (6,), generator=source)) for _ in range(count)
    ]


def swag(dtype: torch.dtype, *, norm: bool = False, rank: int = 3) -> Swag:
    model = net(0, dtype, norm=norm)
    made = Swag(model, rank=rank)
    source = torch.Generator().manual_seed(1)
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=source).to(dtype)
        made.collect()
    made.update_norms(batches(dtype), 4, generator=source)
    return made


def ensemble(dtype: torch.dtype) -> Ensemble:
    return Ensemble(*(net(seed, dtype) for seed in range(3)))


CASES: dict[str, Callable[[torch.dtype], Predictor]] = {
    "ensemble": ensemble,
    "ensemble together": lambda dtype: Ensemble(*(net(seed, dtype) for seed in range(3)), method="together"),
    "ensemble of Bayesian": lambda dtype: Ensemble(*(Bayesian(net(seed, dtype)) for seed in range(2))),
    "ensemble of dropout": lambda dtype: Ensemble(*(MCDropout(net(seed, dtype)) for seed in range(2))),
    "dropout": lambda dtype: MCDropout(net(0, dtype)),
    "swag": swag,
    "swag diagonal": lambda dtype: swag(dtype, rank=0),
    "swag with batch norm": lambda dtype: swag(dtype, norm=True),
    "laplace, last layer": lambda dtype: LaplaceApproximation.fit(net(0, dtype), batches(dtype), Categorical()),
    "laplace, subnetwork": lambda dtype: LaplaceApproximation.fit(
        net(0, dtype, norm=True), batches(dtype), Categorical(), "subnetwork", random_k(k=9)
    ),
    "temperature": lambda dtype: Temperature.fit(net(0, dtype), batches(dtype), Categorical()),
    "temperature of ensemble": lambda dtype: Temperature.fit(ensemble(dtype), batches(dtype), Categorical()),
    "temperature of Bayesian": lambda dtype: Temperature.fit(
        Bayesian(net(0, dtype)), batches(dtype), Categorical(), generator=torch.Generator().manual_seed(0)
    ),
}
