from pathlib import Path

import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.data import read
from leanbayes.likelihood import Categorical
from tests.lab.data.makers import CLASSES, class_tree


def test_task_of_class_folders(tmp_path: Path) -> None:
    source = read(class_tree(tmp_path, (10, 10, 10)))
    state = torch.random.get_rng_state()
    task = source.task("small_cnn")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert isinstance(task.likelihood, Categorical)
    assert task.classes == CLASSES
    x, y = next(iter(torch.utils.data.DataLoader(task.train, batch_size=5)))
    assert task.model()(x).shape == (5, 3)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64


def test_a_model_that_does_not_fit_the_data_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = read(class_tree(tmp_path / "pets", (10, 10, 10)))
    (tmp_path / "own_misfit.py").write_text(
        "from torch import nn\n"
        "def five(in_features): return nn.Sequential(nn.Flatten(), nn.Linear(in_features, 5))\n"
        "def grey(): return nn.Conv2d(1, 3, 3)\n"
        "def chatty():\n    m = nn.Identity(); m.forward = lambda x: [x]; return m\n"
    )
    monkeypatch.chdir(tmp_path)
    for name, message in (
        ("five", r"returns \(2, 5\) for inputs \(2, 3, 10, 12\); these data need \(2, 3\)"),
        ("grey", r"fails on inputs of shape \(2, 3, 10, 12\)"),
        ("chatty", "the model returned a list"),
    ):
        with pytest.raises(InputError, match=message):
            source.task(f"own_misfit:{name}")
