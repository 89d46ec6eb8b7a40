"""Which kernel is chosen for which product."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops import gpu
from leanbayes._ops.sparse import conv, kernels_for
from leanbayes._ops.sparse_choice import _cheapest_on_gpu, triton_takes
from leanbayes._ops.sparse_plan import Axis, Geometry
from tests._ops.cases import blocks, dense, pattern


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


CONV, LINEAR = (128, 128, 3, 3), (512, 512)


@pytest.mark.parametrize(
    ("shape", "positions", "dtype", "kernels"),
    [
        (CONV, "blocks 0.02", torch.float32, "triton/triton_atomic/triton"),
        (CONV, "blocks 0.05", torch.bfloat16, "triton/dense/triton"),  # 56 % of the transposed columns hold a weight
        (CONV, "single 0.005", torch.float32, "triton"),
        (CONV, "single 0.05", torch.float32, "dense"),
        (CONV, "single 0.005", torch.float64, "dense"),
        (LINEAR, "blocks 0.05", torch.float32, "triton/triton_atomic/triton"),
        (LINEAR, "single 0.04", torch.float32, "csr"),
        (LINEAR, "single 0.04", torch.float64, "csr"),
        (LINEAR, "single 0.04", torch.float16, "dense"),
        (LINEAR, "single 0.5", torch.float32, "dense"),
    ],
)
def test_on_a_gpu_the_share_of_the_columns_decides(shape, positions, dtype, kernels, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(gpu, "has_kernels", lambda x: x.dtype in gpu.DTYPES)
    kind, density = positions.split()
    index = blocks(shape, float(density)) if kind == "blocks" else pattern(shape, float(density), dtype)[0]
    x = torch.empty(64, *shape[1:2], *[16] * (len(shape) - 2), dtype=dtype)
    axes = (Axis(1), *[Axis(16, 3, 1, 1, 1) if len(shape) > 2 else Axis(1)] * 2)
    assert str(_cheapest_on_gpu(x, index, Geometry(*shape[:2], 1, axes))) == kernels
    if "atomic" in kernels:
        torch.use_deterministic_algorithms(True)
        try:
            assert "atomic" not in str(_cheapest_on_gpu(x, index, Geometry(*shape[:2], 1, axes)))
        finally:
            torch.use_deterministic_algorithms(False)


def test_too_large_an_activation_is_not_addressed():
    x = torch.empty(2**16, 2**15, device="meta")
    assert not triton_takes(x, Geometry(1, 2**15, 1, (Axis(1),) * 3))
    assert triton_takes(x[:100], Geometry(1, 2**15, 1, (Axis(1),) * 3))
