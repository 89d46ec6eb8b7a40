"""The papers' architectures against published counts, other makers' code, and what every model must do."""

import copy
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.lab.models import (
    MODELS,
    alexnet,
    densenet,
    encoder3d,
    lenet5,
    lenet300,
    mlp,
    model_named,
    preact_resnet,
    resnet,
    resnet18,
    small_resnet,
    vgg16,
    vit,
)  # fmt: skip

FAMILIES = [
    "alexnet", "densenet121", "encoder3d", "lenet5", "lenet300", "mlp", "preact_resnet18", "resnet18",
    "small_cnn", "small_resnet", "unet", "vgg16", "vit",
]  # fmt: skip


def shape_of(name: str, side: int, channels: int = 2) -> tuple[int, ...]:
    return (channels, *(side for _ in range(3 if name == "encoder3d" else 2)))


def build(name: str, shape: tuple[int, ...], classes: int = 3) -> nn.Module:
    numbers = torch.Size(shape).numel()
    return model_named(name, in_channels=shape[0], size=shape[1:], in_features=numbers, classes=classes)


@cache
def built(name: str) -> nn.Module:
    return build(name, shape_of(name, 16))


def images(name: str) -> Tensor:
    return torch.randn(3, *shape_of(name, 16), generator=torch.Generator().manual_seed(1))


def named(name: str, side: int, classes: int) -> Callable[[], nn.Module]:
    return lambda: build(name, (3, side, side), classes)


def count(make: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    make, published = PUBLISHED[name]
    assert count(make) == published


def test_the_small_ones_count_as_their_definitions() -> None:
    c = [16, 16, 32, 64]
    pairs = list(zip([16, *c[:-1]], c, strict=True))
    blocks = sum(9 * a * b + 9 * b * b + a * b + 6 * b for a, b in pairs)
    assert count(lambda: small_resnet(3, 10)) == 27 * 16 + 32 + blocks + 650
    convolutions = [(3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 128, 3)]
    assert count(lambda: alexnet(3, 10)) == sum(a * b * k * k + b for a, b, k in convolutions) + 1290
    w = [1, 16, 32, 64, 128, 256]
    volumes = sum(27 * b * (a + b) + 4 * b for a, b in pairwise(w))
    assert count(lambda: encoder3d(1, 2)) == volumes + 514
    hidden, grid = 2048, 512 * 49  # the head of Nazarovs et al. 2021
    head = grid * hidden + hidden * hidden + 2 * hidden + hidden * 10 + 10
    assert count(lambda: vgg16(3, 10, hidden=2048, batch_norm=False)) == 14_714_688 + head


def test_every_name_is_built_by_a_test_of_this_file() -> None:
    known = {*FAMILIES, *PUBLISHED, "unet64", *(f"preact_resnet{depth}" for depth in (18, 34, 50, 101, 152))}
    known |= {name for name in MODELS if name.startswith("monai:")}  # test_monai_networks.py builds these
    assert set(MODELS) <= known


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_have_their_shape_and_every_parameter_gets_a_gradient(name: str) -> None:
    model, x = built(name).train(), images(name)
    out = model(x)
    assert out.shape == ((3, 3, 16, 16) if name == "unet" else (3, 3))
    out.square().sum().backward()
    without = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    model.zero_grad()
    assert without == []


@pytest.mark.parametrize("name", FAMILIES)
def test_in_eval_mode_each_image_has_its_own_constant_logits(name: str) -> None:
    model, x = built(name).eval(), images(name)
    with torch.no_grad():
        out = model(x)
        assert torch.equal(out, model(x))
        torch.testing.assert_close(model(x.flip(0)).flip(0), out, rtol=1e-3, atol=1e-4)
    assert (out[0] - out[1]).abs().max() > 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_float64_in_float64_out(name: str) -> None:
    model = copy.deepcopy(built(name)).double().eval()
    with torch.no_grad():
        assert model(images(name).double()).dtype == torch.float64


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "resnet18"])  # it has its own tests
def test_a_bayesian_one_takes_a_step(name: str) -> None:
    model = copy.deepcopy(built(name)).train()
    bnn = lb.Bayesian(model)
    x, pixels = images(name), (16, 16) if name == "unet" else ()
    result = lb.elbo(bnn, x, torch.zeros(3, *pixels, dtype=torch.long), lb.Categorical(), n_data=3)
    result.loss.backward()
    assert result.loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bnn.parameters())
    bnn.eval()
    with torch.no_grad():
        assert not torch.equal(bnn(x), model(x))  # whose weights are the means


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("mlp", "lenet300", "encoder3d")])
def test_image_models_take_28_and_32_one_channel_and_two_classes(name: str) -> None:
    model = build(name, (1, 28, 28), classes=2).eval()
    other = build(name, (1, 32, 32), classes=2).eval() if name in ("lenet5", "small_cnn", "vit") else model
    with torch.no_grad():
        assert model(torch.zeros(1, 1, 28, 28)).shape[:2] == (1, 2)
        assert other(torch.zeros(1, 1, 32, 32)).shape[:2] == (1, 2)


