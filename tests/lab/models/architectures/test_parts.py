import pytest
import torch
from torch import nn

from leanbayes.lab.models import model_named


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18", "densenet121"])
def test_large_images_enter_through_the_large_stem(name: str) -> None:
    with torch.device("meta"):
        large, small = (model_named(name, in_channels=3, classes=2, size=(side, 65)) for side in (65, 64))
    first = [next(m for m in model.modules() if isinstance(m, nn.Conv2d)) for model in (large, small)]
    assert [conv.stride for conv in first] == [(2, 2), (1, 1)]


@pytest.mark.parametrize("side", [32, 224])
def test_the_resnet_of_the_subnetworks_enters_through_7x7_with_stride_1_at_every_size(side: int) -> None:
    with torch.device("meta"):
        model = model_named("resnet18_cifar7", in_channels=3, classes=2, size=(side, side))
    assert (model.conv1.kernel_size, model.conv1.stride) == ((7, 7), (1, 1))
    assert isinstance(model.maxpool, nn.Identity)
