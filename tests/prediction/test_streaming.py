"""Predictions against closed forms, every way of drawing against every other, and the honesty of their errors."""

import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import entr
from torch import Tensor, nn
from torch.func import functional_call

import leanbayes as lb

METHODS = ["loop", "vmap"]


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(n_out: int = 3, **kwargs: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16, **kwargs), nn.Tanh(), nn.Linear(16, n_out, **kwargs))


PARTS = ("mean", "total", "aleatoric", "epistemic", "standard_error", "draws")


def assert_alike(one: lb.Prediction, two: lb.Prediction, *, exact: bool = False) -> None:
    for name in PARTS:
        a, b = getattr(one, name), getattr(two, name)
        if exact:
            assert torch.equal(a, b), name
        else:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


# ---------------------------------------------------------------- truth


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "flipout"])
def test_a_linear_model_has_a_known_predictive(propagate: str) -> None:
    """f = wᵀx + b: E f = μᵀx + m, Var f = Σ x²σ² + s²; the noise is aleatoric."""
    samples = 1000
    bnn = lb.Bayesian(
        nn.Linear(4, 2, dtype=torch.float64),
        posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho(-1.0, 0.5)),
        propagate=propagate,
        predict_by=propagate,
    )
    x = torch.randn(6, 4, dtype=torch.float64)
    result = lb.predict(bnn, x, likelihood=lb.Gaussian(0.3), samples=samples, generator=seeded())
    rho = {name: parts.rho.detach() for name, parts in bnn.parts()}
    variance = x**2 @ (torch.log1p(rho["weight"].exp()) ** 2).T + torch.log1p(rho["bias"].exp()) ** 2
    mean = x @ bnn.model.weight.detach().T + bnn.model.bias.detach()
    assert ((result.mean - mean).abs() < 5 * (variance / samples).sqrt()).all()
    assert ((result.epistemic - variance).abs() < 5 * math.sqrt(2 / samples) * variance).all()
    torch.testing.assert_close(result.aleatoric, torch.full_like(mean, 0.09), rtol=1e-6, atol=0)
    torch.testing.assert_close(result.total, result.aleatoric + result.epistemic)
    assert (result.draws == samples).all()


def test_class_probabilities_are_the_average_over_weights() -> None:
    """One logit z ~ N(m, s²) against 0: E[σ(z)], E[H] and H(E) by quadrature."""
    model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5], [0.0]]))
    scores = {"weight": torch.tensor([[1.0], [0.0]])}
    bnn = lb.Bayesian(model, subspace=lb.top_k(scores, k=1), posterior=lb.posteriors.Normal(1.2))
    samples = 5000
    result = lb.predict(bnn, torch.tensor([[2.0]], dtype=torch.float64), samples=samples, generator=seeded())
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    p = 1 / (1 + np.exp(-(1.0 + 2.4 * nodes)))
    entropy = lambda q: entr(q) + entr(1 - q)  # noqa: E731
    mean, aleatoric = weights @ p, weights @ entropy(p)
    spread = math.sqrt(weights @ p**2 - mean**2)
    assert abs(result.mean[0, 0].item() - mean) < 5 * spread / math.sqrt(samples)
    noise = math.sqrt(weights @ entropy(p) ** 2 - aleatoric**2)
    assert abs(result.aleatoric.item() - aleatoric) < 5 * noise / math.sqrt(samples)
    slope = abs(math.log((1 - mean) / mean))
    assert abs(result.total.item() - entropy(mean)) < 5 * slope * spread / math.sqrt(samples) + 1e-3
    assert result.epistemic.item() == pytest.approx(result.total.item() - result.aleatoric.item(), abs=1e-12)


def test_statistics_are_those_of_the_draws_by_hand() -> None:
    """The same draws made by torch alone, stacked, and summed up with numpy."""
    bnn, x = (
        lb.Bayesian(mlp(dtype=torch.float64), posterior=lb.posteriors.Normal(0.4)),
        torch.randn(5, 4, dtype=torch.float64),
    )
    result = lb.predict(bnn, x, samples=11, generator=seeded(), method="loop", keep_samples=True)
    generator = seeded()
    with torch.no_grad():
        outputs = [functional_call(bnn.model, bnn.draw(generator=generator), (x,)) for _ in range(11)]
    p = torch.softmax(torch.stack(outputs), 2).numpy()
    np.testing.assert_allclose(result.samples, p, rtol=1e-12)
    np.testing.assert_allclose(result.mean, p.mean(0), rtol=1e-12)
    np.testing.assert_allclose(result.total, -(p.mean(0) * np.log(p.mean(0))).sum(1), rtol=1e-12)
    np.testing.assert_allclose(result.aleatoric, -(p * np.log(p)).sum(2).mean(0), rtol=1e-12)


