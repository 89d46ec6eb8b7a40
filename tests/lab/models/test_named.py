import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from leanbayes.errors import InputError
from leanbayes.lab.models import MODELS, model_named

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
