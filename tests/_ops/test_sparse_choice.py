"""Which kernel is chosen for which product."""

import torch
import torch.nn.functional as F

from leanbayes._ops.sparse import conv, kernels_for
from tests._ops.cases import dense, pattern


def test_dense_where_most_is_not_zero_and_for_other_types():
    x = torch.zeros(64, 64, 16, 16)
    shape = (64, 64, 3, 3)
    assert str(kernels_for(x, torch.arange(368), shape, padding=1)) == "numba"
    assert str(kernels_for(x, torch.arange(18_000), shape, padding=1)) == "dense"
    assert str(kernels_for(x[:1], torch.arange(1800), shape, padding=1)) == "dense"
    assert str(kernels_for(x.bfloat16(), torch.arange(368), shape, padding=1)) == "dense"
    assert str(kernels_for(torch.zeros(64, 1024), torch.arange(50_000), (1024, 1024))) == "csr"
    assert (
        str(kernels_for(torch.zeros(64, 1024), torch.arange(50_000), (1024, 1024), moments=True)) == "numba/numba/csr"
    )


def test_bfloat16_goes_the_dense_way():
    index, mean, _ = pattern((8, 4, 3), 0.3, torch.bfloat16)
    x = torch.randn(40, 4, 9, dtype=torch.bfloat16)
    assert torch.equal(conv(x, index, (8, 4, 3), mean), F.conv1d(x, dense(mean, index, (8, 4, 3))))
