"""Expectations of the logistic function over a Gaussian, against sums over a fine grid in float64."""

import pytest
import torch
from torch import Tensor

from leanbayes._ops import logistic
from leanbayes._ops.logistic import logistic_moments

MEANS = torch.linspace(-30, 30, 121, dtype=torch.float64)


def truth(mean: Tensor, deviation: float) -> tuple[Tensor, Tensor, Tensor]:
    nodes = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    weights = torch.exp(-nodes.square() / 2)
    z = mean[:, None] + deviation * nodes
    log = torch.nn.functional.logsigmoid
    parts = z.sigmoid(), (-z).sigmoid(), -(z.sigmoid() * log(z) + (-z).sigmoid() * log(-z))
    weighted = [(part * weights).sum(1) / weights.sum() for part in parts]
    return weighted[0], weighted[1], weighted[2]


@pytest.mark.parametrize(
    ("deviation", "error"), [(0.0, 1e-14), (0.3, 1e-5), (1.0, 3e-5), (2.0, 3e-5), (4.0, 1e-3), (6.0, 1e-2)]
)
@pytest.mark.parametrize("together", [0, 2**18])
def test_errors_are_those_stated(deviation: float, error: float, together: int, monkeypatch) -> None:
    monkeypatch.setattr(logistic, "_TOGETHER", together)
    yes, no, entropy = logistic_moments(MEANS, torch.full_like(MEANS, deviation**2))
    expected = truth(MEANS, deviation)
    assert (yes - expected[0]).abs().max() < error
    assert (no - expected[1]).abs().max() < error
    assert (entropy - expected[2]).abs().max() < 3 * error
    torch.testing.assert_close(yes + no, torch.ones_like(yes))


def test_rare_classes_keep_their_digits() -> None:
    mean = torch.tensor([-80.0, -40.0, -20.0, 20.0, 40.0, 80.0])
    yes, no, _ = logistic_moments(mean, torch.full_like(mean, 0.25))
    exact = torch.exp(-mean.abs().double() + 0.125)  # E e^z, which the logistic function is far from zero
    smaller = torch.where(mean > 0, no, yes).double()
    torch.testing.assert_close(smaller, exact, rtol=1e-3, atol=0)


def test_gradients_are_finite_where_there_is_variance_and_nan_stays() -> None:
    mean = torch.tensor([0.0, 3.0, -500.0], requires_grad=True)
    variance = torch.tensor([1.0, 0.5, 9.0], requires_grad=True)
    sum(part.sum() for part in logistic_moments(mean, variance)).backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(variance.grad).all()
    assert logistic_moments(torch.tensor([torch.nan]), torch.ones(1))[0].isnan().all()


@pytest.mark.parametrize("count", [10, 300_000])
def test_a_probability_is_never_above_one(count: int) -> None:
    """The weights of the rule add up to 1 only up to rounding, and a probability of 1 + 1e-7 is refused by metrics."""
    mean = torch.linspace(10, 100, count)
    yes, no, _ = logistic_moments(torch.cat([mean, -mean]), torch.full((2 * count,), 0.1))
    assert float(yes.max()) <= 1
    assert float(no.max()) <= 1


def test_the_kernel_is_the_rule_of_torch() -> None:
    """Large float32 tensors take one sweep of a kernel; in float64 the same rule is computed by torch."""
    source = torch.Generator().manual_seed(3)
    mean = torch.randn(3, 1, 61, 97, generator=source) * 12
    variance = (torch.rand(3, 1, 61, 97, generator=source) * 3).square()
    mean[0, 0, 0, :3], variance[0, 0, 0, :3] = torch.tensor([0.0, 300.0, -300.0]), torch.tensor([0.0, 0.0, 1.0])
    results = logistic_moments(mean, variance)
    for result, exact in zip(results, logistic_moments(mean.double(), variance.double()), strict=True):
        assert result.shape == mean.shape
        assert result.dtype == torch.float32
        assert (result - exact).abs().max() < 5e-7
    mean[1, 0, 5, 5] = torch.nan
    variance[2, 0, 6, 6] = torch.nan
    for result in logistic_moments(mean, variance):
        assert result.isnan().sum() == 2
        assert result[1, 0, 5, 5].isnan()
        assert result[2, 0, 6, 6].isnan()
