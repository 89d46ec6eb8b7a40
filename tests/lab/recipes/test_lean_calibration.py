"""The width and the temperature that the validation set decides, against a search over whole predictions."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.baselines import Temperature
from leanbayes.lab.recipes import lean_calibration
from leanbayes.lab.recipes.lean_calibration import Calibration, calibrate, calibrate_one_pass, widen
from leanbayes.propagate import Moments


def _network(scale: float) -> lb.Bayesian:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 3)).double()
    return lb.Bayesian(model, posterior=lb.posteriors.Normal(scale), predict_by="moments")


def _data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Labels drawn from the predictions of a posterior that is half as wide as the one under test."""
    x = 3 * torch.randn(4000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    y = torch.distributions.Categorical(probs=lb.predict(_network(0.3), x).mean).sample()
    return [(x[:2000], y[:2000]), (x[2000:], y[2000:])]


def _fitted(width: float, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
    """Return the least NLL of a width, and its temperature."""
    network = _network(0.6)
    widen(network, width)
    fitted = Temperature.fit(network, batches, lb.Categorical())
    return lb.evaluate(fitted, batches, likelihood=lb.Categorical()).metrics["nll"], fitted.temperature


def test_the_least_nll_is_found() -> None:
    """The best temperature is below 1 here, so there is nothing that a wider posterior could take the place of."""
    batches = _data()
    chosen = calibrate(_network(0.6), batches, lb.Categorical())
    fits = {steps: _fitted(2 ** (steps / 4), batches) for steps in range(-8, 3, 2)}
    least = min(fits, key=lambda steps: fits[steps][0])
    assert chosen.width == pytest.approx(2 ** (least / 4))
    assert 0.35 <= chosen.width <= 0.71
    assert abs(fits[least][0] - chosen.nll) < 1e-3
    assert chosen.rescaling == pytest.approx(fits[least][1], rel=0.02)
    assert chosen.rescaling < 1


@pytest.mark.parametrize(
    ("slope", "power", "widest"),
    [(0.0, -1, 2.0), (0.015, -1, 2**0.25), (0.2, -1, 1.0), (0.0, 0, 1.0), (0.0, 1, 1.0)],  # the temperature must fall
)
def test_wider_posteriors_end_at_temperature_one_or_at_half_a_percent(
    monkeypatch: pytest.MonkeyPatch, slope: float, power: int, widest: float
) -> None:
    def at_width(bnn: object, batches: object, likelihood: object, width: float, seed: int) -> Calibration:
        nll = 0.5 * (1 + slope * abs(math.log2(width)))
        return Calibration(width, 2.0 * width**power, nll, 1000 * nll + abs(math.log2(width)))

    monkeypatch.setattr(lean_calibration, "_at_width", at_width)
    assert calibrate(_network(0.6), [], lb.Categorical()).width == pytest.approx(widest)


def test_a_pass_without_correlations_is_taken_where_it_is_as_good() -> None:
    network = _network(0.6)
    calibrate_one_pass(network, _data(), lb.Categorical())
    assert network.predict_by == Moments(rank=0)


@pytest.mark.parametrize(("with_correlations", "rank"), [(0.996, 0), (0.994, 8)])
def test_correlations_are_taken_where_they_gain_more_than_half_a_percent(
    monkeypatch: pytest.MonkeyPatch, with_correlations: float, rank: int
) -> None:
    def at_width(bnn: lb.Bayesian, batches: object, likelihood: object, width: float, seed: int) -> Calibration:
        nll = (1.0 if bnn.predict_by == Moments(rank=0) else with_correlations) + abs(width - 1)
        return Calibration(width, 1.0, nll, 1000 * nll)

    monkeypatch.setattr(lean_calibration, "_at_width", at_width)
    network = _network(0.6)
    chosen = calibrate_one_pass(network, [], lb.Categorical())
    assert network.predict_by == Moments(rank=rank)
    assert (chosen.width, chosen.nll) == (1.0, with_correlations if rank else 1.0)


def test_the_search_leaves_the_network_as_it_was_and_applying_scales_it() -> None:
    network = _network(0.3)
    before = {name: part.rho.detach().clone() for name, part in network.parts()}
    chosen = calibrate(network, _data(), lb.Categorical())
    assert all(torch.equal(part.rho, before[name]) for name, part in network.parts())
    scaled = Calibration(0.5, 2.0, chosen.nll, chosen.cost).applied(network, lb.Categorical())
    assert isinstance(scaled, Temperature)
    assert abs(scaled.temperature - 2.0) < 1e-6
    for _, part in network.parts():
        assert torch.allclose(nn.functional.softplus(part.rho), torch.tensor(0.15, dtype=torch.float64), atol=1e-6)


def test_numbers_have_a_width_and_no_temperature() -> None:
    torch.manual_seed(0)
    network = lb.Bayesian(nn.Linear(2, 1), posterior=lb.posteriors.Normal(1.0), predict_by="moments")
    x = torch.randn(200, 2)
    chosen = calibrate(network, [(x, network.model(x).detach())], lb.Gaussian(0.1))
    assert chosen.rescaling is None
    assert abs(chosen.width - 0.25) < 1e-9  # the targets are the means, so the narrowest width is the best
    assert chosen.noise is None  # the noise is known
    assert chosen.applied(network, lb.Gaussian(0.1)) is network


def test_a_few_examples_that_are_all_right_do_not_make_the_predictions_certain() -> None:
    """Without a prior, 30 easy examples divide the logits by 1/20, and every epistemic uncertainty becomes 0."""
    network = _network(0.3)
    x = torch.randn(30, 2, dtype=torch.float64)
    y = network.model(x).argmax(1)
    chosen = calibrate(network, [(x, y)], lb.Categorical())
    assert chosen.rescaling is not None
    assert chosen.rescaling > 0.05 * 1.1
    assert Temperature.fit(network, [(x, y)], lb.Categorical()).temperature < chosen.rescaling


def test_a_learned_noise_is_the_one_with_the_least_nll() -> None:
    torch.manual_seed(0)
    network = lb.Bayesian(nn.Linear(2, 1), posterior=lb.posteriors.Normal(0.05), predict_by="moments")
    x = torch.randn(5000, 2)
    y = network.model(x).detach() + 0.3 * torch.randn(5000, 1)
    likelihood = lb.Gaussian("learned")
    calibrate(network, [(x, y)], likelihood).applied(network, likelihood)
    assert abs(likelihood.noise.item() - 0.3) < 0.01
    nll = lb.evaluate(network, [(x, y)], likelihood=likelihood).metrics["nll"]
    for factor in (0.95, 1.05):
        with torch.no_grad():
            likelihood.log_variance.add_(2 * torch.tensor(factor).log())
        assert lb.evaluate(network, [(x, y)], likelihood=likelihood).metrics["nll"] > nll
        with torch.no_grad():
            likelihood.log_variance.sub_(2 * torch.tensor(factor).log())