# ---------------------------------------------------------------- ways of drawing


@pytest.mark.parametrize("subspace", [lb.everything(), lb.random_k(0.3), lb.layers("2")])
@pytest.mark.parametrize("samples", [1, 2, 9, 40])
def test_loop_and_vmap_and_auto_agree(subspace: lb.subspace.Subspace, samples: int) -> None:
    bnn, x = lb.Bayesian(mlp(), subspace=subspace, posterior=lb.posteriors.Normal(0.3)), torch.randn(5, 4)
    result = [
        lb.predict(bnn, x, samples=samples, method=method, generator=seeded()) for method in ("loop", "vmap", "auto")
    ]
    if samples == 1:
        assert all(torch.isinf(p.standard_error).all() for p in result)
    assert_alike(result[0], result[1])
    assert_alike(result[0], result[2])


def test_convolutions_agree_too() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3))
    bnn, x = lb.Bayesian(model, subspace=lb.random_k(0.5)), torch.randn(3, 1, 4, 4)
    one, two = (lb.predict(bnn, x, samples=7, method=method, generator=seeded()) for method in METHODS)
    assert_alike(one, two)


class Branching(nn.Module):
    """Python decides by a random value: no vmap can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if y.sum().item() > 0 else -y


def test_auto_falls_back_without_losing_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of the n-th draw does not depend on how it is computed, nor on a trial of vmap that failed."""
    monkeypatch.setattr(sys.modules["leanbayes.prediction.draws"], "_SMALL_CALL", 10.0)  # so that vmap is tried
    bnn, x = lb.Bayesian(Branching(), posterior=lb.posteriors.Normal(0.5)), torch.randn(5, 4)
    one, two = (lb.predict(bnn, x, samples=12, method=method, generator=seeded()) for method in ("loop", "auto"))
    assert (one.draws == 12).all()
    assert_alike(one, two)


def test_auto_with_vmap_forced_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["leanbayes.prediction.draws"], "_SMALL_CALL", 10.0)
    bnn, x = lb.Bayesian(mlp(), posterior=lb.posteriors.Normal(0.5)), torch.randn(5, 4)
    one, two = (lb.predict(bnn, x, samples=30, method=method, generator=seeded()) for method in ("loop", "auto"))
    assert_alike(one, two)


@pytest.mark.parametrize("method", METHODS)
def test_predictions_follow_the_generator(method: str) -> None:
    bnn, x = lb.Bayesian(mlp(), posterior=lb.posteriors.Normal(0.3)), torch.randn(5, 4)
    one, again, other = (lb.predict(bnn, x, samples=6, method=method, generator=seeded(s)) for s in (1, 1, 2))
    assert_alike(one, again, exact=True)
    assert not torch.equal(one.mean, other.mean)
    assert not torch.equal(lb.predict(bnn, x, samples=6).mean, lb.predict(bnn, x, samples=6).mean)


def test_another_propagation() -> None:
    """Equal rows: one weight draw moves them together, local reparameterization each on its own."""
    bnn, x = lb.Bayesian(nn.Linear(4, 2), posterior=lb.posteriors.Normal(0.5)), torch.ones(3, 4)
    common = {"likelihood": lb.Gaussian(1.0), "samples": 3, "keep_samples": True}
    together = lb.predict(bnn, x, **common).samples
    apart = lb.predict(bnn, x, by="local", **common).samples
    assert (together == together[:, :1]).all()
    assert (apart != apart[:, :1])[:, 1:].all()


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("samples", [16, 128])
def test_statistics_stream(samples: int) -> None:
    """However many draws are made, a few outputs are alive at once."""
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def watch(output: Tensor) -> Tensor:
        alive.append(sum(ref() is not None for ref in made))
        made.append(weakref.ref(output))
        return output

    bnn = lb.Bayesian(mlp(), posterior=lb.posteriors.Normal(0.3))
    for likelihood in (lb.Categorical(), lb.Gaussian(1.0)):
        made.clear()
        alive.clear()
        lb.predict(bnn, torch.randn(3, 4), likelihood=likelihood, samples=samples, method="loop", output=watch)
        assert len(made) == samples
        assert max(alive) <= 3


