"""The papers' architectures against published counts, other makers' code, and what every model must do."""

import copy
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from monai.networks import nets
from monai.networks.blocks import Convolution
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

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
    resnet50,
    small_resnet,
    vgg16,
    vit,
)  # fmt: skip
from leanbayes.lab.models.architectures.resnet import PreActBlock

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


@pytest.mark.parametrize(
    ("depth", "blocks", "growth"),
    [(161, (6, 12, 36, 24), 48), (169, (6, 12, 32, 32), 32)],
)
def test_densenets_for_small_images_count_as_table_1_of_their_paper(
    depth: int, blocks: tuple[int, ...], growth: int
) -> None:
    width, total = 2 * growth, 9 * 5 * 2 * growth
    for place, layers in enumerate(blocks):
        inputs = layers * width + growth * layers * (layers - 1) // 2  # channels that enter the layers of one block
        total += inputs * (2 + 4 * growth) + layers * (2 * 4 * growth + 9 * 4 * growth * growth)
        width += layers * growth
        if place < 3:
            total += 2 * width + width * width // 2
            width //= 2
    assert 2 * (1 + sum(blocks)) + 3 == depth  # two convolutions a layer, the stem, three transitions and the head
    assert count(lambda: densenet(depth, 7, in_channels=5)) == total + 2 * width + 7 * (width + 1)


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


def test_the_unet_of_the_paper_has_64_to_1024_channels() -> None:
    with torch.device("meta"):
        model = build("unet64", (3, 32, 64))
        assert [block[0].out_channels for block in model.down] == [64, 128, 256, 512, 1024]
        assert model(torch.zeros(1, 3, 32, 64)).shape == (1, 3, 32, 64)


def test_every_name_is_built_by_a_test_of_this_file() -> None:
    known = {*FAMILIES, *PUBLISHED, "unet64", *(f"preact_resnet{depth}" for depth in (18, 34, 50, 101, 152))}
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


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_vit_is_torchs_encoder_on_patches(pool: str) -> None:
    model = vit(2, 3, size=(8, 10), width=12, depth=2, heads=3, pool=pool).double()
    for p in model.parameters():
        p.data.normal_(std=0.3)
    layers = []
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(
            12, 3, 48, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
        ).double()
        pairs = [(layer.self_attn.out_proj, block.attn.proj), (layer.linear1, block.mlp.fc1)]
        pairs += [(layer.linear2, block.mlp.fc2), (layer.norm1, block.norm1), (layer.norm2, block.norm2)]
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        layer.self_attn.in_proj_weight.data.copy_(block.attn.qkv.weight)
        layer.self_attn.in_proj_bias.data.copy_(block.attn.qkv.bias)
        layers.append(layer)
    x = torch.randn(4, 2, 8, 10, dtype=torch.float64)
    padded = torch.zeros(4, 2, 8, 12, dtype=torch.float64)
    padded[..., :10] = x
    patches = padded.reshape(4, 2, 2, 4, 3, 4).permute(0, 2, 4, 1, 3, 5).reshape(4, 6, 32)
    embedding = model.patch_embed.proj
    tokens = patches @ embedding.weight.reshape(12, 32).T + embedding.bias
    if pool == "class":
        tokens = torch.cat([model.cls_token.repeat(4, 1, 1), tokens], 1)
    tokens = model.norm(nn.Sequential(*layers)(tokens + model.pos_embed))
    torch.testing.assert_close(model(x), model.head(tokens[:, 0] if pool == "class" else tokens.mean(1)))


def test_vit_starts_with_signals_of_order_one_and_knows_where_a_patch_is() -> None:
    model = vit(3, 10).eval()
    x = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        out = model(x)
        assert 0.1 < out.std() < 3.0
        assert (model(x.roll(4, dims=3)) - out).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("size", "patch"), [((28, 28), 4), ((3, 5), 3), ((64, 64), 4), ((65, 65), 16), ((65, 64), 4), ((224, 224), 16)]
)
def test_vit_chooses_the_patch_by_the_size(size: tuple[int, int], patch: int) -> None:
    with torch.device("meta"):
        assert vit(3, 2, size, width=8, depth=1, heads=2).patch == patch


def test_vit_learns_where_a_spot_is() -> None:
    torch.manual_seed(0)
    model = vit(1, 4, size=(8, 8), width=16, depth=2, heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    quarter = torch.arange(64) % 4
    x = 0.3 * torch.randn(64, 1, 8, 8)
    for image, q in zip(x, quarter.tolist(), strict=True):
        image[0, 4 * (q // 2) + 1, 4 * (q % 2) + 2] += 3.0
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), quarter)
        loss.backward()
        optimizer.step()
    assert loss < 0.1


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


def test_mlp_without_hidden_layers_is_linear() -> None:
    assert [type(layer) for layer in mlp(4, 2, width=())] == [nn.Flatten, nn.Linear]


def test_lenet_without_norms_is_an_mlp_of_its_widths() -> None:
    kinds = [type(layer) for layer in lenet300(784, 10)]
    assert kinds == [nn.Flatten, *[nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2, nn.Linear]
