from torch import nn

from leanbayes.lab.models import (
    lenet300,
)  # fmt: skip


def test_lenet_without_norms_is_an_mlp_of_its_widths() -> None:
    kinds = [type(layer) for layer in lenet300(784, 10)]
    assert kinds == [nn.Flatten, *[nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2, nn.Linear]
