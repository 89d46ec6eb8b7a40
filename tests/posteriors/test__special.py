import math

import pytest
import torch
from scipy import stats

from leanbayes.posteriors._special import normal_and_gamma, standard_gamma


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [1.3, 8.0, 499.5, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_gamma_numbers_at_once(shape, dtype):
    result = standard_gamma(shape, (100_000,), torch.zeros(1, dtype=dtype), generator(1)).double()
    assert stats.kstest(result.numpy(), stats.gamma(shape).cdf).pvalue > 1e-3
    again = standard_gamma(shape, (100_000,), torch.zeros(1, dtype=dtype), generator(1)).double()
    assert torch.equal(result, again)


@pytest.mark.parametrize("k", [0.5, 1, 1.01, 1.5, 2, 14.5, 499.5])
def test_a_normal_and_a_gamma_number_in_one_sweep_have_their_laws(k):
    count = 300_001
    z, gamma = normal_and_gamma((k, 2.0, 0.0, 0.5), torch.empty(count), torch.Generator().manual_seed(int(k)))
    z, gamma = z.double() / 2, gamma.double() * 2
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(gamma.numpy(), stats.gamma(k).cdf).pvalue > 1e-3
    for one in (z, z.square(), z.abs()):
        assert abs(float(torch.corrcoef(torch.stack([one, gamma]))[0, 1])) < 4 / math.sqrt(count)


@pytest.mark.parametrize("like", [torch.empty(2**17), torch.empty(2**12), torch.empty(100), torch.empty(9).double()])
def test_the_square_belongs_to_the_normal_number(like):
    z, both = normal_and_gamma((30.0, 1.0, 3.0, 1e-6), like, torch.Generator().manual_seed(3))
    torch.testing.assert_close(both, 3 * z.square(), rtol=1e-5, atol=1e-4)
    again = normal_and_gamma((30.0, 1.0, 3.0, 1e-6), like, torch.Generator().manual_seed(3))
    assert torch.equal(z, again[0])
    assert torch.equal(both, again[1])
    assert z.dtype == both.dtype == like.dtype
    alone, square = normal_and_gamma((0.0, 1.0, 1.0, 1.0), like, None)
    assert torch.equal(square, alone.square())
