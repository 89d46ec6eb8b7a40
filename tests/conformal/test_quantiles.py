"""The quantile is the exact order statistic, as MAPIE's is; ties, few points and bad numbers are handled."""

import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from mapie.utils import _compute_classification_quantile

import leanbayes as lb
from leanbayes.conformal.grouped import group_thresholds
from leanbayes.conformal.quantiles import SortedScores, fewest_scores, quantile, rank_of

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


@pytest.mark.parametrize("level", LEVELS)
def test_the_threshold_is_that_of_mapie(level: float) -> None:
    source = np.random.default_rng(0)
    for count in range(fewest_scores(level), fewest_scores(level) + 300, 7):
        scores = source.normal(size=count)
        theirs = _compute_classification_quantile(scores[:, None], np.array([1 - level]))[0]
        assert abs(quantile(torch.from_numpy(scores), level).item() - theirs) <= 1e-12


@pytest.mark.parametrize("level", LEVELS)
def test_the_fewest_scores_are_the_fewest(level: float) -> None:
    needed = fewest_scores(level)
    assert rank_of(needed, level) <= needed
    assert rank_of(needed - 1, level) > needed - 1


def test_ranks_are_those_of_exact_arithmetic() -> None:
    """0.9·(n + 1) in floating point is at times a hair above a whole number, and ⌈·⌉ would then be one too high."""
    for count in range(1, 3000):
        for level in (0.1, 0.7, 0.9, 0.55):
            assert rank_of(count, level) == -(
                -(count + 1) * Fraction(str(level)).numerator // Fraction(str(level)).denominator
            )


def test_coverage_is_exact_where_scores_are_continuous() -> None:
    """The probability of a uniform score below the k-th of n has mean k/(n + 1)."""
    source = torch.Generator().manual_seed(0)
    for count, level in ((9, 0.9), (37, 0.8), (200, 0.95)):
        covered = torch.stack([quantile(torch.rand(count, generator=source).double(), level) for _ in range(1500)])
        expected = rank_of(count, level) / (count + 1)
        assert abs(covered.mean() - expected) < 4 * covered.std() / 1500**0.5
        assert expected >= level


def test_ties_cover_more_and_never_less() -> None:
    scores = torch.tensor([0.0] * 5 + [1.0] * 95, dtype=torch.float64)
    assert quantile(scores, 0.9) == 1
    assert quantile(torch.zeros(20), 0.9) == 0


@pytest.mark.parametrize(("level", "count", "needed"), [(0.9, 8, 9), (0.95, 18, 19), (0.99, 98, 99)])
def test_too_few_scores_say_how_many_are_needed(level: float, count: int, needed: int) -> None:
    with pytest.raises(lb.errors.InputError, match=rf"{count} calibration.*at least {needed}"):
        quantile(torch.rand(count), level)
    quantile(torch.rand(needed), level)


@pytest.mark.parametrize("level", [0, 1, 0.0, 1.0, -0.1, 1.5, float("nan"), True, "0.9", None])
def test_levels_that_are_none(level: object) -> None:
    with pytest.raises(lb.errors.InputError, match="between 0 and 1"):
        quantile(torch.rand(100), level)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_no_numbers(bad: float) -> None:
    scores = torch.rand(100)
    scores[3] = bad
    with pytest.raises(lb.errors.NonFinite, match="1 of 100"):
        quantile(scores, 0.9)
    with pytest.raises(lb.errors.ShapeMismatch):
        quantile(torch.rand(10, 10), 0.9)
    with pytest.raises(lb.errors.ShapeMismatch):
        quantile(torch.arange(100), 0.9)


def test_a_million_scores_take_less_than_a_second() -> None:
    """The processor time counts, which other programs do not change; it is about a tenth of the bound."""
    scores = torch.rand(1_000_000, dtype=torch.float64)
    start = time.process_time()
    threshold = quantile(scores, 0.9)
    assert time.process_time() - start < 1
    assert threshold == scores.sort().values[rank_of(len(scores), 0.9) - 1]


def test_a_million_examples_are_calibrated_in_less_than_a_second() -> None:
    """From scores by class to thresholds: what `Sets` does after the predictions."""
    source = torch.Generator().manual_seed(0)
    scores = torch.rand(1_000_000, dtype=torch.float64, generator=source)
    classes = torch.randint(10, (1_000_000,), generator=source)
    start = time.process_time()
    thresholds = group_thresholds(scores, classes, 10, 0.9, str)
    assert time.process_time() - start < 1
    assert thresholds[3] == quantile(scores[classes == 3], 0.9)


def test_equal_weights_give_the_same_threshold() -> None:
    scores = torch.randn(57, dtype=torch.float64)
    for level in (0.5, 0.8, 0.9, 0.95):
        new = SortedScores.of(scores, torch.full((57,), 3.0)).thresholds(level, torch.full((4,), 3.0))
        assert new.tolist() == [quantile(scores, level).item()] * 4


def test_weighted_thresholds_are_those_of_the_definition() -> None:
    source = torch.Generator().manual_seed(1)
    scores, weights = torch.randn(40, generator=source).double(), torch.rand(40, generator=source).double()
    new = torch.tensor([0.0, 0.3, 1.0, 5.0, 1e6], dtype=torch.float64)
    thresholds = SortedScores.of(scores, weights).thresholds(0.8, new)
    for weight, threshold in zip(new.tolist(), thresholds.tolist(), strict=True):
        total = weights.sum().item() + weight
        reached = [s for s in scores.tolist() if weights[scores <= s].sum().item() >= 0.8 * total]
        assert threshold == min(reached, default=float("inf"))
    assert thresholds[-1] == torch.inf


def test_p_values_count_scores_at_least_as_large() -> None:
    scores = torch.tensor([1.0, 2.0, 2.0, 3.0], dtype=torch.float64)
    new = torch.tensor([0.0, 2.0, 2.5, 3.0, 9.0])
    assert SortedScores.of(scores).p_values(new).tolist() == [5 / 5, 4 / 5, 2 / 5, 2 / 5, 1 / 5]
