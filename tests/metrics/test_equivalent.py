"""The deep-ensemble equivalent: where an NLL lies between those of ensembles of 1, 2, … networks."""

import math

import pytest

from leanbayes.errors import InputError
from leanbayes.metrics import metric_named
from leanbayes.metrics.equivalent import ensemble_equivalent

CURVE = [0.50, 0.40, 0.35, 0.33]


@pytest.mark.parametrize(
    ("nll", "expected"),
    [
        (0.50, 1.0),
        (0.45, 1.5),
        (0.40, 2.0),
        (0.38, 2.4),
        (0.335, 3.75),
        (0.33, 4.0),
        (0.33 - 1e-9, 4.0),  # the ensemble itself, with its sums in another order
        (0.50 + 1e-9, 1.0),
        (0.51, -math.inf),
        (0.32, math.inf),
    ],
)
def test_it_interpolates_between_numbers_of_members(nll: float, expected: float) -> None:
    assert ensemble_equivalent(nll, CURVE) == pytest.approx(expected)


def test_a_member_that_makes_it_worse_does_not_count() -> None:
    """Two networks may have a higher NLL than one, because two draws give a variance that is too small or too large."""
    curve = [0.40, 0.45, 0.40, 0.30]
    assert ensemble_equivalent(0.35, curve) == pytest.approx(3.5)
    assert ensemble_equivalent(0.42, curve) == -math.inf
    assert ensemble_equivalent(0.40, curve) == 1.0


def test_negative_values_and_one_network() -> None:
    assert ensemble_equivalent(-1.5, [-1.0, -2.0]) == pytest.approx(1.5)  # a density may exceed 1
    assert ensemble_equivalent(0.2, [0.3]) == math.inf
    assert ensemble_equivalent(0.3, [0.3]) == 1.0
    for nll, curve in ((math.nan, CURVE), (0.1, []), (0.1, [0.2, math.inf])):
        with pytest.raises(InputError, match="finite NLLs of at least one network"):
            ensemble_equivalent(nll, curve)


def test_the_record_of_the_metric() -> None:
    metric = metric_named("ensemble_equivalent")
    assert metric.better == "high"
    assert metric.factory("classes") is None  # one predictor alone does not have it
