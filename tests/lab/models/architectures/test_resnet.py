import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

from leanbayes.lab.models import (
    lenet5,
    lenet300,
    mlp,
    model_named,
    preact_resnet,
    resnet50,
    vgg16,
)  # fmt: skip
from leanbayes.lab.models.architectures.resnet import PreActBlock


def build(name: str, shape: tuple[int, ...], classes: int = 3) -> nn.Module:
    numbers = torch.Size(shape).numel()
    return model_named(name, in_channels=shape[0], size=shape[1:], in_features=numbers, classes=classes)


def named(name: str, side: int, classes: int) -> Callable[[], nn.Module]:
    return lambda: build(name, (3, side, side), classes)


PUBLISHED = {  # torchvision's and timm's tables for ImageNet, and those of kuangliu/pytorch-cifar for CIFAR-10
    "resnet18": (named("resnet18", 224, 1000), 11_689_512),
    "resnet34": (named("resnet34", 224, 1000), 21_797_672),
    "resnet50": (named("resnet50", 224, 1000), 25_557_032),
    "resnet101": (named("resnet101", 224, 1000), 44_549_160),
    "resnet152": (named("resnet152", 224, 1000), 60_192_808),
    "resnet18 for CIFAR": (named("resnet18", 32, 10), 11_173_962),
    "resnet18_cifar7": (named("resnet18_cifar7", 32, 10), 11_173_962 + 3 * 64 * (49 - 9)),
    "resnet50 for CIFAR": (named("resnet50", 32, 10), 23_520_842),
    "densenet121": (named("densenet121", 224, 1000), 7_978_856),
    "densenet161": (named("densenet161", 224, 1000), 28_681_000),
    "densenet169": (named("densenet169", 224, 1000), 14_149_480),
    "densenet201": (named("densenet201", 224, 1000), 20_013_928),
    "densenet121 for CIFAR": (named("densenet121", 32, 10), 6_956_298),
    "vgg16": (lambda: vgg16(3, 1000, hidden=4096, batch_norm=False), 138_357_544),
    "vgg16 with norms": (lambda: vgg16(3, 1000, hidden=4096), 138_365_992 - 4_224),  # theirs keeps the biases too
    "vgg16 for CIFAR": (named("vgg16", 32, 10), 14_728_266 - 4_224),
    "vit_b16": (named("vit_b16", 224, 1000), 86_567_656),
    "vit_s16": (named("vit_s16", 224, 1000), 22_050_664),
    "lenet5": (lambda: lenet5(1, 10), 61_706),
    "lenet5 for 32x32": (lambda: lenet5(1, 10, (32, 32)), 61_706),
    "lenet 300-100": (lambda: mlp(784, 10, width=(300, 100)), 266_610),
    "lenet 300-100 with norms": (lambda: lenet300(784, 10), 266_610 + 2 * 400),
}


@pytest.mark.parametrize(
    ("depth", "blocks"),
    [(18, (2, 2, 2, 2)), (34, (3, 4, 6, 3)), (50, (3, 4, 6, 3)), (101, (3, 4, 23, 3)), (152, (3, 8, 36, 3))],
)
def test_preactivated_resnets_have_the_convolutions_of_resnets_and_fewer_norms(
    depth: int, blocks: tuple[int, ...]
) -> None:
    with torch.device("meta"):
        model = build(f"preact_resnet{depth}", (3, 32, 32), classes=1000)
    norms = sum(p.numel() for p in model.parameters() if p.ndim == 1) - 1000
    kernels = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    four, inner = (4, 2) if depth >= 50 else (1, 1)
    entering = [64, *(four * width for width in (64, 128, 256, 512))]
    channels = sum(  # the first norm of a block sees what enters it, the others the channels within
        before + (n - 1) * four * width + n * inner * width
        for before, width, n in zip(entering, (64, 128, 256, 512), blocks, strict=False)
    )
    assert norms == 2 * (channels + entering[-1])
    widths = zip((64, 128, 256, 512), blocks, strict=True)
    plain = 2 * (64 + sum(n * (inner + four) * width + four * width * (width > 64 or four > 1) for width, n in widths))
    stem = 3 * 64 * (49 - 9)
    assert kernels == PUBLISHED[f"resnet{depth}"][1] - stem - plain - 1000
    assert sum(blocks) * (inner + 1) + 2 == depth


def test_resnet50_is_hugging_faces_under_torchvisions_names() -> None:
    ours = resnet50(5, in_channels=2, stem="imagenet").eval()
    theirs = ResNetForImageClassification(ResNetConfig(num_channels=2, num_labels=5)).eval()
    state = {}
    for name, value in theirs.state_dict().items():
        name = name.replace("resnet.", "").replace("embedder.embedder", "layer.0").replace("classifier.1", "fc")
        name = name.replace("shortcut.convolution", "downsample.0").replace("shortcut.normalization", "downsample.1")
        name = re.sub(r"encoder\.stages\.(\d)\.layers", lambda m: f"layer{int(m[1]) + 1}", name)
        name = re.sub(r"layer\.(\d)\.convolution", lambda m: f"conv{int(m[1]) + 1}", name)
        state[re.sub(r"layer\.(\d)\.normalization", lambda m: f"bn{int(m[1]) + 1}", name)] = value
    ours.load_state_dict(state)
    x = torch.randn(2, 2, 64, 50)
    out = ours(x)
    torch.testing.assert_close(out, theirs(x).logits)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in ours.parameters())


def test_a_preactivated_block_is_its_formula() -> None:
    block = PreActBlock(4, 8, stride=2, bottleneck=True).double().eval()
    for norm in block.norms:
        norm.weight.data.uniform_(0.5, 2.0)
        norm.bias.data.normal_()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)

    def activated(x: Tensor, norm: nn.Module) -> Tensor:
        x = x / (1 + norm.eps) ** 0.5 * norm.weight[:, None, None] + norm.bias[:, None, None]
        return x.clamp_min(0)

    first = activated(x, block.norms[0])
    hidden = torch.einsum("nchw,dc->ndhw", first, block.convs[0].weight[..., 0, 0])
    hidden = F.conv2d(activated(hidden, block.norms[1]), block.convs[1].weight, stride=2, padding=1)
    hidden = torch.einsum("nchw,dc->ndhw", activated(hidden, block.norms[2]), block.convs[2].weight[..., 0, 0])
    shortcut = torch.einsum("nchw,dc->ndhw", first[..., ::2, ::2], block.shortcut.weight[..., 0, 0])
    out = block(x)
    torch.testing.assert_close(out, hidden + shortcut)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in block.parameters())


def test_preactivated_resnets_end_with_norm_and_relu() -> None:
    model = preact_resnet(18).eval()
    model.bn1.weight.data.zero_()
    model.bn1.bias.data.fill_(-1.0)
    assert torch.equal(model(torch.randn(2, 3, 8, 8)), model.fc.bias.expand(2, -1))
