"""What is said where Triton cannot be used, and which numbers go to tensor cores."""

import pytest
import torch

from leanbayes._ops import gpu
from leanbayes._ops.sparse import conv, linear
from leanbayes.errors import InputError, MissingPackage

X, INDEX, MEAN = torch.zeros(2, 4), torch.tensor([0, 5]), torch.zeros(2)


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match="triton, which is not installed"):
        linear(X, INDEX, (3, 4), MEAN, kernel="triton")


@pytest.mark.parametrize("kernel", ["triton", "triton_atomic"])
def test_the_cpu_is_refused(kernel, monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda _: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="on NVIDIA GPUs, and the input is on cpu"):
        conv(X[:, :, None], INDEX, (3, 4, 1), MEAN, kernel=kernel)


def test_a_tensor_on_the_cpu_has_no_kernels():
    assert not gpu.has_kernels(X)


def test_tensor_cores_take_what_torch_lets_them():
    assert gpu.tensor_cores(torch.float16, True)
    assert gpu.tensor_cores(torch.bfloat16, False)
    assert not gpu.tensor_cores(torch.float64, False)
    assert gpu.tensor_cores(torch.float32, False)  # torch allows TF32 for convolutions
    assert not gpu.tensor_cores(torch.float32, True)  # and not for matrices
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matrices.fp32_precision, convolutions.fp32_precision
    try:
        matrices.fp32_precision, convolutions.fp32_precision = "tf32", "ieee"
        assert gpu.tensor_cores(torch.float32, True)
        assert not gpu.tensor_cores(torch.float32, False)
    finally:
        matrices.fp32_precision, convolutions.fp32_precision = before
