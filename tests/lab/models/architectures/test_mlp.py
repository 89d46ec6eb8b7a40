import torch
from torch import nn

from leanbayes.lab.models import (
    mlp,
)  # fmt: skip


def test_mlp_without_hidden_layers_is_linear() -> None:
    assert [type(layer) for layer in mlp(4, 2, width=())] == [nn.Flatten, nn.Linear]


def test_mlp_flattens() -> None:
    assert mlp(12, 2)(torch.randn(5, 3, 4)).shape == (5, 2)
