"""Optimizers by name: those of torch, and one from another package."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._catalogue import Catalogue
from leanbayes.optim import OPTIMIZERS, Problem, _name_of


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_torchs_optimizers_by_name(name: str, kind: type) -> None:
    bnn = lb.Bayesian(nn.Linear(2, 1))
    groups = bnn.parameter_groups(lr=0.1, scale_lr=0.5, weight_decay=1e-4)
    optimizer = OPTIMIZERS.named(name).build(Problem(bnn, groups, 0.1, 1e-4, 10, 5))
    assert type(optimizer) is kind
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.1, 1e-4), (0.5, 0.0)]
    assert name != "sgd" or optimizer.defaults["momentum"] == 0.9


def test_an_optimizer_from_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is one file and the metadata that pip would install beside it."""
    (tmp_path / "their_optimizer.py").write_text(
        "import torch\n"
        "from leanbayes.optim import NamedOptimizer\n"
        "RMS = NamedOptimizer('rms', lambda problem: torch.optim.RMSprop(problem.groups, lr=problem.lr))\n"
    )
    metadata = tmp_path / "their_optimizer-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-optimizer\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[leanbayes.optimizers]\nrms = their_optimizer:RMS\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    fresh: Catalogue = Catalogue("optimizer", _name_of, package="leanbayes.optim", group="leanbayes.optimizers")
    monkeypatch.setattr("leanbayes.train.options.OPTIMIZERS", fresh)
    monkeypatch.setattr("leanbayes.train.loop.OPTIMIZERS", fresh)
    try:
        history = lb.fit(
            nn.Linear(2, 2),
            [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))],
            likelihood=lb.Categorical(),
            epochs=2,
            optimizer="rms",
        )
    finally:
        sys.modules.pop("their_optimizer", None)
    assert len(history.epochs) == 2
