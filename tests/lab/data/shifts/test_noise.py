import math

import numpy as np
import pytest
import torch
from scipy import stats

from leanbayes.lab.data.shifts import CORRUPTIONS, SEVERITIES, corrupt
from leanbayes.lab.data.shifts.draws import Draws

N = 400
GREY = torch.full((N, 1, 32, 32), 0.4, dtype=torch.float64)
COUNT = GREY.numel()


def moments(out: torch.Tensor) -> tuple[float, float, float]:
    """Mean, variance and the variance's standard error."""
    apart = out - out.mean()
    variance = float(apart.square().mean())
    return float(out.mean()), variance, float(apart.square().std()) / math.sqrt(COUNT)


# Standard deviations of the noise at 0.4, from the definitions of CIFAR-10-C.
SPREAD = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [math.sqrt(0.4 / c) for c in (500, 250, 100, 75, 50)],
    "speckle_noise": [0.4 * c for c in (0.06, 0.1, 0.12, 0.16, 0.2)],
}


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", sorted(SPREAD))
def test_noise_has_the_mean_and_variance_of_its_severity(name: str, severity: int) -> None:
    mean, variance, error = moments(corrupt(GREY, name, severity, seed=severity))
    spread = SPREAD[name][severity - 1]  # 0.4 is four or more of them from either end: nothing much is cut off
    assert abs(mean - 0.4) < 4 * spread / math.sqrt(COUNT)
    assert abs(variance - spread**2) < 4 * error


@pytest.mark.parametrize(("severity", "amount"), list(zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True)))
def test_impulses_are_black_or_white_in_equal_parts(severity: int, amount: float) -> None:
    out = corrupt(GREY, "impulse_noise", severity)
    for value, share in ((0.0, amount / 2), (1.0, amount / 2), (0.4, 1 - amount)):
        assert abs(float((out == value).double().mean()) - share) < 4 * math.sqrt(share * (1 - share) / COUNT)


def test_shot_noise_is_poisson() -> None:
    out = corrupt(torch.full((200, 1, 32, 32), 0.1, dtype=torch.float64), "shot_noise", 5) * 50
    counts = np.bincount(out.round().long().flatten(), minlength=30)[:16]
    expected = stats.poisson(5).pmf(np.arange(16)) * out.numel()
    assert torch.equal(out.round(), out.round(decimals=9))
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert stats.chi2(16).sf(chi) > 1e-3


def test_gaussian_noise_is_normal_and_independent_between_pixels_channels_and_images() -> None:
    noise = corrupt(torch.full((100, 3, 16, 16), 0.5, dtype=torch.float64), "gaussian_noise", 1) - 0.5
    assert stats.kstest(noise.flatten() / 0.04, "norm").pvalue > 1e-3
    for one, other in (
        (noise[:-1], noise[1:]),
        (noise[:, :-1], noise[:, 1:]),
        (noise[:, :, :-1], noise[:, :, 1:]),
        (noise[..., :-1], noise[..., 1:]),
    ):
        assert abs(float((one * other).mean()) / 0.04**2) < 4 / math.sqrt(one.numel())


def test_speckles_spare_black_and_shot_noise_too() -> None:
    black = torch.zeros(2, 3, 8, 8)
    for name in ("speckle_noise", "shot_noise"):
        assert torch.equal(corrupt(black, name, 5), black)


def test_seed_and_number_are_not_interchangeable() -> None:
    like = torch.zeros(1, 1)
    seen = {float(Draws(seed, first, like).normal(1)) for seed in range(20) for first in range(20)}
    assert len(seen) == 400


def test_draws_are_the_same_in_both_precisions() -> None:
    wide, narrow = (Draws(3, 5, torch.zeros(4, dtype=dtype)) for dtype in (torch.float64, torch.float32))
    for one, other in ((wide.normal(2, 3), narrow.normal(2, 3)), (wide.uniform(-45, 45), narrow.uniform(-45, 45))):
        assert one.dtype == torch.float64
        assert other.dtype == torch.float32
        assert torch.equal(one.float(), other)


def test_all_noises_are_registered() -> None:
    assert [c.name for c in CORRUPTIONS.values() if c.family == "noise"] == [
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "speckle_noise",
    ]
