"""Without numba, results are the same up to rounding, and one warning says how to get the faster path."""

import builtins
import os
import tempfile
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


def twice(x):
    return x + x


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A package in a folder of its own, a home and a folder for temporary files; no variable says more."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "some_kernels.py").write_text("1")
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compiled, "__file__", str(package / "compiled.py"))
    compiled._folders.cache_clear()
    yield tmp_path
    compiled._folders.cache_clear()


def closed(monkeypatch, tmp_path, *, package=False, home=False, temporary=False):
    """Make folders where none can be: below a file. Permissions would not stop root."""
    (tmp_path / "file").touch()
    if package:
        monkeypatch.setattr(compiled, "__file__", str(tmp_path / "file" / "compiled.py"))
    if home:
        monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    if temporary:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "tmp"))


def places():
    return [str(folder.parent.parent) for folder in compiled._folders()]


def test_kernels_are_kept_beside_the_package_then_at_home_then_among_temporary_files(monkeypatch, elsewhere):
    kept = [str(elsewhere / part) for part in ("package/__pycache__", "home/.cache", f"leanbayes-{os.getuid()}")]
    assert places() == kept
    closed(monkeypatch, elsewhere, package=True)
    compiled._folders.cache_clear()
    assert places() == kept[1:]
    closed(monkeypatch, elsewhere, home=True)
    compiled._folders.cache_clear()
    assert places() == kept[2:]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(elsewhere / "named"))
    compiled._folders.cache_clear()
    assert places() == [str(elsewhere / "named"), kept[2]]


def test_a_kernel_is_kept_in_the_best_folder_and_numba_is_left_as_it_was(monkeypatch, elsewhere):
    closed(monkeypatch, elsewhere, package=True)
    before = numba.config.CACHE_DIR
    assert compiled.kernel()(twice)(21) == 42
    assert before == numba.config.CACHE_DIR
    assert [path.name for path in compiled._folders()[0].rglob("*.nbc")]


def test_a_cold_start_works_without_any_folder(monkeypatch, elsewhere):
    closed(monkeypatch, elsewhere, package=True, home=True, temporary=True)
    assert compiled._folders() == ()
    assert compiled.kernel()(twice)(21) == 42


def test_an_edited_source_has_a_folder_of_its_own(elsewhere):
    """A kernel takes functions from other files, whose changes numba does not see."""
    before = compiled._folders()[0]
    (elsewhere / "package" / "some_kernels.py").write_text("2")
    compiled._folders.cache_clear()
    assert compiled._folders()[0].parent == before.parent
    assert compiled._folders()[0] != before


def test_a_folder_that_others_can_write_to_is_not_trusted(elsewhere):
    folder = elsewhere / f"leanbayes-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert str(folder) not in places()


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