@pytest.mark.parametrize("samples", [64, 256])
def test_vmap_works_in_chunks(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest stack of weight draws does not grow with the number of draws."""
    module, largest, real = sys.modules["leanbayes.prediction.draws"], [0], torch.func.vmap

    def watching(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def run(tensors: dict[str, Tensor]) -> Any:
            largest[0] = max(largest[0], *(len(t) for t in tensors.values()))
            return real(function, **options)(tensors)

        return run

    monkeypatch.setattr(module, "vmap", watching)
    lb.predict(lb.Bayesian(mlp()), torch.randn(3, 4), samples=samples, method="vmap")
    assert 2 <= largest[0] <= 32


def test_kept_samples() -> None:
    bnn, x = lb.Bayesian(mlp(), posterior=lb.posteriors.Normal(0.3)), torch.randn(5, 4)
    for method in METHODS:
        result = lb.predict(bnn, x, samples=6, keep_samples=True, method=method)
        assert result.samples.shape == (6, 5, 3)
        torch.testing.assert_close(result.samples.mean(0), result.mean)
        assert (result.samples[0] != result.samples[1]).all()
    assert lb.predict(bnn, x, samples=6).samples is None
    split = lb.predict(bnn, x, samples=6, keep_samples=True, batch_size=2)
    assert split.samples.shape == (6, 5, 3)
    torch.testing.assert_close(split.samples.mean(0), split.mean)


# ---------------------------------------------------------------- automatic numbers of draws


def uncertain() -> tuple[lb.Bayesian, Tensor]:
    """Logits with standard deviations from 0 to some 4."""
    bnn = lb.Bayesian(nn.Linear(3, 4, dtype=torch.float64), posterior=lb.posteriors.Normal(0.8))
    with torch.no_grad():
        bnn.model.bias.copy_(torch.tensor([0.5, 0.0, 0.2, -0.3]))
    x = torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.1, -0.2], [1.0, 1.0, 1.0], [3.0, -3.0, 3.0]], dtype=torch.float64)
    return bnn, x


def spread_of(bnn: lb.Bayesian, x: Tensor, repeats: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Totals in nats, the standard errors reported with them, and the draws, over independent predictions."""
    generator, likelihood = seeded(), options.get("likelihood", lb.Categorical())
    result = [lb.predict(bnn, x, generator=generator, method="vmap", **options) for _ in range(repeats)]
    totals = torch.stack([likelihood.nats(p).reshape(len(x)) for p in result])
    return totals, torch.stack([p.standard_error for p in result]), torch.stack([p.draws for p in result])


def test_the_standard_error_of_classes_is_honest() -> None:
    """Over repeated predictions the total spreads as each of them says."""
    totals, errors, _ = spread_of(*uncertain(), repeats=150, samples=64)
    ratio = errors.square().mean(0).sqrt() / totals.std(0)
    assert ((ratio > 0.75) & (ratio < 1.35)).all(), ratio


def test_the_standard_error_of_regression_is_honest() -> None:
    _, x = uncertain()
    bnn = lb.Bayesian(nn.Linear(3, 1, dtype=torch.float64), posterior=lb.posteriors.Normal(0.8))
    totals, errors, _ = spread_of(bnn, x, repeats=150, samples=64, likelihood=lb.Gaussian(0.5).double())
    ratio = errors.square().mean(0).sqrt() / totals.std(0)
    assert ((ratio > 0.75) & (ratio < 1.35)).all(), ratio


def test_automatic_draws_reach_the_tolerance_or_the_limit() -> None:
    bnn, x = uncertain()
    for tolerance in (0.01, 0.05, 0.2):
        result = lb.predict(bnn, x, samples="auto", tolerance=tolerance, max_samples=100, generator=seeded())
        allowed = tolerance * (result.draws / 4).sqrt()
        assert ((result.standard_error <= allowed) | (result.draws == 100)).all()
        assert ((result.draws >= 4) & (result.draws <= 100)).all()
        assert result.draws.dtype == torch.long
    assert result.draws.float().mean() < 60


def test_sure_inputs_stop_first() -> None:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.0, 0.0], [-5.0, 0.0]]))
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.3))
    x = torch.tensor([[9.0, 0.0], [0.0, 4.0], [12.0, 0.1], [0.05, 3.0]])
    for method in ("loop", "vmap", "auto"):
        result = lb.predict(
            bnn, x, samples="auto", tolerance=0.01, min_samples=6, max_samples=150, method=method, generator=seeded()
        )
        assert (result.draws[[0, 2]] == 6).all()
        assert (result.draws[[1, 3]] > 10).all()


