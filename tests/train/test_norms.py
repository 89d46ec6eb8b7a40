"""Batch norm and random weights: what is held, what trains on, and why."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb


def test_layers_with_running_statistics_are_put_in_eval_mode_and_no_others() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.InstanceNorm2d(2),
        nn.InstanceNorm2d(2, track_running_stats=True),
        nn.BatchNorm2d(2, track_running_stats=False), nn.GroupNorm(1, 2),
    )  # fmt: skip
    bnn = lb.fix_statistics(lb.Bayesian(model).train())
    assert [layer.training for layer in model] == [True, False, True, True, False, True, True]
    assert bnn.training


def test_statistics_stay_and_scale_and_shift_train_on() -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    lb.fix_statistics(bnn.train())
    norm = bnn.model[1]
    before = norm.running_mean.clone(), norm.running_var.clone()
    bnn(torch.randn(5, 3) + 7).square().sum().backward()
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])
    assert norm.weight.grad.abs().sum() > 0


def test_a_batch_norm_in_train_mode_hides_the_noise_of_a_bias() -> None:
    """The reason: a shift before it is undone exactly in train mode, and felt in full when the statistics are held."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    bnn = lb.Bayesian(model, subspace=lb.layers("0.bias"), posterior=lb.posteriors.Normal(1.0))
    x = torch.randn(20, 3, dtype=torch.float64)

    def spread() -> float:
        return torch.stack([bnn(x) for _ in range(200)]).std(0).mean().item()

    bnn.train()
    assert spread() < 1e-12
    lb.fix_statistics(bnn)
    scale = (model[1].weight / (model[1].running_var + model[1].eps).sqrt()).abs().mean().item()
    assert abs(spread() / scale - 1) < 0.1


@pytest.mark.parametrize(
    ("propagate", "held"), [("sample", True), ("local", True), ("mirrored", False), ("flipout", False)]
)
def test_fit_holds_statistics_where_a_batch_shares_one_draw(propagate: str, held: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(20, 3) + 5, torch.randint(0, 2, (20,)))
    bnn = lb.Bayesian(model, propagate=propagate)
    lb.fit(bnn, DataLoader(data, batch_size=10), likelihood=lb.Categorical(), epochs=1)
    assert torch.equal(model[1].running_mean, torch.zeros(4)) is held


@pytest.mark.parametrize("propagate", ["mirrored", "flipout"])
def test_where_draws_differ_within_a_batch_a_batch_norm_does_not_hide_the_noise(propagate: str) -> None:
    """Statistics of ± one draw are, to first order, those at the mean; of N signs they take 1/N of the variance."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    x = 3 * torch.randn(200, 3, dtype=torch.float64)

    def deviation(propagate: str) -> float:
        bnn = lb.Bayesian(model, subspace=lb.layers("0.bias"), posterior=lb.posteriors.Normal(0.1), propagate=propagate)
        return torch.stack([bnn.train()(x) for _ in range(2000)]).std(0).mean().item()

    scale = (1 / model[0](x).std(0, correction=0)).mean().item()
    assert deviation("sample") < 1e-12
    assert deviation(propagate) == pytest.approx(0.1 * scale, rel=4 / math.sqrt(2 * 2000 * 4))  # 4 biases, 2000 draws
