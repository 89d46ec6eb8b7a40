import pytest
import torch
from torch import nn

from leanbayes.lab.models import (
    model_named,
    unet,
)  # fmt: skip


def build(name: str, shape: tuple[int, ...], classes: int = 3) -> nn.Module:
    numbers = torch.Size(shape).numel()
    return model_named(name, in_channels=shape[0], size=shape[1:], in_features=numbers, classes=classes)


def test_the_unet_of_the_paper_has_64_to_1024_channels() -> None:
    with torch.device("meta"):
        model = build("unet64", (3, 32, 64))
        assert [block[0].out_channels for block in model.down] == [64, 128, 256, 512, 1024]
        assert model(torch.zeros(1, 3, 32, 64)).shape == (1, 3, 32, 64)


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (16, 24), (33, 50)])
def test_unet_gives_logits_for_each_pixel_of_any_size(size: tuple[int, int]) -> None:
    assert unet(3, 5)(torch.randn(2, 3, *size)).shape == (2, 5, *size)


def test_unet_learns_to_copy_and_sees_its_skips() -> None:
    model = unet(1, 2, width=4)
    x = (torch.rand(8, 1, 13, 11) > 0.5).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, 0].long())
        loss.backward()
        optimizer.step()
    assert loss < 0.1  # noise of one pixel cannot pass the lower levels: only the first skip carries it


def test_unet_pads_with_zeros_below_and_to_the_right_and_cuts_them_off() -> None:
    model = unet(1, 2, width=2, depth=2).eval()
    x = torch.randn(1, 1, 6, 6)
    padded = nn.functional.pad(x, (0, 2, 0, 2))
    torch.testing.assert_close(model(x), model(padded)[..., :6, :6])