def test_most_take_any_size_also_odd_and_oblong() -> None:
    models = [built(name).eval() for name in ("alexnet", "densenet121", "resnet18", "small_resnet", "vgg16")]
    with torch.no_grad():
        for size in [(1, 1), (1, 5), (7, 9)]:
            for model in (*models, vit(2, 3, size)):
                assert model(torch.randn(2, 2, *size)).shape == (2, 3)
            assert built("encoder3d").eval()(torch.randn(2, 2, 3, *size)).shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: lenet5(1, 10, (11, 28)), InputError, "lenet5 needs images of 12x12 or more, got 11x28; resize them"),
        (
            lambda: lenet5(1, 10, (28,)),
            InputError,
            r"needs the size of images as \(height, width\), got \(28,\)",
        ),
        (
            lambda: MODELS["vit_s16"].build(3, 10, size=(8, 32)),
            InputError,
            "vit needs images of 16x16 or more, got 8x32",
        ),
        (lambda: vit(3, 10, size=(0, 4)), InputError, "vit needs images of 1x1 or more, got 0x4"),
        (lambda: vit(3, 10, heads=3), InputError, "width must be a multiple of heads, got 128 and 3"),
        (lambda: vit(3, 10, patch=0), InputError, "patch must be a whole number, 1 or more, got 0"),
        (lambda: vit(3, 10, pool="max"), UnknownName, r"unknown pool 'max'; choose from \['class', 'mean'\]"),
        (lambda: vit(3, 10)(torch.zeros(1, 3, 28, 28)), ShapeMismatch, r"built for images of 32x32, got .* size="),
        (lambda: encoder3d(1, 2, size=(32, 32)), InputError, r"takes volumes .*got the size \(32, 32\); use small_cnn"),
        (lambda: encoder3d(1, 2, widths=(4, 4)), InputError, r"5 levels and needs as many widths, got \(4, 4\)"),
        (lambda: encoder3d(1, 2)(torch.zeros(1, 1, 8, 8)), ShapeMismatch, r"takes volumes .*got shape \(1, 1, 8, 8\)"),
        (lambda: resnet(20), UnknownName, r"unknown depth of a ResNet 20; choose from \[18, 34, 50, 101, 152\]"),
        (lambda: preact_resnet(20), UnknownName, "unknown depth of a ResNet 20"),
        (lambda: densenet(264), UnknownName, r"unknown depth of a DenseNet 264; choose from \[121, 161, 169, 201\]"),
        (lambda: densenet(121, stem="large"), UnknownName, "unknown stem 'large'"),
        (lambda: resnet18(stem="large"), UnknownName, "unknown stem 'large'"),
        (lambda: vgg16(3, 10, hidden=0), InputError, "vgg16: hidden must be a whole number, 1 or more, got 0"),
        (lambda: mlp(4, 2, width=(3, 0)), InputError, "mlp: width must be a whole number, 1 or more, got 0"),
    ],
)
def test_what_cannot_be_built_is_said(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bad", [0, -1, 2.0, True, None])
def test_every_model_wants_whole_numbers_of_classes_and_channels(name: str, bad: object) -> None:
    shape = {"in_channels": 3, "in_features": 3 * 32 * 32, "classes": 4}
    shape |= {"size": shape_of(name, 32)[1:]}
    entering = "in_features" if name in ("mlp", "lenet300") else "in_channels"
    for wrong in ("classes", entering):
        with pytest.raises(InputError, match=rf"(classes|{entering}) must be a whole number, 1 or more, got {bad!r}"):
            model_named(name, **{**shape, wrong: bad})
