"""Noise against its own statistics, against Φ, and against the closed-form variance of a linear model."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from leanbayes.baselines import Ensemble
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian
from leanbayes.metrics.regression import rmse
from leanbayes.posteriors import Normal
from leanbayes.prediction import predict
from leanbayes_papers.noise import SNRS, accuracy_under_noise, add_noise, noise_curve, output_variance


def images(seed: int = 0, n: int = 6, side: int = 60) -> torch.Tensor:
    """Return images that differ in brightness and contrast."""
    source = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.1, 3.0, n, dtype=torch.float64).view(n, 1, 1, 1)
    return 5 * scale + scale * torch.rand(n, 2, side, side, generator=source, dtype=torch.float64)


@pytest.mark.parametrize("snr", SNRS)
@pytest.mark.parametrize("per", ["image", "set"])
def test_the_ratio_is_what_was_asked_for(snr: float, per: str) -> None:
    x = images()
    noise = (add_noise(x, snr, per=per, generator=torch.Generator().manual_seed(1)) - x).flatten(1)
    count = noise.shape[1]
    signal = x.flatten(1).numpy().var(axis=1) if per == "image" else np.full(len(x), x.numpy().var())
    ratio = noise.square().mean(1).numpy() / (signal / 10 ** (snr / 10))
    assert np.abs(ratio - 1).max() < 4 * math.sqrt(2 / count)  # χ²: the relative error of a variance of n numbers
    assert ((noise.mean(1).abs() / noise.std(1)) < 4 / math.sqrt(count)).all()
    kurtosis = (noise / noise.std(1, keepdim=True)).pow(4).mean(1)
    assert ((kurtosis - 3).abs() < 4 * math.sqrt(24 / count) + 0.01).all()


def test_noise_is_the_same_at_every_ratio_but_for_its_scale() -> None:
    x = images()
    low, high = (add_noise(x, snr, generator=torch.Generator().manual_seed(1)) - x for snr in (-6.0, 14.0))
    assert torch.allclose(low, 10 * high, rtol=1e-9, atol=1e-12)
    other = add_noise(x, -6.0, generator=torch.Generator().manual_seed(2)) - x
    assert not torch.allclose(low, other)


def test_no_signal_no_noise() -> None:
    x = images()
    assert torch.equal(add_noise(x, math.inf), x)
    x[0] = 3.0
    noisy = add_noise(x, -6.0)
    assert torch.equal(noisy[0], x[0])
    assert not torch.equal(noisy[1], x[1])
    assert not torch.equal(add_noise(x, -6.0, per="set")[0], x[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_type_stays_and_half_precision_is_measured_in_full(dtype: torch.dtype) -> None:
    x = (300 * images()).to(dtype)  # squares of these overflow float16
    noisy = add_noise(x, 0.0, generator=torch.Generator().manual_seed(0))
    assert noisy.dtype == dtype
    ratio = (noisy.double() - x.double()).flatten(1).var(1) / x.double().flatten(1).var(1)
    assert ((ratio - 1).abs() < 4 * math.sqrt(2 / x[0].numel()) + 0.01).all()


def test_output_variance_is_that_of_the_predicted_class() -> None:
    draws = torch.rand(9, 20, 4, dtype=torch.float64)
    table = draws.numpy()
    expected = [table[:, i, table[:, i].mean(0).argmax()].var(ddof=1) for i in range(20)]
    assert output_variance(draws).numpy() == pytest.approx(expected)
    assert output_variance(draws, classes=False).numpy() == pytest.approx(table.var(axis=0, ddof=1).mean(axis=1))
    assert output_variance(draws[:1]).tolist() == [0.0] * 20
    assert output_variance(draws[..., 0], classes=False).numpy() == pytest.approx(table[..., 0].var(axis=0, ddof=1))
    pixels = torch.rand(9, 5, 3, 2, 2, dtype=torch.float64)
    by_hand = []
    for image in range(5):
        each = []
        for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
            draws = pixels[:, image, :, row, column]
            each.append(draws[:, int(draws.mean(0).argmax())].var())
        by_hand.append(float(torch.stack(each).mean()))
    assert output_variance(pixels).tolist() == pytest.approx(by_hand)
    with pytest.raises(ShapeMismatch, match="C"):
        output_variance(torch.rand(3, 4))


def test_accuracy_falls_as_the_normal_law_says() -> None:
    x = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(20_000, 1)  # each of variance one
    y = torch.tensor([0, 1]).repeat(20_000)
    snrs = (-20.0, -6.0, 0.0, 6.0)
    curve = noise_curve(nn.Identity(), x, y, snrs, batch_size=7000)
    for snr, got in zip(snrs, curve.score.tolist(), strict=True):
        right = norm.cdf(math.sqrt(2) * 10 ** (snr / 20))  # x₁ + n₁ > x₂ + n₂, with n₁ − n₂ of variance 2s²
        assert abs(got - right) < 4 * math.sqrt(right * (1 - right) / len(x)) + 1e-4
    assert accuracy_under_noise(nn.Identity(), x, y, batch_size=7000) == curve.score[1]
    assert curve.snr.tolist() == list(snrs)


@pytest.mark.parametrize("propagate", ["sample", "moments"])
def test_variance_and_its_normalisation_against_the_closed_form(propagate: str) -> None:
    model = nn.Linear(64, 1, bias=False).double()
    bnn = Bayesian(model, posterior=Normal(init_scale=0.2))
    x = torch.randn(200, 64, dtype=torch.float64)
    y = model(x).detach()
    snrs, draws = (10.0, -6.0, 0.0), 512
    curve = noise_curve(
        bnn, x, y, snrs, likelihood=Gaussian(0.5), samples=draws, by=propagate, score=rmse, batch_size=70
    )
    noisy = [add_noise(x, snr, generator=torch.Generator().manual_seed(0)) for snr in snrs]
    truth = torch.stack([0.04 * z.square().sum(1).mean() for z in noisy])  # Var(wᵀx) = σ²‖x‖²
    # Draws are shared by the inputs; of one input the relative error is √(2/draws), of the mean over inputs less.
    assert (curve.variance / truth - 1).abs().max() < 4 * math.sqrt(2 / draws)
    assert (curve.epistemic / truth - 1).abs().max() < 4 * math.sqrt(2 / draws)
    assert curve.aleatoric.tolist() == pytest.approx([0.25] * 3)
    assert curve.total.tolist() == pytest.approx((curve.aleatoric + curve.epistemic).tolist())
    assert curve.normalised[1] == 1
    assert curve.normalised.tolist() == pytest.approx((truth / truth[1]).tolist(), rel=0.05)
    wrong = torch.stack([rmse(model(z).detach(), y) for z in noisy])
    assert curve.score.tolist() == pytest.approx(wrong.tolist(), rel=0.1)  # the posterior mean is drawn, not known


def test_every_kind_of_predictor_and_of_task() -> None:
    x, y = torch.randn(30, 4), torch.randint(3, (30,))
    plain = nn.Linear(4, 3)
    certain = noise_curve(plain, x, y)
    assert certain.variance.tolist() == [0.0] * len(SNRS)
    assert torch.isnan(certain.normalised).all()
    assert torch.allclose(certain.total, certain.aleatoric, atol=1e-6)
    members = Ensemble(nn.Linear(4, 3), nn.Linear(4, 3), method="loop")
    spread = noise_curve(members, x, y, (-6.0, 20.0))
    noisy = add_noise(x, -6.0, generator=torch.Generator().manual_seed(0))
    both = torch.stack([member(noisy).softmax(1) for member in members.models])
    assert spread.variance[0].item() == pytest.approx(output_variance(both).mean().item(), rel=1e-5)
    labels = (torch.rand(30, 3) > 0.5).float()
    yes = noise_curve(Bayesian(plain), x, labels, (0.0,), likelihood=Bernoulli(), samples=4)
    assert 0 < yes.variance.item() < 0.25
    masks = torch.randint(2, (5, 6, 6))
    pixels = noise_curve(Bayesian(nn.Conv2d(1, 2, 3, padding=1)), torch.randn(5, 1, 6, 6), masks, (0.0,), samples=4)
    assert 0 < pixels.variance.item() < 0.25


def test_a_function_that_predicts_will_do_and_batches_do_not_matter() -> None:
    x, y = torch.randn(50, 4), torch.randint(3, (50,))
    bnn = Bayesian(nn.Linear(4, 3))

    def function(batch: torch.Tensor) -> object:
        source = torch.Generator().manual_seed(0)
        return predict(bnn, batch, samples=6, method="loop", keep_samples=True, generator=source)

    whole = noise_curve(function, x, y, (-6.0, 5.0))  # type: ignore[arg-type]
    parts = noise_curve(function, x, y, (-6.0, 5.0), batch_size=7)  # type: ignore[arg-type]
    for name in ("score", "variance", "total", "epistemic"):
        assert getattr(parts, name).tolist() == pytest.approx(getattr(whole, name).tolist(), rel=1e-5, abs=1e-7)
    with pytest.raises(InputError, match="keep_samples"):
        noise_curve(lambda batch: predict(bnn, batch, samples=2), x, y)
    again = [noise_curve(bnn, x, y, samples=4).variance.tolist() for _ in range(2)]
    assert again[0] == pytest.approx(again[1], rel=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    bnn = Bayesian(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))).train()
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    state = torch.get_rng_state()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    inputs = x.clone()
    noise_curve(bnn, x, torch.zeros(8, dtype=torch.long), (0.0,), samples=2)
    assert bnn.training
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, inputs)


def test_errors_say_what_to_do() -> None:
    x, y = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(InputError, match="float"):
        add_noise(torch.zeros(2, 3, dtype=torch.uint8), 0.0)
    with pytest.raises(UnknownName, match="image"):
        add_noise(x, 0.0, per="batch")  # type: ignore[arg-type]
    for wrong in (math.nan, -math.inf):
        with pytest.raises(InputError, match="decibels"):
            add_noise(x, wrong)
    for empty in (torch.zeros(0, 3), torch.zeros(3), torch.zeros(3, 1)):
        with pytest.raises(ShapeMismatch, match="variance"):
            add_noise(empty, 0.0)
    with pytest.raises(NonFinite, match="NaN"):
        add_noise(torch.full((2, 2), math.nan), 0.0)
    with pytest.raises(InputError, match="at least one"):
        noise_curve(nn.Identity(), x, y, ())
    with pytest.raises(ShapeMismatch, match="4 inputs have 3 targets"):
        noise_curve(nn.Identity(), x, y[:3])
    with pytest.raises(InputError, match="batch_size"):
        noise_curve(nn.Identity(), x, y, batch_size=0)
    assert noise_curve(nn.Identity(), x, y, (0.0,), likelihood=Categorical()).score.dtype == torch.float64
