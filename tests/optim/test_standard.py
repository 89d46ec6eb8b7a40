"""Optimizers by name: those of torch, and one from another package."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._catalogue import Catalogue
from leanbayes.optim import OPTIMIZERS, Problem, _name_of
from leanbayes.optim.standard import SGDWithAdamForScales


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", SGDWithAdamForScales)]
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


def test_sgd_trains_means_by_sgd_and_scales_by_adam() -> None:
    """Each group must take the very steps of torch's own optimizer of that kind."""
    torch.manual_seed(0)
    values = [torch.randn(5, dtype=torch.float64) for _ in range(2)]
    gradients = [[torch.randn(5, dtype=torch.float64) for _ in range(2)] for _ in range(7)]
    ours = [nn.Parameter(value.clone()) for value in values]
    theirs = [nn.Parameter(value.clone()) for value in values]
    both = SGDWithAdamForScales(
        [{"params": [ours[0]], "weight_decay": 0.1}, {"params": [ours[1]], "rule": "adam", "lr": 0.02}], lr=0.3
    )
    sgd = torch.optim.SGD([theirs[0]], lr=0.3, momentum=0.9, weight_decay=0.1)
    adam = torch.optim.Adam([theirs[1]], lr=0.02)
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 3) for optimizer in (both, sgd, adam)]
    for pair in gradients:
        for own, other, gradient in zip(ours, theirs, pair, strict=True):
            own.grad, other.grad = gradient.clone(), gradient.clone()
        for optimizer in (both, sgd, adam):
            optimizer.step()
        for schedule in schedules:
            schedule.step()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


def test_sgd_of_a_plain_model_is_torchs() -> None:
    model = nn.Linear(2, 1)
    groups = [{"params": list(model.parameters()), "lr": 0.1}]
    assert type(OPTIMIZERS.named("sgd").build(Problem(model, groups, 0.1, 0.0, 10, 5))) is torch.optim.SGD


def test_a_closure_sees_all_groups() -> None:
    means, scales = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    both = SGDWithAdamForScales([{"params": [means]}, {"params": [scales], "rule": "adam"}], lr=0.1)

    def closure() -> torch.Tensor:
        both.zero_grad()
        loss = (means.square() + scales.square()).sum()
        loss.backward()
        return loss

    for _ in range(2):
        assert both.step(closure) is not None
    torch.testing.assert_close(scales.detach(), torch.full((2,), 0.8), rtol=0, atol=1e-3)
