"""Predictors on top of networks that predict in one pass: no draws, and the law of a mixture."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.baselines import Ensemble, Temperature


def _network(seed: int, outputs: int = 3, scale: float = 0.2) -> lb.Bayesian:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs)).double()
    return lb.Bayesian(model, posterior=lb.posteriors.Normal(scale), predict_by="moments")


def _inputs(count: int = 50) -> torch.Tensor:
    return torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _with_temperature(model: nn.Module, temperature: float) -> Temperature:
    scaled = Temperature(model)
    scaled.log_temperature.fill_(torch.tensor(temperature).log())
    return scaled


@pytest.mark.parametrize("by", ["moments", "covariance"])
def test_a_temperature_equals_a_last_layer_that_is_divided_by_it(by: str) -> None:
    bnn = _network(0)
    bnn.predict_by = by
    divided = _network(0)
    divided.predict_by = by
    last = divided.model[2]
    scales = {name: part for name, part in divided.parts() if name.startswith("2.")}
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.div_(2)
        for part in scales.values():
            part.rho.copy_(torch.log(torch.expm1(nn.functional.softplus(part.rho) / 2)))
    ours, truth = lb.predict(_with_temperature(bnn, 2.0), _inputs()), lb.predict(divided, _inputs())
    for name in ("mean", "total", "aleatoric", "epistemic"):
        assert torch.allclose(getattr(ours, name), getattr(truth, name), atol=1e-6), name
    assert bool((ours.standard_error == 0).all())


def test_a_temperature_over_one_pass_repeats_exactly() -> None:
    """Before, a temperature made a network that predicts in one pass predict by draws again."""
    scaled = _with_temperature(_network(0), 1.5)
    first, second = lb.predict(scaled, _inputs()), lb.predict(scaled, _inputs())
    assert torch.equal(first.mean, second.mean)
    assert int(first.draws[0]) == 1


def test_an_ensemble_of_one_pass_networks_is_their_equal_mixture() -> None:
    members = [_network(seed) for seed in range(3)]
    together = lb.predict(Ensemble(*members), _inputs())
    apart = [lb.predict(member, _inputs()) for member in members]
    mean = sum(part.mean for part in apart) / 3
    total = torch.special.entr(mean).sum(1)
    aleatoric = sum(part.aleatoric for part in apart) / 3
    assert torch.allclose(together.mean, mean, atol=1e-12)
    assert torch.allclose(together.total, total, atol=1e-12)
    assert torch.allclose(together.epistemic, total - aleatoric, atol=1e-12)
    assert int(together.draws[0]) == 3


def test_binary_labels_mix_as_classes_do() -> None:
    members = [_network(seed, outputs=2) for seed in range(2)]
    together = lb.predict(Ensemble(*members), _inputs(), likelihood=lb.Bernoulli())
    mean = sum(lb.predict(member, _inputs(), likelihood=lb.Bernoulli()).mean for member in members) / 2
    assert torch.allclose(together.mean, mean, atol=1e-12)
    assert torch.allclose(together.total, torch.special.entr(mean) + torch.special.entr(1 - mean), atol=1e-9)


def test_an_ensemble_for_numbers_obeys_the_law_of_total_variance() -> None:
    members = [_network(seed, outputs=1) for seed in range(3)]
    likelihood = lb.Gaussian(0.5)
    together = lb.predict(Ensemble(*members), _inputs(), likelihood=likelihood)
    apart = [lb.predict(member, _inputs(), likelihood=likelihood) for member in members]
    means = torch.stack([part.mean for part in apart])
    epistemic = sum(part.epistemic for part in apart) / 3 + means.var(0, correction=0)
    assert torch.allclose(together.mean, means.mean(0), atol=1e-12)
    assert torch.allclose(together.epistemic, epistemic, atol=1e-12)
    assert torch.allclose(together.total, epistemic + 0.25, atol=1e-12)


def test_the_mixture_agrees_with_long_draws_of_the_outputs() -> None:
    ensemble = _with_temperature(Ensemble(_network(0), _network(1)), 0.7)
    by_laws = lb.predict(ensemble, _inputs(20), samples=256)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([out.softmax(1) for out in ensemble.outputs(_inputs(20), 4000, generator)])
    error = draws.std(0) / 4000**0.5
    assert bool(((by_laws.mean - draws.mean(0)).abs() < 5 * error + 2e-3).all())


def test_an_ensemble_with_a_member_that_draws_predicts_by_draws() -> None:
    drawing = _network(1)
    drawing.predict_by = "sample"
    prediction = lb.predict(Ensemble(_network(0), drawing), _inputs(), samples=8)
    assert int(prediction.draws[0]) == 8


def test_the_temperature_of_one_pass_minimises_the_nll_of_its_predictions() -> None:
    """The best temperature by `Temperature.fit`, against a grid over whole predictions."""
    bnn, x = _network(0, scale=0.4), _inputs(400)
    truth = torch.distributions.Categorical(logits=bnn.model(x).detach() / 3)
    torch.manual_seed(2)
    y = truth.sample()
    fitted = Temperature.fit(bnn, [(x[:200], y[:200]), (x[200:], y[200:])], lb.Categorical())

    def nll(temperature: float) -> float:
        return nn.functional.nll_loss(lb.predict(_with_temperature(bnn, temperature), x).mean.log(), y).item()

    least = min((2.0 ** (i / 16) for i in range(-32, 64)), key=nll)
    assert abs(fitted.temperature / least - 1) < 2 ** (1 / 16) - 1 + 1e-3
    assert nll(fitted.temperature) <= nll(least) + 1e-9


def test_samples_of_a_mixture_can_be_kept() -> None:
    prediction = lb.predict(Ensemble(_network(0), _network(1)), _inputs(5), samples=8, keep_samples=True)
    assert prediction.samples is not None
    assert prediction.samples.shape == (16, 5, 3)


def test_auto_takes_more_points_until_nothing_changes() -> None:
    """Its totals are those of the most points, up to the tolerance, and narrow laws stop at twice the fewest."""
    torch.manual_seed(0)
    x = torch.randn(6, 4, dtype=torch.float64)
    for scale in (0.05, 2.0):
        bnn = lb.Bayesian(nn.Linear(4, 5).double(), posterior=lb.posteriors.Normal(scale), predict_by="moments")
        most = lb.predict(bnn, x, samples=4096)
        for tolerance in (0.02, 1e-3):
            auto = lb.predict(bnn, x, samples="auto", tolerance=tolerance, max_samples=4096)
            assert (auto.total - most.total).abs().max() <= 2 * tolerance
            assert (auto.draws == 1).all()
            assert (auto.standard_error == 0).all()
        if scale < 1:
            assert torch.equal(auto.mean, lb.predict(bnn, x, samples=64).mean)
    few = lb.predict(bnn, x, samples="auto", tolerance=1e-9, max_samples=48)
    assert torch.equal(few.mean, lb.predict(bnn, x, samples=48).mean)


@pytest.mark.parametrize("classes", [2, 3])
def test_auto_for_the_pixels_of_one_pass(classes: int) -> None:
    bnn = lb.Bayesian(nn.Conv2d(1, classes, 3, padding=1), posterior=lb.posteriors.Normal(0.4), predict_by="moments")
    x = torch.randn(3, 1, 5, 6)
    auto = lb.predict(bnn, x, samples="auto", batch_size=2)
    assert auto.total.shape == (3, 5, 6)
    assert auto.draws.tolist() == [1] * 3
    most = lb.predict(bnn, x, samples=2048)
    assert (auto.total - most.total).abs().flatten(1).mean(1).max() < 0.04