def test_automatic_draws_of_one_input_are_its_own() -> None:
    """Sums of an input that has left the batch stay as they were: its numbers are those of its own draws alone."""
    bnn, x = uncertain()
    result = lb.predict(bnn, x, samples="auto", tolerance=0.05, generator=seeded(), method="loop")
    first = result.draws == result.draws.min()
    assert first.any()
    assert not first.all()
    direct = lb.predict(bnn, x, samples=int(result.draws.min()), generator=seeded(), method="loop")
    for name in PARTS:
        torch.testing.assert_close(getattr(result, name)[first], getattr(direct, name)[first])


@pytest.mark.parametrize("batch_size", [None, 1, 3, 5, 8])
def test_automatic_draws_go_to_the_inputs_that_asked_for_them(batch_size: int | None) -> None:
    """Eight inputs, each with a weight of its own: rows leave one by one, and keep their own mean and variance x²σ²."""
    bnn = lb.Bayesian(nn.Linear(8, 1, bias=False, dtype=torch.float64), posterior=lb.posteriors.Normal(0.5))
    sizes = torch.tensor([0.1, 6.0, 0.7, 3.0, 0.3, 9.0, 1.5, 0.01], dtype=torch.float64)
    x = torch.diag(sizes)
    result = lb.predict(
        bnn,
        x,
        likelihood=lb.Gaussian(1.0).double(),
        samples="auto",
        tolerance=0.05,
        min_samples=16,
        max_samples=400,
        batch_size=batch_size,
        generator=seeded(),
    )
    assert len(result.draws.unique()) > 2
    variance, draws = 0.25 * sizes.unsqueeze(1) ** 2, result.draws.unsqueeze(1)
    assert ((result.mean - x @ bnn.model.weight.detach().T).abs() < 5 * (variance / draws).sqrt()).all()
    ratio = result.epistemic / variance  # χ² with draws − 1 degrees of freedom, each over its own number
    assert ((ratio > 0.2) & (ratio < 1 + 5 * (2 / draws).sqrt())).all()


@pytest.mark.parametrize("by", [lb.propagate.Sample(), lb.propagate.Sample(balanced=2)])
def test_automatic_draws_for_pixels_follow_the_mean_error_of_each_image(by: lb.propagate.Sample) -> None:
    """One logit wx against 0 for each pixel: an image of zeros is known at once, and a part of one counts as a part."""
    layer = nn.Conv2d(1, 2, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 0.0]).view(2, 1, 1, 1))
    bnn = lb.Bayesian(layer, posterior=lb.posteriors.Normal(0.6))
    x = torch.zeros(4, 1, 6, 6, dtype=torch.float64)
    x[1, :, 0, 0], x[2, :, 0], x[3] = 2.0, 2.0, 2.0  # one pixel, one row, all pixels
    draws, tolerance = [], 0.01
    for seed in range(12):
        p = lb.predict(bnn, x, by=by, samples="auto", tolerance=tolerance, max_samples=128, generator=seeded(seed))
        allowed = tolerance * (p.draws / 4).sqrt()
        assert ((p.standard_error <= allowed) | (p.draws == 128)).all()
        draws.append(p.draws.double())
    mean = torch.stack(draws).mean(0)
    assert mean[0] == 4
    assert mean[1] < mean[2] < mean[3]
    one = lb.predict(bnn, x[3:, ..., :1, :1], by=by, samples=16, method="loop", generator=seeded(1))
    whole = lb.predict(bnn, x, by=by, samples=16, method="loop", generator=seeded(1))
    shares = torch.tensor([0.0, 1 / 36, 1 / 6, 1.0], dtype=torch.float64)
    torch.testing.assert_close(whole.standard_error, shares * one.standard_error, rtol=1e-6, atol=1e-12)


