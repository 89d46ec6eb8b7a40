"""The measured risk of masks equals that of a plain loop, over cases, patients and groups."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.conformal import RiskControl, risk_of
from leanbayes.conformal.testing import mean_interval


def cases(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 2, 6, 5, generator=source)
    truth = (torch.rand(count, 6, 5, generator=source) < logits.softmax(1)[:, 1].float()).long()
    truth[::9] = 0  # cases without any true pixel
    truth[1, :2] = -100  # pixels that do not count
    return logits, truth


def by_hand(control: RiskControl, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    losses, shares = [], []
    for mask, truth in zip(control.masks(x), y, strict=True):
        counted, lesion = truth != -100, truth == 1
        losses.append((lesion & ~mask).sum() / lesion.sum() if lesion.any() else torch.tensor(0.0))
        shares.append((mask & counted).sum() / counted.sum())
    return torch.stack(losses).double(), torch.stack(shares).double()


def test_it_equals_a_loop_over_cases_patients_and_groups() -> None:
    x, y = cases()
    control = RiskControl(nn.Identity(), level=0.2).calibrate([(x[:30], y[:30])])
    test = [(x[30 + i : 40 + i], y[30 + i : 40 + i]) for i in (0, 10, 20)]
    losses, shares = by_hand(control, x[30:], y[30:])
    alone = risk_of(control, test)
    assert alone.overall.mean == pytest.approx(losses.mean().item(), abs=1e-6)
    assert alone.marked == pytest.approx(shares.mean().item(), abs=1e-6)
    assert (alone.overall.count, alone.by_group) == (30, {})
    patients = ["anna"] * 12 + ["bert"] * 3 + [f"p{i}" for i in range(15)]
    groups = [5] * 15 + [2] * 15
    both = risk_of(control, test, patients=patients, groups=groups)
    each = [losses[:12].mean(), losses[12:15].mean(), *losses[15:]]
    assert both.overall.count == 17
    assert both.overall.mean == pytest.approx(torch.stack(each).mean().item(), abs=1e-6)
    assert both.overall.interval == mean_interval(both.overall.mean, 17)
    assert both.by_group.keys() == {2, 5}
    assert both.by_group[5].count == 2
    assert both.by_group[5].mean == pytest.approx(torch.stack(each[:2]).mean().item(), abs=1e-6)


def test_bad_input() -> None:
    x, y = cases()
    control = RiskControl(nn.Identity(), level=0.2)
    with pytest.raises(lb.errors.InputError, match="calibrate"):
        risk_of(control, [(x, y)])
    control.calibrate([(x, y)])
    with pytest.raises(lb.errors.InputError, match="no test cases"):
        risk_of(control, [])
    with pytest.raises(lb.errors.ShapeMismatch, match="patients= must have one entry for each of 60 cases, got 2"):
        risk_of(control, [(x, y)], patients=["a", "b"])
    with pytest.raises(lb.errors.ShapeMismatch, match="groups= must have one entry"):
        risk_of(control, [(x, y)], groups=[1, 2])
    with pytest.raises(lb.errors.InputError, match="give names numbers first"):
        risk_of(control, [(x, y)], groups=["a"] * 60)
