import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from leanbayes.errors import InputError
from leanbayes.lab.models import MODELS, mlp, model_named, small_cnn, unet

IMAGES = {"in_channels": 2, "size": (9, 14), "in_features": 2 * 9 * 14, "classes": 3}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "mlp"])
def test_classifiers_give_a_row_of_logits_for_each_image(name: str) -> None:
    assert model_named(name, **IMAGES)(torch.randn(2, 2, 9, 14)).shape == (2, 3)


@pytest.mark.parametrize("size", [(8, 8), (9, 14), (28, 28), (33, 8), (64, 100)])
def test_small_cnn_takes_any_size_from_8(size: tuple[int, int]) -> None:
    assert small_cnn(1, 4, size)(torch.randn(2, 1, *size)).shape == (2, 4)


def test_small_cnn_refuses_smaller_images() -> None:
    with pytest.raises(InputError, match="8x8 or more, got 7x9"):
        small_cnn(1, 4, (7, 9))


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


def test_mlp_flattens() -> None:
    assert mlp(12, 2)(torch.randn(5, 3, 4)).shape == (5, 2)


def test_own_function_gets_what_its_signature_names(here: Path) -> None:
    (here / "own_a.py").write_text(
        "from torch import nn\n"
        "def plain(in_features, num_classes, depth=1): return nn.Linear(in_features, num_classes)\n"
        "def nothing(): return nn.Identity()\n"
        "def all_of_it(**shape):\n    model = nn.Identity(); model.got = shape; return model\n"
        "class Holder:\n    @staticmethod\n    def inner(*, classes, size): return nn.Linear(size[0], classes)\n"
    )
    assert model_named("own_a:plain", **IMAGES).weight.shape == (3, 252)
    assert isinstance(model_named("own_a:nothing", **IMAGES), nn.Identity)
    assert model_named("own_a:all_of_it", **IMAGES).got == IMAGES
    assert model_named("own_a:Holder.inner", **IMAGES).weight.shape == (3, 9)


def test_own_package_is_found_in_the_working_directory_and_the_path_left_as_it_was(here: Path) -> None:
    (here / "own_package").mkdir()
    (here / "own_package" / "__init__.py").touch()
    (here / "own_package" / "net.py").write_text("from torch import nn\ndef make(): return nn.Identity()\n")
    before = list(sys.path)
    assert isinstance(model_named("own_package.net:make"), nn.Identity)
    assert sys.path == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet81", "unknown model 'resnet81'; choose from alexnet, densenet121, "),
        ("resnet81", "vgg16, vit, vit_b16, vit_s16, or give your own"),
        ("own_b.make", "unknown model"),
        (":make", "unknown model"),
        ("own_b:", "unknown model"),
        ("own_missing:make", "there is no module 'own_missing' in "),
        ("own_b.inner:make", "there is no module 'own_b.inner'"),
        ("own_b:absent", "own_b has no 'absent'"),
        ("own_b:NUMBER", "is a int; it must be a function"),
        ("own_b:text", "returned a str; it must return a torch.nn.Module"),
        ("own_b:deep", "needs an argument 'depth', but these data give"),
        ("own_b:positional", "needs an argument 'classes'"),
        ("own_c:make", "imports 'own_nowhere', which is not installed"),
        ("own_d:make", "importing own_d failed: SyntaxError"),
        ("own_e:make", "importing own_e failed: RuntimeError: boom"),
    ],
)
def test_every_mistake_in_an_own_model_is_named_in_one_line(here: Path, spec: str, message: str) -> None:
    (here / "own_b.py").write_text(
        "NUMBER = 3\ndef text(): return 'no'\ndef deep(depth): ...\ndef positional(classes, /): ...\n"
    )
    (here / "own_c.py").write_text("import own_nowhere\n")
    (here / "own_d.py").write_text("def make(:\n")
    (here / "own_e.py").write_text("raise RuntimeError('boom\\nsecond line')\n")
    with pytest.raises(InputError) as caught:
        model_named(spec, **IMAGES)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("mlp", "lenet300")])
def test_an_image_model_for_features_says_what_it_needs(name: str) -> None:
    with pytest.raises(
        InputError, match=f"'{name}' needs an argument 'in_channels', but these data give .*in_features"
    ):
        model_named(name, in_features=4, classes=2)
