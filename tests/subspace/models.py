"""A model for the tests of slots and subspaces."""

import torch
from torch import nn


class Net(nn.Module):
    """Names with dots at several depths, norms, a frozen layer, and a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(3))
        self.stem = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.layer4 = nn.ModuleList([nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)), nn.Linear(4, 4)])
        self.fc = nn.Linear(4, 3)
        self.fc2 = nn.Linear(4, 2)


NAMES = [name for name, _ in Net().named_parameters()]
