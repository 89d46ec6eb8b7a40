"""Tasks small enough to train in a second; module-level models, so that other processes can make them too."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leanbayes as lb
from leanbayes.lab.data.task import Task

CENTRES = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


def fcn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))


def regressor() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return CENTRES[y] + 0.7 * torch.randn(n, 2, generator=generator), y


def classes() -> Task:
    far = TensorDataset(torch.randn(20, 2, generator=torch.Generator().manual_seed(9)) * 8, torch.zeros(20).long())
    sets = [TensorDataset(*blobs(n, seed)) for n, seed in ((120, 0), (30, 1), (60, 2))]
    return Task("blobs", *sets, mlp, lb.Categorical(), ("a", "b", "c"), {"far": far})


def pictures() -> Task:
    def make(n: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        y = torch.arange(n) % 3
        x = 0.3 * torch.randn(n, 1, 6, 6, generator=generator)
        for row, label in enumerate(y.tolist()):
            x[row, 0, 2 * label : 2 * label + 2] += 1.0
        return TensorDataset(x, y)

    return Task("stripes", make(90, 0), make(30, 1), make(45, 2), cnn, lb.Categorical(), ("top", "middle", "bottom"))


def pixels() -> Task:
    def make(n: int, seed: int) -> TensorDataset:
        x = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        return TensorDataset(x, (x[:, 0] > 0.5).long())

    return Task("specks", make(24, 0), make(8, 1), make(12, 2), fcn, lb.Categorical(), ("ground", "speck"))


def regression() -> Task:
    def make(n: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 2, generator=generator)
        return TensorDataset(x, x[:, :1].sin() + 0.1 * torch.randn(n, 1, generator=generator))

    return Task("sine", make(120, 0), make(30, 1), make(60, 2), regressor, lb.Gaussian("learned"))
