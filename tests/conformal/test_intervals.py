"""Intervals cover as often as promised, agree with crepes and MAPIE, and refuse what would break the promise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crepes import ConformalRegressor
from mapie.utils import _compute_classification_quantile
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.conformal import Intervals, Quantiles, Scaled

NOISE = lb.Gaussian("input")


class Network(nn.Module):
    """The mean is the first input, and half of the true log-variance the second."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def data(count: int, seed: int = 0, skew: bool = False) -> tuple[Tensor, Tensor]:
    """Numbers whose true deviation is twice the predicted one; skewed ones deviate upwards only."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=source).double()
    noise = torch.randn(count, 1, generator=source).double()
    return x, x[:, :1] + 2 * (noise.abs() if skew else noise) * (x[:, 1:] / 2).exp()


def inside(sets: Intervals, x: Tensor, y: Tensor) -> Tensor:
    lower, upper = sets.intervals(x)
    return ((y >= lower) & (y <= upper))[:, 0]


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("score", ["absolute", "scaled"])
def test_intervals_are_those_of_crepes(level: float, grouped: bool, score: str) -> None:
    """crepes computes (1 − level)(n + 1) in floating point, so the counts here make it no whole number."""
    (x, y), (new, _) = data(490), data(50, seed=2)
    groups, new_groups = (torch.arange(len(part)) % 2 for part in (x, new))
    x[:, 0], new[:, 0] = x[:, 0].abs() * (1 - 2 * groups), new[:, 0].abs() * (1 - 2 * new_groups)
    per = (lambda x: (x[:, 0] < 0).long()) if grouped else None
    ours = Intervals(Network(), level, score, per=per, likelihood=NOISE).calibrate([(x, y)])
    oracle = ConformalRegressor()
    sigmas = {"sigmas": (x[:, 1] / 2).exp().numpy()} if score == "scaled" else {}
    new_sigmas = {"sigmas": (new[:, 1] / 2).exp().numpy()} if score == "scaled" else {}
    bins, new_bins = ({"bins": part.numpy()} if grouped else {} for part in (groups, new_groups))
    oracle.fit((y - x[:, :1])[:, 0].numpy(), **sigmas, **bins)
    theirs = oracle.predict_int(new[:, 0].numpy(), confidence=level, **new_sigmas, **new_bins)
    lower, upper = ours.intervals(new)
    assert torch.cat([lower, upper], 1).numpy() == pytest.approx(theirs, abs=1e-12)


def test_conformalised_quantiles_have_the_threshold_of_mapie() -> None:
    (x, y) = data(400)
    ours = Intervals(Network(), 0.9, "quantiles", likelihood=NOISE).calibrate([(x, y)])
    deviation = 1.6448536269514722 * (x[:, 1] / 2).exp()
    low, high = x[:, 0] - deviation, x[:, 0] + deviation
    scores = torch.maximum(low - y[:, 0], y[:, 0] - high).numpy()
    theirs = _compute_classification_quantile(scores[:, None], np.array([0.1]))[0]
    assert abs(ours.thresholds.item() - theirs) < 1e-12
    asymmetric = Intervals(Network(), 0.9, "quantiles", asymmetric=True, likelihood=NOISE).calibrate([(x, y)])
    for side, score in enumerate((low - y[:, 0], y[:, 0] - high)):
        theirs = _compute_classification_quantile(score.numpy()[:, None], np.array([0.05]))[0]
        assert abs(asymmetric.thresholds[0, side, 0].item() - theirs) < 1e-12


SETTINGS: dict[str, dict[str, Any]] = {
    "absolute": {"score": "absolute"},
    "scaled": {"score": "scaled"},
    "quantiles": {"score": "quantiles"},
    "draws": {"score": Quantiles(of="draws")},
    "asymmetric": {"score": "scaled", "asymmetric": True},
    "asymmetric quantiles": {"score": "quantiles", "asymmetric": True},
    "group": {"score": "absolute", "per": lambda x: (x[:, 1] > 0).long()},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("skew", [False, True])
def test_coverage_is_as_promised(name: str, skew: bool) -> None:
    (x, y), rates = data(4000, 1000, skew), []
    groups = (x[:, 1] > 0).long() if name == "group" else torch.zeros(4000).long()
    for split in range(25):
        made = Intervals(Network(), 0.9, likelihood=NOISE, **SETTINGS[name]).calibrate([data(200, split, skew)])
        hit = inside(made, x, y).double()
        rates.append(torch.stack([hit[groups == g].mean() for g in groups.unique()]))
    mean, error = torch.stack(rates).mean(0), torch.stack(rates).std(0) / 25**0.5
    tested = 4 * (0.09 / torch.bincount(groups)).sqrt()
    assert (mean > 0.9 - 4 * error - tested).all()
    assert (mean < 0.9 + 2 / 80 + 4 * error + tested).all()


def test_scaled_intervals_are_narrower_and_asymmetric_ones_follow_the_skew() -> None:
    x, _ = data(4000, 5)
    widths = {}
    for score in ("absolute", "scaled", "quantiles"):
        lower, upper = Intervals(Network(), 0.9, score, likelihood=NOISE).calibrate([data(2000)]).intervals(x)
        widths[score] = (upper - lower).mean().item()
    assert widths["scaled"] < 0.95 * widths["absolute"]
    skewed = data(2000, 0, skew=True)
    both = [
        Intervals(Network(), 0.9, "absolute", asymmetric=choice, likelihood=NOISE).calibrate([skewed])
        for choice in (True, False)
    ]
    ends = [made.intervals(x) for made in both]
    assert (ends[0][1] - ends[0][0]).mean() < 0.7 * (ends[1][1] - ends[1][0]).mean()


def test_quantiles_of_draws_are_those_of_the_mixture() -> None:
    """Two far networks have a mixture with two humps, whose 5 % quantile no Gaussian has."""

    class Far(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.tensor(shift, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.shift

    ensemble = lb.baselines.Ensemble(*[Far(0.0)] * 3, Far(50.0), method="loop")
    made = Intervals(ensemble, 0.9, Quantiles(of="draws"), likelihood=lb.Gaussian(1.0))
    prediction = made._wide(torch.zeros(1, 1, dtype=torch.float64))
    lower, upper, _ = made._first(prediction)
    normal = torch.distributions.Normal(0.0, 1.0)
    assert lower.item() == pytest.approx(normal.icdf(torch.tensor(0.05 / 0.75)).item(), abs=1e-5)
    assert upper.item() == pytest.approx(50 + normal.icdf(torch.tensor(1 - 0.05 / 0.25)).item(), abs=1e-5)


def test_weights_of_one_change_nothing_and_heavy_ones_know_nothing() -> None:
    calibration, (x, _) = [data(300)], data(20, seed=3)
    for asymmetric in (False, True):
        made = [Intervals(Network(), likelihood=NOISE, asymmetric=asymmetric) for _ in range(2)]
        plain = made[0].calibrate(calibration).intervals(x)
        weighted = made[1].calibrate(calibration, weight=lambda x: torch.ones(len(x)))
        for one, two in zip(plain, weighted.intervals(x), strict=True):
            assert torch.equal(one, two)
        lower, upper = weighted.intervals(x, weights=torch.full((20,), 1e9))
        assert (lower == -torch.inf).all()
        assert (upper == torch.inf).all()


def test_weights_restore_coverage_under_a_known_shift() -> None:
    """New inputs have larger noise, because their second number is shifted by 1."""
    x, y = data(20_000, 7)
    new, target = x + torch.tensor([0.0, 1.0]), x[:, :1] + (y - x[:, :1]) * torch.tensor(0.5).exp()

    def weight(x: Tensor) -> Tensor:
        return torch.exp(x[:, 1] - 0.5)

    rates = [
        inside(Intervals(Network(), 0.9, "absolute", likelihood=NOISE).calibrate([data(3000)], weight=w), new, target)
        for w in (None, weight)
    ]
    assert rates[0].double().mean() < 0.85
    assert abs(rates[1].double().mean() - 0.9) < 0.02


def test_groups_may_be_given_instead_of_a_function() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(200, 1, generator=source)
    y = x + x.abs() * torch.randn(200, 1, generator=source)
    side = (x[:, 0] > 0).long()
    by_function = Intervals(nn.Identity(), 0.8, "absolute", per=lambda z: (z[:, 0] > 0).long()).calibrate([(x, y)])
    given = Intervals(nn.Identity(), 0.8, "absolute", per="group").calibrate([(x, y)], groups=side)
    assert torch.equal(given.thresholds, by_function.thresholds)
    for one, two in zip(given.intervals(x, groups=side), by_function.intervals(x), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(lb.errors.InputError, match="needs the group of each example"):
        Intervals(nn.Identity(), 0.8, "absolute", per="group").calibrate([(x, y)])


def test_several_outputs_each_have_the_guarantee() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 3, generator=source)
    y = x + torch.randn(3000, 3, generator=source) * torch.tensor([1.0, 5.0, 0.1])
    made = Intervals(nn.Identity(), 0.9, "absolute").calibrate([(x[:1000], y[:1000])])
    lower, upper = made.intervals(x[1000:])
    assert lower.shape == (2000, 3)
    assert (((y[1000:] >= lower) & (y[1000:] <= upper)).double().mean(0) - 0.9).abs().max() < 0.03
    assert (upper - lower).mean(0).tolist() == pytest.approx([3.3, 16.5, 0.33], rel=0.1)


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "too few": (lambda: Intervals(nn.Identity()).calibrate([data(8)]), lb.errors.ShapeMismatch, "shape"),
    "too few points": (
        lambda: Intervals(Network(), likelihood=NOISE).calibrate([data(8)]),
        lb.errors.InputError,
        "at least 9 .*got 8",
    ),
    "too few for two ends": (
        lambda: Intervals(Network(), asymmetric=True, likelihood=NOISE).calibrate([data(18)]),
        lb.errors.InputError,
        "0.95 needs at least 19 .*got 18",
    ),
    "classes": (lambda: Intervals(nn.Identity(), likelihood=lb.Categorical()), lb.errors.InputError, "use Sets"),
    "NaN": (
        lambda: Intervals(nn.Identity()).calibrate([(torch.ones(20, 1), torch.full((20, 1), torch.nan))]),
        lb.errors.NonFinite,
        "NaN",
    ),
    "no deviation": (
        lambda: Intervals(nn.Identity(), score=Scaled("epistemic")).calibrate([(torch.ones(20, 1), torch.ones(20, 1))]),
        lb.errors.InputError,
        "Scaled\\(floor",
    ),
    "by": (lambda: Scaled(by="both"), lb.errors.InputError, "total"),
    "of": (lambda: Quantiles(of="both"), lb.errors.InputError, "draws"),
    "score": (lambda: Intervals(nn.Identity(), score="quantile"), lb.errors.UnknownName, "did you mean 'quantiles'"),
    "per": (lambda: Intervals(nn.Identity(), per="class"), lb.errors.InputError, "per must"),  # type: ignore[arg-type]
    "level": (lambda: Intervals(nn.Identity(), level=0), lb.errors.InputError, "between 0 and 1"),
    "NaN later": (
        lambda: (
            Intervals(nn.Identity())
            .calibrate([(torch.ones(20, 1), torch.ones(20, 1))])
            .intervals(torch.full((2, 1), torch.nan))
        ),
        lb.errors.NonFinite,
        "NaN",
    ),
    "too few of a group": (
        lambda: Intervals(nn.Identity(), per=lambda x: (x[:, 0] > 0).long()).calibrate(
            [(torch.linspace(-5, 30, 36)[:, None], torch.ones(36, 1))]
        ),
        lb.errors.InputError,
        "at least 9 .*group 0 has 6",
    ),
    "not calibrated": (lambda: Intervals(nn.Identity()).intervals(torch.ones(1, 1)), lb.errors.InputError, "calibrate"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    action, error, words = BAD[name]
    with pytest.raises(error, match=words):
        action()


@pytest.mark.parametrize("noise", [0.3, "learned", "input"])
@pytest.mark.parametrize("predict_by", ["sample", "moments"])
def test_what_is_saved_comes_back(tmp_path: Path, noise: Any, predict_by: str) -> None:
    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2 if noise == "input" else 1))

    likelihood = lb.Gaussian(noise)
    if noise == "learned":
        with torch.no_grad():
            likelihood.log_variance.fill_(-1.2345)
    bnn = lb.Bayesian(mlp(), predict_by=predict_by)
    x, y = (part.float() for part in data(100))
    score = Scaled(floor=0.1)
    made = Intervals(bnn, 0.8, score, asymmetric=True, likelihood=likelihood, samples=5).calibrate([(x, y)])
    lb.save(made, tmp_path / "x.lb")
    blank = mlp()
    again = lb.load(tmp_path / "x.lb", blank)
    for one, two in zip(made.intervals(x), again.intervals(x), strict=True):
        assert torch.equal(one, two)
    if noise == "learned":  # training that goes on does not change what was calibrated
        before = made.intervals(x)[0]
        with torch.no_grad():
            likelihood.log_variance.fill_(1.0)
        assert torch.equal(made.intervals(x)[0], before)
    with torch.no_grad():
        next(blank.parameters()).add_(0.01)
    with pytest.raises(lb.errors.InputError, match="changed"):
        again.intervals(x)


def test_a_changed_predictor_is_refused() -> None:
    model = nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 50)[:, None]
    intervals = Intervals(model).calibrate([(x, x)])
    intervals.intervals(x)
    with torch.no_grad():
        model.bias += 0.01
    with pytest.raises(lb.errors.InputError, match="has changed since it was calibrated"):
        intervals.intervals(x)
