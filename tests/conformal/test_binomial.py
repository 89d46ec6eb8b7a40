"""Binomial tails and intervals agree with scipy."""

import pytest
from scipy import stats

import leanbayes as lb
from leanbayes.conformal.binomial import at_most, clopper_pearson


@pytest.mark.parametrize("trials", [1, 2, 10, 137, 5000, 200_000])
@pytest.mark.parametrize("probability", [1e-4, 0.05, 0.3, 0.5, 0.9, 0.999])
def test_the_tail_is_that_of_scipy(trials: int, probability: float) -> None:
    mean = int(trials * probability)
    for successes in {0, mean // 2, max(mean - 3, 0), mean, min(mean + 3, trials), (mean + trials) // 2, trials}:
        exact = stats.binom.cdf(successes, trials, probability)
        assert at_most(successes, trials, probability) == pytest.approx(exact, rel=1e-8, abs=1e-14)
    assert at_most(-1, trials, probability) == 0
    assert (at_most(0, trials, 0.0), at_most(0, trials, 1.0)) == (1, 0)


@pytest.mark.parametrize(
    ("successes", "trials"), [(0, 1), (1, 1), (0, 30), (30, 30), (3, 17), (900, 1000), (7, 100_000)]
)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_the_interval_is_that_of_scipy(successes: int, trials: int, confidence: float) -> None:
    exact = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, trials, confidence) == pytest.approx((exact.low, exact.high), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_counts_that_cannot_be(successes: int, trials: int) -> None:
    with pytest.raises(lb.errors.InputError, match="successes"):
        clopper_pearson(successes, trials)
