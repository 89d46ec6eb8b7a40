"""The p-values are valid, and the procedure rejects a true hypothesis no more often than allowed."""

import numpy as np
import pytest

from leanbayes.conformal.testing import fallback, hoeffding_bentkus


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
