"""Scales that never move are reported, and every optimizer that has a name moves them."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.train.scales import log_scales, movement

X = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
BATCHES = [(X[i : i + 8], (X[i : i + 8, 0] > 0).long()) for i in range(0, 64, 8)]


def train(optimizer: Any, epochs: int = 12, **options: Any) -> tuple[lb.Bayesian, lb.train.History]:
    torch.manual_seed(1)
    bnn = options.pop("bnn", None) or lb.Bayesian(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    return bnn, lb.fit(bnn, BATCHES, likelihood=lb.Categorical(), epochs=epochs, optimizer=optimizer, **options)


sgd = lb.Optimization(torch.optim.SGD, lr=1e-3)


def test_scales_that_did_not_move_are_reported() -> None:
    """Under SGD every experiment compared the initial scales, and nothing said so."""
    with pytest.warns(lb.errors.ScalesDidNotMove, match=r"after 96 steps.*where they began.*\"adam\".*scale_lr"):
        _, history = train(sgd)
    assert history.scales is not None
    assert history.scales.moved < 0.01
    assert history.scales.start == pytest.approx([0.05] * 5)


def test_natural_gradients_are_told_what_moves_their_scales() -> None:
    """The scales of IVON have no learning rate, so the advice names what they follow."""
    still = lb.optim.NaturalGradients(initial_scale=0.05, beta2=1 - 1e-9)
    with pytest.warns(lb.errors.ScalesDidNotMove, match=r"after 96 steps.*lower beta2.*initial_scale") as caught:
        _, history = train(still)
    assert "scale_lr" not in str(caught[0].message)
    assert history.scales is not None
    assert history.scales.start == pytest.approx([0.05] * 5)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "ivon"])
def test_every_named_optimizer_moves_the_scales(optimizer: str) -> None:
    """The tests turn the warning into an error."""
    bnn, history = train(optimizer)
    assert history.scales is not None
    assert history.scales.moved > 0.05
    sigma = torch.cat([bnn.posterior.spread(parts.rho.detach()).flatten() for _, parts in bnn.parts()]).double()
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    # Quantiles of log σ lie between the same two scales as those of σ, so they differ by less than these do.
    torch.testing.assert_close(torch.tensor(history.scales.end).double(), sigma.quantile(levels), rtol=5e-3, atol=0)
    assert history.scales.steps == 96


def test_sgd_reaches_scales_that_the_closed_form_knows() -> None:
    """With no data about w, q must become the prior N(0, 0.3²): the scales of "sgd" go there from 0.05."""
    bnn = lb.Bayesian(nn.Linear(1, 1, bias=False), prior=torch.distributions.Normal(0.0, 0.3))
    batches = [(torch.zeros(4, 1), torch.zeros(4, 1))] * 10
    lb.fit(bnn, batches, likelihood=lb.Gaussian(), epochs=60, optimizer=lb.Optimization("sgd", lr=0.1))
    (parts,) = [parts for _, parts in bnn.parts()]
    assert bnn.posterior.spread(parts.rho).item() == pytest.approx(0.3, rel=0.02)


def test_no_warning_where_none_is_due() -> None:
    bnn = lb.Bayesian(nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(sgd, epochs=1)  # eight steps are a trial
        for _, parts in bnn.parts():
            parts.rho.requires_grad_(False)
        _, frozen = train(sgd, bnn=bnn)
        plain = lb.fit(nn.Linear(3, 2), BATCHES, likelihood=lb.Categorical(), epochs=3)
    assert frozen.scales is None
    assert plain.scales is None


def test_the_start_is_kept_in_the_checkpoint(tmp_path: Path) -> None:
    _, whole = train("sgd", checkpoint=tmp_path)
    (tmp_path / "step-0000000096.safetensors").unlink()
    _, resumed = train("sgd", checkpoint=tmp_path)
    assert resumed.scales == whole.scales


def test_the_movement_is_the_median_of_the_logarithms() -> None:
    start, end = torch.tensor([0.0, 0.0, 0.0]).double(), torch.tensor([0.1, -0.3, 0.0]).double()
    scales = movement(start, end, 5)
    assert scales.moved == pytest.approx(0.1)
    assert scales.end[2] == pytest.approx(1.0)


def test_many_scales_are_looked_at_in_part() -> None:
    bnn = lb.Bayesian(nn.Linear(500, 500))
    logs = log_scales(bnn)
    assert logs is not None
    assert 50_000 < len(logs) <= 100_002