def test_stubborn_inputs_of_all_batches_are_drawn_together() -> None:
    """One open input in each of ten batches of ten: the later rounds see them as one batch."""
    sizes: list[int] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            return super().forward(x)

    bnn = lb.Bayesian(Watched(3, 4, bias=False), posterior=lb.posteriors.Normal(0.8))
    x = torch.zeros(100, 3)
    x[::10] = 4.0
    result = lb.predict(
        bnn, x, samples="auto", tolerance=1e-6, max_samples=64, batch_size=10, method="loop", generator=seeded()
    )
    assert sizes == [10] * (10 * 4 + 60)
    assert result.draws.tolist() == ([64] + [4] * 9) * 10


@pytest.mark.parametrize("likelihood", ["classes", "regression"])
def test_automatic_draws_are_unbiased_enough(likelihood: str) -> None:
    """What is reported after stopping is near the truth, in units of the error that is reported with it."""
    bnn, x = uncertain()
    law: lb.Likelihood = lb.Categorical()
    if likelihood == "regression":
        bnn, law = (
            lb.Bayesian(nn.Linear(3, 1, dtype=torch.float64), posterior=lb.posteriors.Normal(0.8)),
            lb.Gaussian(0.5).double(),
        )
    truth = law.nats(lb.predict(bnn, x, likelihood=law, samples=20_000, method="vmap", generator=seeded(1)))
    totals, errors, _ = spread_of(bnn, x, repeats=100, samples="auto", tolerance=0.05, likelihood=law)
    actual = (totals - truth.reshape(len(x))).square().mean(0).sqrt()
    claimed = errors.square().mean(0).sqrt()
    assert (actual < 1.6 * claimed).all(), f"actual {actual.tolist()}, claimed {claimed.tolist()}"


def test_automatic_draws_with_tuples_and_regression() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.layer(x) * scale

    bnn = lb.Bayesian(Two(), posterior=lb.posteriors.Normal(0.3))
    inputs = (torch.randn(4, 4), torch.tensor([[0.0], [0.01], [1.0], [10.0]]))
    result = lb.predict(bnn, inputs, likelihood=lb.Gaussian(1.0), samples="auto", tolerance=0.1, max_samples=40)
    assert result.draws[0] == 8
    assert result.epistemic[0] == 0
    assert result.draws[3] > 8


# ---------------------------------------------------------------- the model is left as it was


def test_modes_and_buffers_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.9), nn.Linear(8, 3))
    bnn = lb.Bayesian(model)
    bnn.train()
    model[1].eval()
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    modes = [module.training for module in bnn.modules()]
    x = torch.randn(6, 4)
    with bnn.frozen(seeded()):
        assert torch.equal(lb.predict(bnn, x, samples=2).mean, lb.predict(bnn, x, samples=2).mean)  # no dropout
    lb.predict(bnn, x, samples=3)
    with pytest.raises(lb.errors.NonFinite):
        lb.predict(bnn, x * math.nan, samples=3)
    assert [module.training for module in bnn.modules()] == modes
    assert all(torch.equal(before[name], value) for name, value in bnn.state_dict().items())
    assert all(p.grad is None for p in bnn.parameters())


def test_no_graph_is_kept() -> None:
    result = lb.predict(lb.Bayesian(mlp()), torch.randn(3, 4), samples=3, keep_samples=True)
    assert not any(getattr(result, name).requires_grad for name in (*PARTS, "samples"))


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_inside_inference_mode(method: str) -> None:
    bnn, x = lb.Bayesian(mlp()), torch.randn(3, 4)
    plain = lb.predict(bnn, x, samples=8, generator=seeded(), method=method)
    with torch.inference_mode():
        assert_alike(lb.predict(bnn, x, samples=8, generator=seeded(), method=method), plain)


def test_a_plain_module_is_sure_of_its_weights() -> None:
    calls: list[int] = []
    model = mlp()
    model.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(5, 4)
    result = lb.predict(model, x, samples=16)
    assert len(calls) == 1
    probabilities = torch.softmax(model(x).detach(), 1)
    torch.testing.assert_close(result.mean, probabilities)
    torch.testing.assert_close(result.total, -(probabilities * probabilities.log()).sum(1))
    torch.testing.assert_close(result.epistemic, torch.zeros(5), rtol=0, atol=1e-6)
    assert lb.predict(model, x, samples="auto").draws.tolist() == [4] * 5


