"""Without numba, results are the same up to rounding, and one warning says how to get the faster path."""

import builtins
import warnings

import numba
import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops import compiled, sparse
from leanbayes._ops import moments as moment_ops
from leanbayes.errors import InputError, MissingPackage, PerformanceWarning


@pytest.fixture
def no_numba(monkeypatch):
    """Make the import of numba fail, and forget that it has worked before."""
    load = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "numba":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    compiled.available.cache_clear()
    yield
    compiled.available.cache_clear()


def test_numba_is_available_where_it_is_installed():
    with warnings.catch_warnings(action="error"):
        assert compiled.available()
        compiled.require("numba")


def test_kernels_compile_where_no_folder_can_be_written(monkeypatch):
    """A read-only package in a container without a home: numba finds no place for its cache, and refuses."""
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def twice(x):
        return x + x

    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(twice)
    assert compiled.kernel()(twice)(21) == 42


def test_the_warning_comes_once_and_names_the_extra(no_numba):
    with pytest.warns(PerformanceWarning, match=r"pip install 'leanbayes\[fast\]'"):
        assert not compiled.available()
    with warnings.catch_warnings(action="error"):
        assert not compiled.available()


@pytest.mark.filterwarnings("ignore::leanbayes.errors.PerformanceWarning")
@pytest.mark.parametrize("error", [MissingPackage, InputError, ImportError])
def test_a_kernel_that_was_asked_for_by_name_is_not_replaced(no_numba, error):
    with pytest.raises(error, match=r"\"numba\" needs the package numba.*leanbayes\[fast\]"):
        sparse.linear(torch.zeros(2, 4), torch.tensor([0, 5]), (3, 4), torch.zeros(2), kernel="numba")


def test_small_and_dense_work_asks_for_no_numba(no_numba):
    with warnings.catch_warnings(action="error"):
        sparse.linear(torch.zeros(2, 4), torch.tensor([0, 5]), (3, 4), torch.zeros(2))


def products(x, index, shape, mean, variance):
    """Both moments of a product, and all gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, mean, variance)]
    operation = sparse.linear_moments if len(shape) == 2 else sparse.conv_moments
    both = operation(leaves[0], index, shape, *leaves[1:])
    (both[0].square().sum() + both[1].square().sum()).backward()
    return [*both, *(leaf.grad for leaf in leaves)]


@pytest.mark.filterwarnings("ignore::leanbayes.errors.PerformanceWarning")
@pytest.mark.parametrize(
    ("size", "shape", "kernel"), [((64, 8, 9, 9), (16, 8, 3, 3), "dense"), ((64, 256), (256, 256), "csr")]
)
def test_sparse_products_are_those_of_the_kernels(request, size, shape, kernel):
    torch.manual_seed(0)
    total = torch.Size(shape).numel()
    index = torch.randperm(total)[: total // 50].sort().values
    x, mean, variance = torch.randn(size).double(), torch.randn(len(index)).double(), torch.rand(len(index)).double()
    fast = products(x, index, shape, mean, variance)
    assert "numba" in str(sparse.kernels_for(x, index, shape, moments=True))
    request.getfixturevalue("no_numba")
    assert str(sparse.kernels_for(x, index, shape, moments=True)) in (kernel, "dense")  # CSR is there with MKL alone
    slow = products(x, index, shape, mean, variance)
    for ours, theirs in zip(slow, fast, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore::leanbayes.errors.PerformanceWarning")
def test_moments_have_no_kernel_without_numba(no_numba):
    mean, variance = torch.randn(2**15), torch.rand(2**15)
    assert moment_ops.rectify(mean, variance) is None


@pytest.mark.filterwarnings("ignore::leanbayes.errors.PerformanceWarning")
def test_a_sparse_convolution_agrees_with_torch(no_numba):
    index, values = torch.arange(0, 72, 5), torch.randn(15)
    weight = torch.zeros(72).index_copy(0, index, values).view(4, 2, 3, 3)
    x = torch.randn(40, 2, 12, 12)
    torch.testing.assert_close(sparse.conv(x, index, (4, 2, 3, 3), values), F.conv2d(x, weight))
