"""W C Wᵀ in a few factors, against dense algebra; and quotients and roots at zero."""

import pytest
import torch

from leanbayes._ops import low_rank
from leanbayes._ops.low_rank import bounded, map_covariance, quotient, root


@pytest.mark.parametrize("factors", [0, 3])
def test_with_a_factor_for_each_direction_the_covariance_is_exact(factors):
    w = torch.randn(4, 6).double()
    variance, common = 1 + torch.rand(5, 6).double(), 0.5 + 0.4 * torch.rand(5, 6).double()
    loadings = 0.2 * torch.randn(factors, 5, 6).double() if factors else None
    covariance = torch.diag_embed(common)
    if loadings is not None:
        rows = (loadings * variance.sqrt()).movedim(0, 1)  # examples, factors, units
        covariance = torch.diag_embed(common - rows.square().sum(1)) + rows.mT @ rows
    truth = w @ covariance @ w.T
    diagonal, mapped = map_covariance(w, variance, common, loadings, rank=4)
    torch.testing.assert_close(diagonal, truth.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(torch.einsum("kbo,kbp->bop", mapped, mapped), truth, rtol=1e-3, atol=1e-3)


def test_few_factors_never_exceed_the_covariance():
    w, common = torch.randn(8, 8).double(), torch.rand(3, 8).double()
    diagonal, mapped = map_covariance(w, common, common, None, rank=2)
    assert mapped.shape == (2, 3, 8)
    assert (mapped.square().sum(0) <= diagonal + 1e-9).all()


def test_without_noise_there_are_no_factors():
    zero = torch.zeros(3, 5)
    diagonal, mapped = map_covariance(torch.randn(4, 5), zero, zero, None, rank=2)
    assert not diagonal.any()
    assert not mapped.any()


def test_nothing_is_divided_by_zero():
    zero = torch.zeros(3, requires_grad=True)
    assert torch.equal(quotient(torch.zeros(3), zero), torch.zeros(3))
    root(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(3))


def test_loadings_explain_at_most_the_whole_variance():
    loadings = torch.tensor([[0.6], [0.8]])
    torch.testing.assert_close(bounded(loadings, torch.tensor([2.0])).square().sum(0), torch.ones(1))
    torch.testing.assert_close(bounded(loadings, torch.tensor([0.5])), loadings / 2)


def test_runs_are_loadings_that_are_equal_within_a_run():
    generator = torch.Generator().manual_seed(3)
    runs = low_rank.Runs(0.3 * torch.randn(3, 5, 4, generator=generator, dtype=torch.float64), 6)
    weight = torch.randn(7, 24, generator=generator, dtype=torch.float64)
    even = torch.rand(5, 4, 1, generator=generator, dtype=torch.float64).expand(5, 4, 6).reshape(5, 24)
    uneven = torch.rand(5, 24, generator=generator, dtype=torch.float64)
    for variance in (even, uneven):
        diagonal, factors = low_rank.map_runs(weight, variance, runs, rank=3)
        truth, exact = low_rank.map_covariance(weight, variance, variance, runs.spelled_out(), rank=3)
        torch.testing.assert_close(diagonal, truth, rtol=1e-10, atol=1e-12)
        if variance is even:  # the mean over a run is then every variance of the run
            torch.testing.assert_close(factors, exact, rtol=1e-8, atol=1e-10)
    covariance, cut = (torch.einsum("knf,kng->nfg", part, part) for part in (exact, factors))
    assert (covariance - cut).norm() < 0.25 * covariance.norm()