def test_one_network_has_no_epistemic_uncertainty() -> None:
    bnn, x = (
        lb.Bayesian(mlp(dtype=torch.float64), posterior=lb.posteriors.Normal(0.5)),
        torch.randn(5, 4, dtype=torch.float64),
    )
    with bnn.frozen(seeded()):
        result = lb.predict(bnn, x, samples=9)
        torch.testing.assert_close(result.mean, torch.softmax(bnn(x), 1).detach())
        assert result.epistemic.max() < 1e-14
        regression = lb.predict(bnn, x, likelihood=lb.Gaussian(1.0), samples=9)
        assert (regression.epistemic == 0).all()
    with bnn.at_mean():
        torch.testing.assert_close(lb.predict(bnn, x, samples=3).mean, torch.softmax(bnn.model(x), 1).detach())
    assert lb.predict(bnn, x, samples=9).epistemic.min() > 1e-6


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_parts_of_a_batch(size: int) -> None:
    bnn, x = lb.Bayesian(mlp()), torch.randn(7, 4)
    with bnn.at_mean():
        whole, parts = lb.predict(bnn, x, samples=3), lb.predict(bnn, x, samples=3, batch_size=size)
    assert_alike(whole, parts)
    random = lb.predict(bnn, x, samples=3, batch_size=size)
    assert len(random) == 7
    assert random.mean.shape == (7, 3)


# ---------------------------------------------------------------- shapes and kinds


