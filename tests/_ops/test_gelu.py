"""Moments of GELU against integrals by a fine rule in float64, and the sweep against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import moments as ops
from leanbayes._ops.gelu import add_gelu_moments, gelu_slope

LAYOUTS = {
    "images": lambda: torch.randn(3, 5, 9, 9).contiguous(memory_format=torch.channels_last),
    "tokens": lambda: torch.randn(4, 70, 6),
    "rows": lambda: torch.randn(1500),
}


def integrals(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E f(z), Var f(z) and E f'(z) by the trapezoidal rule, whose error is far below those that are tested."""
    nodes = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    weights = torch.exp(-nodes.square() / 2)
    weights /= weights.sum()
    z = mean[..., None] + deviation[..., None] * nodes
    values = F.gelu(z)
    expected = values @ weights
    spread = (values - expected[..., None]).square() @ weights
    slope = torch.special.ndtr(z) + z * torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
    return expected, spread, slope @ weights


@pytest.fixture
def sweep_small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_LEAST", 1)
    monkeypatch.setattr(ops, "_share", lambda numbers: 700)  # several pieces, and blocks that are not full


@pytest.mark.parametrize(("deviation", "error"), [(0.01, 1e-12), (0.3, 1e-9), (1.0, 1e-4), (2.0, 3e-3), (5.0, 2e-2)])
def test_mean_and_slope_are_exact_and_the_deviation_is_close(deviation, error):
    mean = torch.linspace(-8, 8, 161, dtype=torch.float64)
    variance = torch.full_like(mean, deviation**2)
    expected, spread = add_gelu_moments(F.gelu(mean), mean, variance)
    truth, spread_truth, slope = integrals(mean, variance.sqrt())
    torch.testing.assert_close(expected, truth, atol=1e-12, rtol=0)
    torch.testing.assert_close(gelu_slope(mean, variance), slope, atol=1e-12, rtol=0)
    assert ((spread.sqrt() - spread_truth.sqrt()).abs() <= error).all()
    assert (spread <= spread_truth + 1e-12).all()  # what the series leaves out is positive


@pytest.mark.usefixtures("sweep_small_tensors_too")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("deviation", [0.0, 1e-3, 0.1, 1.0, 5.0])
def test_the_sweep_gives_what_torch_gives_in_float64(layout, deviation):
    mean = 3 * LAYOUTS[layout]()
    variance = deviation**2 * (0.5 + torch.rand_like(mean))
    centre = F.gelu(mean)
    with torch.no_grad():
        expected, spread = add_gelu_moments(centre.clone(), mean, variance)
        truth = add_gelu_moments(F.gelu(mean.double()), mean.double(), variance.double())
    assert expected.stride() == spread.stride() == mean.stride()
    rounding = 1e-6 * (1 + deviation)
    torch.testing.assert_close(expected.double(), truth[0], atol=3 * rounding, rtol=1e-6)
    assert ((spread - truth[1]).abs() <= rounding * 2 * variance.double().sqrt() + 1e-5 * truth[1]).all()
    if deviation == 0:
        assert torch.equal(expected, centre)
        assert not spread.any()


@pytest.mark.usefixtures("sweep_small_tensors_too")
def test_what_is_no_number_stays_so():
    mean, variance = torch.zeros(1500), torch.ones(1500)
    mean[3], variance[4], mean[5] = torch.nan, torch.nan, torch.inf
    with torch.no_grad():
        expected, spread = add_gelu_moments(F.gelu(mean), mean, variance)
    assert [i for i in range(1500) if not (expected[i] + spread[i]).isfinite()] == [3, 4, 5]


@pytest.mark.usefixtures("sweep_small_tensors_too")
def test_gradients_are_those_of_torch():
    mean = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    variance = torch.linspace(0.0, 2.0, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda m, v: add_gelu_moments(F.gelu(m), m, v), (mean, variance + 0.01), fast_mode=True
    )
    outputs = add_gelu_moments(F.gelu(mean), mean, variance)  # at a variance of 0, too
    assert all(part.isfinite().all() for part in torch.autograd.grad(sum(part.sum() for part in outputs), mean))
