"""The p-values are valid, and the procedure rejects a true hypothesis no more often than allowed."""

import numpy as np
import pytest

from leanbayes.conformal.testing import fallback, hoeffding_bentkus, mean_interval


@pytest.mark.parametrize("level", [0.05, 0.3])
@pytest.mark.parametrize("kind", ["bernoulli", "beta"])
def test_p_values_are_valid_at_the_boundary(level: float, kind: str) -> None:
    source = np.random.default_rng(0)
    shape = (4000, 100)
    losses = source.random(shape) < level if kind == "bernoulli" else source.beta(level * 2, (1 - level) * 2, shape)
    p_values = np.array([hoeffding_bentkus(float(mean), 100, level) for mean in losses.mean(1)])
    for alpha in (0.01, 0.05, 0.2, 0.5):
        share = (p_values <= alpha).mean()
        assert share <= alpha + 4 * (alpha * (1 - alpha) / 4000) ** 0.5
    assert p_values.min() < 0.3


def test_clear_losses_are_rejected_and_high_ones_are_not() -> None:
    assert hoeffding_bentkus(0.0, 500, 0.05) < 1e-10
    assert hoeffding_bentkus(0.05, 500, 0.05) == 1
    assert hoeffding_bentkus(0.9, 500, 0.05) == 1


def test_the_procedure_keeps_its_error() -> None:
    """All hypotheses are true and their p-values uniform, once independent and once all equal."""
    source = np.random.default_rng(0)
    for p_values in (source.random((5000, 20)), np.repeat(source.random((5000, 1)), 20, 1)):
        wrong = np.mean([any(fallback(list(row), 0.1)) for row in p_values])
        assert wrong <= 0.1 + 4 * (0.09 / 5000) ** 0.5


def test_rejections_hand_their_error_on() -> None:
    assert fallback([0.02, 0.04, 0.06, 0.08], 0.1) == [True, True, True, True]
    assert fallback([0.9, 0.02, 0.05, 0.075], 0.1) == [False, True, True, True]
    assert fallback([0.03, 0.03, 0.03, 0.03], 0.1) == [False] * 4


@pytest.mark.parametrize("kind", ["bernoulli", "beta", "all alike"])
@pytest.mark.parametrize("mean", [0.03, 0.4])
def test_intervals_of_means_hold_the_expected_loss(kind: str, mean: float) -> None:
    source, shape = np.random.default_rng(1), (600, 40)
    laws = {
        "bernoulli": source.random(shape) < mean,
        "beta": source.beta(mean / 2, (1 - mean) / 2, shape),
        "all alike": np.full(shape, mean),
    }
    ends = [mean_interval(float(row.mean()), 40) for row in laws[kind]]
    missed = np.mean([not low <= mean <= high for low, high in ends])
    assert missed <= 0.05 + 4 * (0.05 * 0.95 / 600) ** 0.5
    assert all(0 <= low <= high <= 1 for low, high in ends)


def test_intervals_of_means_shrink_and_mirror() -> None:
    low, high = mean_interval(0.2, 50)
    mirrored = mean_interval(0.8, 50)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)
    narrow = mean_interval(0.2, 5000)
    assert low < narrow[0] < 0.2 < narrow[1] < high
    assert mean_interval(0.0, 30)[0] == 0
    assert mean_interval(1.0, 30)[1] == pytest.approx(1)
