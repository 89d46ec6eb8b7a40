"""The width and the temperature that the validation set decides, against a search over whole predictions."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.baselines import Temperature
from leanbayes.lab.recipes.lean_calibration import Calibration, calibrate, widen


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


def test_the_choice_has_the_least_nll_of_all_widths_around_it() -> None:
    network = _network(0.6)
    batches = _data()
    chosen = calibrate(network, batches, lb.Categorical())

    def nll(width: float) -> float:
        other = _network(0.6)
        widen(other, width)
        fitted = Temperature.fit(other, batches, lb.Categorical())
        return lb.evaluate(fitted, batches, likelihood=lb.Categorical()).metrics["nll"]

    for factor in (2**-0.5, 2**0.5):
        assert nll(chosen.width) <= nll(chosen.width * factor) + 1e-6
    assert abs(nll(chosen.width) - chosen.nll) < 1e-3
    assert 0.35 <= chosen.width <= 0.71
    assert chosen.rescaling is not None
    assert 0.7 < chosen.rescaling < 1.4


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
