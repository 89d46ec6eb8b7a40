import torch
from monai.networks.blocks import Convolution
from torch import nn

from leanbayes.lab.models import (
    encoder3d,
)  # fmt: skip


def monai_encoder(widths: list[int]) -> nn.Sequential:
    """Figure 9 of Nazarovs et al. 2021, of MONAI's blocks."""
    plan = [(1, None), (1, 3), (1, 2), (3, 2), (3, 2)]
    layers: list[nn.Module] = []
    for before, after, (stride, pool) in zip(widths[:-1], widths[1:], plan, strict=True):
        layers += [] if pool is None else [nn.MaxPool3d(pool)]
        for a, strides in ((before, stride), (after, 1)):
            layers.append(Convolution(3, a, after, strides=strides, act="relu", norm="batch", bias=False))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1], 2))


def test_the_3d_encoder_is_figure_9_of_nazarovs_et_al_in_monais_blocks() -> None:
    widths = [1, 2, 3, 4, 5, 6]
    ours, theirs = encoder3d(1, 2, widths=widths[1:]).double(), monai_encoder(widths).double()
    for mine, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        mine.copy_(other)
    x = torch.randn(2, 1, 48, 49, 53, dtype=torch.float64)  # 48 is the smallest side at which every pool is whole
    torch.testing.assert_close(ours(x), theirs(x))


def test_the_volumes_of_nazarovs_et_al_end_as_one_position() -> None:
    with torch.device("meta"):
        model, seen = encoder3d(1, 2, size=(105, 127, 105)).eval(), []
        model.blocks[-1].register_forward_hook(lambda module, args, out: seen.append(out.shape))
        model(torch.zeros(1, 1, 105, 127, 105))
    assert seen == [(1, 256, 1, 1, 1)]
