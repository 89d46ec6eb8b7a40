from collections.abc import Callable

import pytest
import torch
from monai.networks import nets
from torch import nn

from leanbayes.lab.models import (
    densenet,
)  # fmt: skip


def count(make: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


@pytest.mark.parametrize(
    ("depth", "blocks", "growth"),
    [(161, (6, 12, 36, 24), 48), (169, (6, 12, 32, 32), 32)],
)
def test_densenets_for_small_images_count_as_table_1_of_their_paper(
    depth: int, blocks: tuple[int, ...], growth: int
) -> None:
    width, total = 2 * growth, 9 * 5 * 2 * growth
    for index, layers in enumerate(blocks):
        inputs = layers * width + growth * layers * (layers - 1) // 2  # channels that enter the layers of one block
        total += inputs * (2 + 4 * growth) + layers * (2 * 4 * growth + 9 * 4 * growth * growth)
        width += layers * growth
        if index < 3:
            total += 2 * width + width * width // 2
            width //= 2
    assert 2 * (1 + sum(blocks)) + 3 == depth  # two convolutions a layer, the stem, three transitions and the head
    assert count(lambda: densenet(depth, 7, in_channels=5)) == total + 2 * width + 7 * (width + 1)


@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_densenet_takes_28_through_every_stem(stem: str) -> None:
    assert densenet(121, 4, in_channels=1, stem=stem).eval()(torch.zeros(1, 1, 28, 28)).shape == (1, 4)


def test_densenet_is_monais_under_torchvisions_names() -> None:
    ours = densenet(121, 5, in_channels=2, stem="imagenet").eval()
    theirs = nets.DenseNet121(spatial_dims=2, in_channels=2, out_channels=5).eval()
    names = {name: name.replace("layers.", "").replace("class_out", "classifier") for name in theirs.state_dict()}
    ours.load_state_dict({names[name]: value for name, value in theirs.state_dict().items()})
    x = torch.randn(2, 2, 64, 32)
    torch.testing.assert_close(ours(x), theirs(x))
