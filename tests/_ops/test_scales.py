"""Variances from raw scales, against softplus in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from leanbayes._ops import scales
from leanbayes._ops.scales import squared_softplus
from leanbayes.posteriors import Normal, RandomWeight


@given(count=st.integers(1, 1500), low=st.floats(-90, 30), seed=st.integers(0, 99))
def test_they_are_the_squares_of_softplus(count, low, seed):
    rho = low + 20 * torch.rand(count, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scales, "_LEAST", 1)
        patch.setattr(scales, "_PIECE", 700)
        squared = squared_softplus(rho)
    truth = F.softplus(rho.double(), threshold=40).square().clamp_min(1.2e-38)
    torch.testing.assert_close(squared.double().clamp_min(1.2e-38), truth, rtol=3e-6, atol=0)


def test_numbers_that_are_none_stay_so():
    rho = torch.zeros(5000)
    rho[3] = torch.nan
    squared = squared_softplus(rho)
    assert squared[3].isnan()
    assert squared.isfinite().sum() == 4999


def test_others_are_left_to_torch():
    assert squared_softplus(torch.zeros(5000, dtype=torch.float64)) is None
    assert squared_softplus(torch.zeros(10)) is None
    assert squared_softplus(torch.zeros(80, 80).t()[:, :70]) is None
    assert squared_softplus(torch.zeros(5000, requires_grad=True)) is None
    with torch.no_grad():
        assert squared_softplus(torch.zeros(5000, requires_grad=True)) is not None


def test_the_variance_of_a_weight_does_not_depend_on_grad_mode():
    rho = torch.randn(100, 90, generator=torch.Generator().manual_seed(0)).requires_grad_()
    variances = []
    for grad in (True, False):
        weight = RandomWeight("w", torch.zeros(100, 90), None, None, Normal(), rho)
        with torch.set_grad_enabled(grad):
            variances.append(weight.variance())
    assert variances[0].requires_grad
    torch.testing.assert_close(variances[1], variances[0].detach(), rtol=2e-6, atol=0)
