"""Noise that inputs decide is uniform and repeats; the fingerprint notices every change."""

from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import nn

import leanbayes as lb
from leanbayes.conformal.bits import Guard, fingerprint_of, noise_of

INPUTS = {
    "numbers": torch.randn(4000, 5, generator=torch.Generator().manual_seed(0)),
    "double": torch.randn(4000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    "half": torch.randn(4000, 5, generator=torch.Generator().manual_seed(0)).half(),
    "bytes": torch.randint(0, 256, (4000, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
    "counts": torch.arange(4000)[:, None],
}


@pytest.mark.parametrize("name", INPUTS)
def test_the_noise_is_uniform_and_independent_of_the_seed(name: str) -> None:
    x = INPUTS[name]
    one, two = noise_of(x, 0), noise_of(x, 1)
    for noise in (one, two):
        assert stats.kstest(noise.numpy(), "uniform").pvalue > 1e-3
        assert 0 <= noise.min() <= noise.max() < 1
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 4 / 4000**0.5
    if x.is_floating_point():
        assert abs(torch.corrcoef(torch.stack([one, x[:, 0].double()]))[0, 1]) < 4 / 4000**0.5


@pytest.mark.parametrize("name", INPUTS)
def test_the_noise_depends_on_nothing_but_the_input(name: str) -> None:
    x = INPUTS[name][:50]
    whole = noise_of(x, 3)
    assert torch.equal(torch.cat([noise_of(x[:7], 3), noise_of(x[7:], 3)]), whole)
    order = torch.randperm(50)
    assert torch.equal(noise_of(x[order], 3), whole[order])


def test_inputs_of_several_tensors() -> None:
    x, mask = torch.randn(6, 4), torch.rand(6, 3) > 0.5
    as_tuple, as_mapping = noise_of((x, mask), 0), noise_of({"x": x, "mask": mask}, 0)
    assert torch.equal(as_tuple, as_mapping)
    assert not torch.equal(as_tuple, noise_of(x, 0))
    swapped = torch.stack([x[:, 1], x[:, 0], x[:, 2], x[:, 3]], 1)
    assert not (noise_of(swapped, 0) == noise_of(x, 0)).any()
    with pytest.raises(lb.errors.InputError, match="no tensor"):
        noise_of("text", 0)


def bayesian() -> lb.Bayesian:
    torch.manual_seed(0)
    return lb.Bayesian(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), subspace=lb.random_k(0.5))


CHANGES: dict[str, Callable[[lb.Bayesian], object]] = {
    "a weight": lambda bnn: bnn.model[0].weight.data[0, 0].add_(1e-3),
    "a weight in place": lambda bnn: _nudge(bnn),
    "a scale": lambda bnn: [rho.data.add_(1e-3) for name, rho in bnn.named_parameters() if "rho" in name],
    "a buffer": lambda bnn: bnn.model[1].running_mean.add_(1),
    "two weights that swap": lambda bnn: bnn.model[2].weight.data.copy_(bnn.model[2].weight.data.flip(0)),
    "the propagation": lambda bnn: setattr(bnn, "predict_by", lb.propagate.Moments()),
    "the precision": lambda bnn: bnn.double(),
    "a new tensor": lambda bnn: setattr(bnn.model[0].weight, "data", bnn.model[0].weight.data * 2),
}


def _nudge(bnn: lb.Bayesian) -> None:
    with torch.no_grad():
        bnn.model[0].weight.mul_(1.001)


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_noticed(name: str) -> None:
    bnn = bayesian()
    guard = Guard(fingerprint_of(bnn))
    guard.check(bnn)
    guard.check(bnn)
    CHANGES[name](bnn)
    with pytest.raises(lb.errors.InputError, match="has changed since it was calibrated"):
        guard.check(bnn)


def test_what_predicts_the_same_has_the_same_fingerprint() -> None:
    one, two = bayesian(), bayesian()
    assert fingerprint_of(one) == fingerprint_of(two)
    guard = Guard(fingerprint_of(one))
    guard.check(two)
    two.train()
    lb.predict(two, torch.randn(4, 3), samples=2)
    two.zero_grad()
    guard.check(two)
    with torch.no_grad():
        two.model[0].weight.add_(1).sub_(1)
    if torch.equal(one.model[0].weight, two.model[0].weight):
        guard.check(two)


def test_predictors_within_predictors() -> None:
    whole = lb.baselines.Temperature(lb.baselines.Ensemble(bayesian(), bayesian(), method="loop"))
    guard = Guard(fingerprint_of(whole))
    guard.check(whole)
    whole.log_temperature.fill_(0.3)
    with pytest.raises(lb.errors.InputError, match="changed"):
        guard.check(whole)