def test_shapes_of_every_task() -> None:
    x = torch.randn(5, 4)
    multi = lb.predict(lb.Bayesian(mlp(3)), x, likelihood=lb.Bernoulli(), samples=4)
    assert multi.mean.shape == multi.total.shape == multi.aleatoric.shape == multi.epistemic.shape == (5, 3)
    assert multi.standard_error.shape == multi.draws.shape == (5,)
    one_label = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    assert lb.predict(lb.Bayesian(one_label), x, likelihood=lb.Bernoulli(), samples=4).total.shape == (5,)
    regression = lb.predict(lb.Bayesian(mlp(2)), x, likelihood=lb.Gaussian(1.0), samples=4)
    assert regression.mean.shape == regression.total.shape == (5, 2)
    assert regression.standard_error.shape == (5,)
    flat = lb.predict(lb.Bayesian(one_label), x, likelihood=lb.Gaussian(1.0), samples=4)
    assert flat.mean.shape == flat.total.shape == flat.standard_error.shape == (5,)
    noisy = lb.predict(lb.Bayesian(mlp(4)), x, likelihood=lb.Gaussian("input"), samples=4)
    assert noisy.mean.shape == noisy.aleatoric.shape == (5, 2)
    pixels = lb.predict(lb.Bayesian(nn.Conv2d(1, 3, 3, padding=1)), torch.randn(2, 1, 6, 5), samples=4)
    assert pixels.mean.shape == (2, 3, 6, 5)
    assert pixels.total.shape == pixels.epistemic.shape == (2, 6, 5)
    assert pixels.standard_error.shape == pixels.draws.shape == (2,)
    assert lb.predict(
        lb.Bayesian(nn.Conv2d(1, 3, 3)), torch.randn(3, 1, 6, 5), samples="auto", tolerance=0.3
    ).total.shape == (3, 4, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    result = lb.predict(lb.Bayesian(mlp(dtype=dtype)), torch.randn(3, 4, dtype=dtype), samples=5)
    assert result.mean.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(result.mean.sum(1), torch.ones(3, dtype=result.mean.dtype))


class Reader(nn.Module):
    """An LSTM over tokens with a mask, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.lstm(x)[0]
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        return {"logits": self.head(hidden.sum(1)), "hidden": hidden}


@pytest.mark.parametrize("subspace", [lb.everything(), lb.layers("head"), lb.random_k(0.1)])
def test_recurrent_nets_and_inputs_of_every_kind(subspace: lb.subspace.Subspace) -> None:
    bnn, x, mask = lb.Bayesian(Reader(), subspace=subspace), torch.randn(4, 5, 4), torch.ones(4, 5)
    mask[:, 3:] = 0
    options: dict[str, Any] = {"samples": 6, "method": "loop"}
    result = [
        lb.predict(bnn, inputs, generator=seeded(), **options)
        for inputs in ((x, mask), [x, mask], {"mask": mask, "x": x})
    ]
    assert_alike(result[0], result[1], exact=True)
    assert_alike(result[0], result[2], exact=True)
    assert not torch.allclose(result[0].mean, lb.predict(bnn, x, generator=seeded(), **options).mean)
    assert lb.predict(bnn, {"x": x, "mask": mask}, batch_size=3, samples=2).mean.shape == (4, 3)
    generator = seeded()
    with torch.no_grad():
        outputs = [functional_call(bnn.model, bnn.draw(generator=generator), (x, mask)) for _ in range(6)]
    mean = torch.stack([torch.softmax(out["logits"], 1) for out in outputs]).mean(0)
    torch.testing.assert_close(result[0].mean, mean)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_the_output_that_matters_is_picked(method: str) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[str, Tensor, Tensor]:
            return "text", self.layer(x), x

    bnn, x = lb.Bayesian(Pair()), torch.randn(5, 4)
    result = lb.predict(bnn, x, samples=8, method=method, output=lambda returned: returned[1])
    assert result.mean.shape == (5, 3)
    with pytest.raises(lb.errors.InputError, match="output="):
        lb.predict(bnn, x, samples=8, method=method)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"samples": 0}, lb.errors.InputError, "samples"),
        ({"samples": -3}, lb.errors.InputError, "samples"),
        ({"samples": 2.5}, lb.errors.InputError, "samples"),
        ({"samples": "many"}, lb.errors.InputError, "auto"),
        ({"samples": "auto", "tolerance": 0.0}, lb.errors.InputError, "tolerance"),
        ({"samples": "auto", "tolerance": math.nan}, lb.errors.InputError, "tolerance"),
        ({"samples": "auto", "min_samples": 1}, lb.errors.InputError, "min_samples"),
        ({"samples": "auto", "min_samples": 9, "max_samples": 8}, lb.errors.InputError, "max_samples"),
        ({"samples": "auto", "keep_samples": True}, lb.errors.InputError, "kept"),
        ({"batch_size": 0}, lb.errors.InputError, "batch_size"),
        ({"method": "magic"}, lb.errors.UnknownName, "vmap"),
        ({"by": "telepathy"}, lb.errors.UnknownName, "flipout"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        lb.predict(lb.Bayesian(mlp()), torch.randn(2, 4), **options)


def test_bad_inputs_are_named() -> None:
    bnn = lb.Bayesian(mlp())
    with pytest.raises(lb.errors.InputError, match="empty"):
        lb.predict(bnn, torch.randn(0, 4))
    with pytest.raises(lb.errors.InputError, match="first axis"):
        lb.predict(bnn, (torch.randn(2, 4), torch.randn(3, 4)))
    with pytest.raises(lb.errors.NonFinite, match="NaN"):
        lb.predict(bnn, torch.full((2, 4), math.nan))
    with pytest.raises(lb.errors.NonFinite):
        lb.predict(bnn, torch.full((2, 4), math.inf), likelihood=lb.Gaussian(1.0))


def test_a_bayesian_part_is_not_taken_for_a_sure_one() -> None:
    """One draw of a random head is not a model that is sure of its weights."""
    net = nn.Sequential(nn.Linear(4, 8), lb.Bayesian(nn.Linear(8, 3), posterior=lb.posteriors.Normal(1.0)))
    with pytest.raises(lb.errors.InputError, match="Bayesian"):
        lb.predict(net, torch.randn(2, 4))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("samples", [30, "auto"])
def test_a_later_draw_that_is_not_finite_is_seen(method: str, samples: int | str) -> None:
    """log of a weight that is negative in some draws only."""

    class Log(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale.log()

    bnn = lb.Bayesian(Log(), posterior=lb.posteriors.Normal(0.7))
    generator = seeded(1)
    first = bnn.draw(generator=generator)["scale"].item()
    later = [bnn.draw(generator=generator)["scale"].item() for _ in range(29)]
    assert first > 0 > min(later)
    with pytest.raises(lb.errors.NonFinite):
        lb.predict(bnn, torch.randn(2, 3), samples=samples, tolerance=1e-6, method=method, generator=seeded(1))
