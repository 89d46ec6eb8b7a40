"""Models from files of strangers: no file runs code, and none takes memory that it does not need."""

from pathlib import Path
from typing import Any

import pytest
import torch

import leanbayes as lb
from leanbayes.errors import FileError, InputError
from leanbayes.lab.cli.saved import read_model
from leanbayes.lab.data import Preparation
from leanbayes.lab.models import MODELS, model_named
from tests.lab.cli.shell import complaint

PLAN = Preparation("classes", (0.0, 0.0), (1.0, 1.0), ("a", "b"), features=("x", "y"))
CODE = """
from pathlib import Path

def touch(classes=2):
    Path("ran").touch()
"""


def saved(path: Path, **notes: Any) -> Path:
    about = {"model": "mlp", "shape": PLAN.shape, "preparation": PLAN.to_json()} | notes
    lb.save(model_named("mlp", **PLAN.shape), path, about=about)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:exec",
        "builtins:eval",
        "evil:touch",
        " evil:touch",
        "evil:touch.__call__",
        "leanbayes.lab.models.named:importlib.import_module",
        "leanbayes.lab.models.architectures.mlp:mlp",
        "subprocess:run",
        "MLP",
        "../mlp",
        "",
        "\0",
        None,
        7,
        ["mlp"],
        {"mlp": "os:system"},
    ],
)
def test_a_file_names_a_built_in_network_only(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``predict`` imported and called whatever the file named, so ``os:system`` ran with the numbers of the shape."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('imported', 'w').close()\n" + CODE)
    (tmp_path / "x.csv").write_text("x,y\n0,0\n")
    saved(tmp_path / "model.lb", model=name, shape={"command": "touch ran", "in_features": 2, "classes": 2})
    assert "--model" in complaint(capsys, "predict", "model.lb", "x.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"evil.py", "x.csv", "model.lb"}


def test_the_user_may_name_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_net.py").write_text("from leanbayes.lab.models import mlp\nnet = mlp\n")
    file = saved(tmp_path / "model.lb", model="anything:else")
    predictor, _, _ = read_model(file, "my_own_net:net")
    plain, _, _ = read_model(saved(tmp_path / "other.lb"), None)
    assert predictor(torch.ones(1, 2)).shape == plain(torch.ones(1, 2)).shape
    read_model(file, "mlp")


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": ["zero", 0.0]},
        {"mean": 5},
        {"kind": "magic"},
        {"kind": ["classes"]},
        {"classes": 3},
        {"classes": [1, 2]},
        {"ignore": "none"},
        {"more": 1},
        {"std": [0.0, 0.0]},
        {"size": [-1, 3], "features": []},
        {"size": [10**9, 10**9], "features": []},
        {"classes": ["c"] * 90_000},
        {"target_mean": [None], "target_std": [1.0]},
    ],
)
def test_a_preparation_that_cannot_be(changes: dict[str, Any], tmp_path: Path) -> None:
    file = saved(tmp_path / "model.lb", preparation=PLAN.to_json() | changes)
    with pytest.raises((FileError, InputError)):
        read_model(file)


@pytest.mark.parametrize("preparation", [None, 3, [], "text", {}])
def test_no_preparation(preparation: Any, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_model(saved(tmp_path / "model.lb", preparation=preparation))


def test_a_small_file_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    """64 hidden units for each of 7·10⁷ inputs would take 18 GB before the file turns out not to fit."""
    plan = Preparation("classes", (0.0,), (1.0,), ("a", "b"), size=(7_000, 10_000))
    with pytest.raises(FileError, match="weights that it claims"):
        read_model(saved(tmp_path / "model.lb", preparation=plan.to_json()))


@pytest.mark.parametrize("name", list(MODELS))
def test_every_built_in_network_can_be_measured_without_memory(name: str) -> None:
    """The check of the size builds each network on the device "meta"."""
    size = (8, 8, 8) if name == "encoder3d" else (32, 32)
    with torch.device("meta"):
        shape = {"in_channels": 1, "size": size, "in_features": 1024, "classes": 2}
        assert sum(parameter.numel() for parameter in model_named(name, **shape).parameters())
