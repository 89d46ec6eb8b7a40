import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp
from torch import Tensor, nn

from leanbayes.baselines import Ensemble, Temperature
from leanbayes.baselines import temperature as module
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian
from leanbayes.prediction import predict


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def known(count: int = 4000, classes: int = 4, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits that are right when divided by ``factor``, and classes drawn from them."""
    logits = 2 * torch.randn(count, classes, generator=seeded(), dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=seeded(1)).squeeze(1)
    return factor * logits, target


def batches(x: Tensor, y: Tensor, size: int = 700) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def best_by_scipy(logits: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """T and nll for draws (S, N, C)."""

    def nll(log_t: float) -> float:
        log_p = logsumexp(log_softmax(logits / np.exp(log_t), axis=-1), axis=0) - np.log(len(logits))
        return -log_p[np.arange(len(y)), y].sum()

    result = minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    return math.exp(result.x), result.fun


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 10.0])
def test_scaled_logits_are_scaled_back_and_agree_with_scipy(factor: float) -> None:
    logits, y = known(factor=factor)
    result = Temperature.fit(nn.Identity(), batches(logits, y), Categorical())
    assert result.members == 1
    expected, _ = best_by_scipy(logits[None].numpy(), y.numpy())
    assert result.temperature == pytest.approx(expected, rel=1e-4)
    # The curvature of the nll in log T gives T's standard error.
    assert result.temperature == pytest.approx(factor, rel=0.1)


def test_the_factor_carries_over_exactly() -> None:
    one, three = (Temperature.fit(nn.Identity(), batches(*known(factor=c)), Categorical()) for c in (1.7, 5.1))
    assert three.temperature / one.temperature == pytest.approx(3.0, rel=1e-4)


def test_an_ensemble_is_scaled_by_the_nll_of_its_mean_prediction() -> None:
    _, y = known()
    models = [nn.Linear(4, 4).double() for _ in range(3)]
    x = torch.randn(len(y), 4, generator=seeded(2), dtype=torch.float64) + torch.eye(4, dtype=torch.float64)[y]
    with torch.no_grad():
        for model in models:
            model.weight.copy_(6 * torch.eye(4) + torch.randn(4, 4))
    draws = np.stack([np.asarray(model(x).detach()) for model in models])
    expected, nll = best_by_scipy(draws, y.numpy())
    scaled = Temperature.fit(Ensemble(*models), batches(x, y), Categorical())
    assert scaled.temperature == pytest.approx(expected, rel=1e-4)
    assert expected > 1.5
    result = predict(scaled, x)
    assert result.draws.tolist() == [3] * len(y)
    assert -result.mean[torch.arange(len(y)), y].log().sum().item() == pytest.approx(nll, rel=1e-6)


def test_a_bayesian_model_keeps_its_randomness() -> None:
    bnn = Bayesian(nn.Linear(4, 3))
    nn.init.normal_(bnn.model.weight, std=20.0)
    x, y = torch.randn(300, 4), torch.randint(3, (300,))
    scaled = Temperature.fit(bnn, batches(x, y), Categorical(), samples=8, generator=seeded())
    assert scaled.members is None
    assert scaled.temperature > 3
    raw, cool = (next(m.outputs(x, 1, seeded(9))) for m in (Temperature(bnn), scaled))
    torch.testing.assert_close(raw / scaled.temperature, cool)
    before, after = (predict(m, x, samples=8, generator=seeded(3)) for m in (bnn, scaled))
    rows = torch.arange(300)
    assert after.mean[rows, y].log().mean() > before.mean[rows, y].log().mean()


def test_pixels_and_void_pixels() -> None:
    logits, y = known(count=2 * 20 * 10, factor=2.5)
    images = logits.view(2, 20, 10, 4).movedim(-1, 1)
    plain = Temperature.fit(nn.Identity(), [(logits, y)], Categorical())
    result = Temperature.fit(nn.Identity(), [(images, y.view(2, 20, 10))], Categorical())
    assert result.temperature == pytest.approx(plain.temperature, rel=1e-5)
    void = torch.cat([y.view(2, 20, 10), torch.full((2, 20, 10), 9)])
    more = torch.cat([images, 100 * torch.randn(images.shape, dtype=torch.float64)])
    ignoring = Temperature.fit(nn.Identity(), [(more, void)], Categorical(ignore_index=9))
    assert ignoring.temperature == pytest.approx(plain.temperature, rel=1e-5)


@pytest.mark.parametrize("target", [torch.long, torch.float64])
def test_labels(target: torch.dtype) -> None:
    logits = torch.randn(3000, 3, generator=seeded(), dtype=torch.float64)
    y = torch.bernoulli(logits.sigmoid(), generator=seeded(1))
    result = Temperature.fit(nn.Identity(), batches(4 * logits, y.to(target)), Bernoulli())

    def nll(log_t: float) -> float:
        return nn.functional.binary_cross_entropy_with_logits(4 * logits / math.exp(log_t), y, reduction="sum").item()

    best = minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert result.temperature == pytest.approx(math.exp(best.x), rel=1e-4)
    assert result.temperature == pytest.approx(4, rel=0.15)


def test_labels_of_several_draws_average_probabilities() -> None:
    y = torch.bernoulli(torch.full((2000, 1), 0.7, dtype=torch.float64), generator=seeded())
    models = []
    for bias in (8.0, -2.0):
        model = nn.Linear(1, 1).double()
        nn.init.zeros_(model.weight)
        nn.init.constant_(model.bias, bias)
        models.append(model)

    def nll(log_t: float) -> float:
        t = math.exp(log_t)
        p = torch.sigmoid(torch.tensor([8.0, -2.0], dtype=torch.float64) / t).mean()
        return -(y * p.log() + (1 - y) * (1 - p).log()).sum().item()

    best = minimize_scalar(nll, bounds=(-2.9, 2.9), method="bounded", options={"xatol": 1e-9})
    result = Temperature.fit(Ensemble(*models), [(torch.zeros(2000, 1, dtype=torch.float64), y)], Bernoulli())
    assert nll(math.log(result.temperature)) <= best.fun + 1e-6


def test_it_is_never_worse_than_leaving_it() -> None:
    for seed in range(20):
        x, y = torch.randn(7, 3, generator=seeded(seed)), torch.randint(3, (7,), generator=seeded(seed + 50))
        result = Temperature.fit(nn.Identity(), [(x, y)], Categorical())
        loss = nn.functional.cross_entropy
        assert loss(result(x), y) <= loss(x, y) + 1e-6
    constant = Temperature.fit(nn.Identity(), [(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))], Categorical())
    assert constant.temperature == 1.0


def test_separable_data_stop_at_the_bound() -> None:
    y = torch.arange(3)
    result = Temperature.fit(nn.Identity(), [(torch.eye(3), y)], Categorical())
    assert result.temperature == pytest.approx(1 / 20, rel=1e-4)


def test_more_data_than_fit_are_thinned_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, y = known(count=20000, factor=2.0)
    monkeypatch.setattr(module, "_MOST_LOGITS", 4 * 3000)
    seen = []
    best = module._Logits.best
    monkeypatch.setattr(module._Logits, "best", lambda self: seen.append(self) or best(self))
    result = Temperature.fit(nn.Identity(), batches(logits, y, 500), Categorical())
    kept = sum(len(target) for _, target, _ in seen[0].chunks)
    assert 1500 * 0.8 < kept <= 3000
    whole, _ = best_by_scipy(logits[None].numpy(), y.numpy())
    assert result.temperature == pytest.approx(whole, rel=0.1)
    assert all(len(target) > 20 for _, target, _ in seen[0].chunks)  # early and late batches alike


def test_logits_inside_other_outputs_are_found() -> None:
    class Wrapped(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": x}

    logits, y = known(factor=3.0)
    result = Temperature.fit(Wrapped(), [(logits, y)], Categorical())
    assert result.temperature == pytest.approx(3, rel=0.1)
    torch.testing.assert_close(result(logits), logits / result.temperature)


def test_the_model_is_fitted_in_eval_mode_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(4)).double().train()
    model[1].running_var.fill_(1.0 - model[1].eps)
    logits, y = known(factor=3.0)
    result = Temperature.fit(model, [(logits, y)], Categorical())
    assert result.temperature == pytest.approx(3, rel=0.1)
    assert all(child.training for child in model.modules())
    assert model[1].num_batches_tracked == 0


def test_class_weights_do_not_tilt_the_temperature() -> None:
    logits, y = known(factor=2.0)
    plain, weighted = (
        Temperature.fit(nn.Identity(), [(logits, y)], likelihood)
        for likelihood in (Categorical(), Categorical(torch.tensor([9.0, 1.0, 1.0, 1.0])))
    )
    assert plain.temperature == weighted.temperature


def test_what_cannot_be_used_is_named() -> None:
    x, y = known(10)
    with pytest.raises(InputError, match="Gaussian"):
        Temperature.fit(nn.Identity(), [(x, x)], Gaussian())
    with pytest.raises(InputError, match="no targets"):
        Temperature.fit(nn.Identity(), [], Categorical())
    with pytest.raises(InputError, match="no targets"):
        Temperature.fit(nn.Identity(), [(x, torch.full((10,), -100))], Categorical())
    with pytest.raises(ShapeMismatch):
        Temperature.fit(nn.Identity(), [(x, y[:5])], Categorical())
    with pytest.raises(NonFinite, match="NaN"):
        Temperature.fit(nn.Identity(), [(x * math.nan, y)], Categorical())
    with pytest.raises(InputError, match="samples"):
        Temperature.fit(nn.Identity(), [(x, y)], Categorical(), samples=0)
    with pytest.raises(InputError, match="pair"):
        Temperature(nn.Identity()).rescaled((x, x))


def test_the_search_looks_at_all_draws_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    logits, y = known(count=6000, factor=2.0)
    draws = logits + 0.5 * torch.randn(4, *logits.shape, generator=generator)
    monkeypatch.setattr(module, "_GRID_LOGITS", 4 * 4 * 400)
    monkeypatch.setattr(module, "_BLOCK", 999)
    seen: list[int] = []
    nll = module._Logits.nll
    monkeypatch.setattr(module._Logits, "nll", lambda self, *how: seen.append(self.targets) or nll(self, *how))
    stored = module._Logits(Categorical(), None)
    stored.add(iter(draws), y)
    temperature = math.exp(stored.best())
    whole, _ = best_by_scipy(draws.numpy(), y.numpy())
    assert temperature == pytest.approx(whole, rel=1e-4)
    assert sum(targets == 6000 for targets in seen) <= 30  # golden sections needed 34 after a grid of 25
    assert all(targets == 6000 or 200 < targets < 800 for targets in seen)


@pytest.mark.parametrize("valley", [-1.0, -0.37, 0.0, 0.2, 1.0])
def test_brents_search_finds_the_valley(valley: float) -> None:
    def function(x: float) -> float:
        return math.exp(abs(x - valley)) - abs(x - valley) + 0.1 * (x - valley) ** 2

    assert module._brent(function, -1.0, 0.1, 1.0) == pytest.approx(valley, abs=2e-5)


def test_a_search_in_float32_finds_the_temperature_of_float64(monkeypatch):
    """Of many targets, for which the kernel takes the place of torch."""
    source = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 30_000, 5, generator=source)
    y = torch.distributions.Categorical(logits=logits[0] / 2.5).sample()
    best = []
    for many in (2**40, 1000):
        monkeypatch.setattr(module, "_MANY", many)
        stored = module._Logits(Categorical(), None)
        stored.add(iter(logits), y)
        best.append(stored.best())
        assert stored.fine == (many > 30_000)
    assert best[0] != 0
    assert abs(best[1] - best[0]) < 2e-4
    assert stored.nll(best[0], False) == pytest.approx(stored.nll(best[0]), rel=1e-6)
