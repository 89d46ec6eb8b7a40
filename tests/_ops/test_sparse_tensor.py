"""A weight without its zeros behaves as the dense weight does, and its dense gradient can be watched."""

import copy
import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from leanbayes._ops import sparse
from leanbayes._ops.sparse_choice import Kernels
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.errors import InputError

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
KERNELS = {"auto": None, "numba": Kernels("numba", "numba", "numba"), "csr": Kernels("csr", "csr", "csr")}


@pytest.fixture(params=["auto", "numba"])
def kernels(request, monkeypatch):
    use(monkeypatch, request.param)


def use(monkeypatch, name):
    if KERNELS[name] is not None:
        monkeypatch.setattr(sparse, "choose", lambda *_: KERNELS[name])


def made(shape, density=0.4, dtype=torch.float64, index_dtype=torch.int32):
    """A sparse weight, and the dense one that it stands for, as leaves."""
    size = torch.Size(shape).numel()
    index = torch.randperm(size)[: max(1, round(density * size))].sort().values.to(index_dtype)
    values = torch.randn(len(index), dtype=dtype, requires_grad=True)
    dense = torch.zeros(size, dtype=dtype).index_copy(0, index.long(), values.detach()).view(shape).requires_grad_()
    return SparseTensor.of(values, index, tuple(shape)), dense


def close(a, b):
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def compare(operation, x, shape, bias, *args, **kwargs):
    """Value, gradients of input, stored values and bias, and the watched gradient of the whole weight."""
    weight, dense = made(shape)
    x = x.requires_grad_()
    seen: list[Tensor] = []
    with sparse.watching({id(weight.positions): lambda: seen.append}):
        ours = operation(x, weight, bias, *args, **kwargs)
    theirs = operation(x, dense, bias, *args, **kwargs)
    close(ours, theirs)
    g = torch.randn_like(theirs)
    leaves = [x] if bias is None else [x, bias]
    result = torch.autograd.grad((ours * g).sum(), [weight.stored, *leaves])
    expected = torch.autograd.grad((theirs * g).sum(), [dense, *leaves])
    close(result[0], expected[0].flatten()[weight.positions.long()])
    for a, b in zip(result[1:], expected[1:], strict=True):
        close(a, b)
    assert len(seen) == 1
    close(seen[0], expected[0])


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    each = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * rank))  # noqa: E731
    kernel, dilation = each(1, 3), each(1, 2)
    padding = draw(st.one_of(st.just("same"), st.just("valid"), st.just(each(0, 2)), st.integers(0, 2)))
    stride = (1,) * rank if padding == "same" else each(1, 3)
    sizes = [d * (k - 1) + 1 + draw(st.integers(0, 3)) for d, k in zip(dilation, kernel, strict=True)]
    groups = draw(st.integers(1, 3))
    shape = (groups * draw(st.integers(1, 3)), draw(st.integers(1, 3)), *kernel)
    leading = draw(st.sampled_from([(), (1,), (5,)]))
    return leading, groups * shape[1], sizes, shape, (stride, padding, dilation, groups)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@pytest.mark.parametrize("kernel", ["auto", "numba"])
@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
@given(case=convolutions(), with_bias=st.booleans(), named=st.booleans(), seed=st.integers(0, 2**31))
def test_convolutions_and_their_watched_gradient(kernel, case, with_bias, named, seed):
    leading, channels, sizes, shape, options = case
    torch.manual_seed(seed)
    x = torch.randn(*leading, channels, *sizes, dtype=torch.float64)
    bias = torch.randn(shape[0], dtype=torch.float64, requires_grad=True) if with_bias else None
    keywords = dict(zip(("stride", "padding", "dilation", "groups"), options, strict=True)) if named else {}
    with pytest.MonkeyPatch.context() as patch:
        use(patch, kernel)
        compare(CONVOLUTIONS[len(sizes)], x, shape, bias, *(() if named else options), **keywords)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("leading", [(7,), (2, 3, 4), (), (1,)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_maps_and_their_watched_gradient(kernel, leading, with_bias, monkeypatch):
    use(monkeypatch, kernel)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True) if with_bias else None
    compare(F.linear, torch.randn(*leading, 6, dtype=torch.float64), (5, 6), bias)


@pytest.mark.usefixtures("kernels")
def test_the_watched_gradient_of_moments_is_that_of_the_mean():
    weight, dense = made((4, 3, 3, 3))
    x = torch.randn(5, 3, 6, 6, dtype=torch.float64)
    variance = torch.rand(len(weight.positions), dtype=torch.float64, requires_grad=True)
    seen: list[Tensor] = []
    with sparse.watching({id(weight.positions): lambda: seen.append}):
        mean, spread = sparse.conv_moments(x, weight.positions, (4, 3, 3, 3), weight.stored, variance, 2, 1)
    g = torch.randn_like(mean)
    ((mean * g).sum() + 3 * spread.sum()).backward()
    (F.conv2d(x, dense, None, 2, 1) * g).sum().backward()
    close(seen[0], dense.grad)


def test_only_products_inside_are_watched_and_only_of_named_weights():
    weight, other = made((3, 4))[0], made((3, 4))[0]
    x, seen = torch.randn(2, 4, dtype=torch.float64), []
    before = F.linear(x, weight)
    with sparse.watching({id(weight.positions): lambda: seen.append}):
        inside = F.linear(x, other)
        with torch.no_grad():
            assert not F.linear(x, weight).requires_grad
        with sparse.watching({}):
            inner = F.linear(x, weight)
    (before + inside + inner + F.linear(x, weight)).sum().backward()
    assert seen == []


def test_another_thread_is_not_watched():
    weight, x, seen = made((3, 4))[0], torch.randn(2, 4, dtype=torch.float64), []
    with sparse.watching({id(weight.positions): lambda: seen.append}):
        thread = threading.Thread(target=lambda: F.linear(x, weight).sum().backward())
        thread.start()
        thread.join()
    assert seen == []


def test_a_watched_weight_that_is_made_dense_is_watched_too():
    weight, dense = made((4, 4))
    x, seen = torch.randn(3, 4, dtype=torch.float64), []
    with sparse.watching({id(weight.positions): lambda: seen.append}):
        ours = (x @ weight.t()).square().sum()
    ours.backward()
    (x @ dense.t()).square().sum().backward()
    close(seen[0], dense.grad)
    close(weight.stored.grad, dense.grad.flatten()[weight.positions.long()])


OTHERS = {
    "matmul": lambda w: torch.ones(2, 5, dtype=torch.float64) @ w,
    "norm": lambda w: w.norm(),
    "row": lambda w: w[1],
    "transposed": lambda w: w.t().contiguous(),
    "stack": lambda w: torch.stack([w, w]),
    "keyword": lambda w: torch.add(input=torch.ones_like(w), other=w),
    "as input": lambda w: F.linear(w, torch.ones(2, 6, dtype=torch.float64)),
    "as both": lambda w: F.linear(w, w),
    "in a list": lambda w: torch.cat([w, w], 1),
    "iteration": lambda w: sum(row.sum() for row in w),
    "reshape": lambda w: w.reshape(-1)[::2],
    "to float32": lambda w: w.to(torch.float32).double(),
    "einsum": lambda w: torch.einsum("ij,kj->ik", w, w),
    "compare": lambda w: (w > 0).double(),
    "bias of another": lambda w: F.linear(torch.ones(5, 6, dtype=torch.float64), torch.eye(6).double(), w),
}


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_gets_the_dense_tensor(name):
    weight, dense = made((5, 6))
    close(OTHERS[name](weight), OTHERS[name](dense))


def test_questions_need_no_dense_tensor():
    weight, dense = made((300, 400), 0.01)
    assert weight.shape == dense.shape
    assert weight.dtype == torch.float64
    assert (weight.dim(), weight.numel(), len(weight), weight.size(1)) == (2, 120_000, 300, 400)
    assert weight.is_floating_point()
    assert weight.device == dense.device
    assert weight.requires_grad
    assert not SparseTensor.of(weight.stored.detach(), weight.positions, (300, 400)).requires_grad
    assert repr(weight) == "SparseTensor(1200 of 120000, shape=(300, 400))"
    assert isinstance(weight, Tensor)


def large_storages(size):
    """Addresses of memory that tensors hold, of at least so many bytes."""
    result = set()
    for thing in gc.get_objects():
        if type(thing) in (Tensor, torch.nn.Parameter):
            try:
                storage = thing.untyped_storage()
            except NotImplementedError:  # what a transform of torch.func in another test has left: it has no memory
                continue
            if storage.nbytes() >= size:
                result.add(storage.data_ptr())
    return result


def test_dense_memory_lives_for_one_operation(monkeypatch):
    use(monkeypatch, "numba")
    before = large_storages(4 * 400 * 300)
    weight, dense = made((400, 300), 0.01, torch.float32)
    assert len(large_storages(4 * 400 * 300) - before) == 1
    del dense
    F.linear(torch.randn(3, 300), weight).sum().backward()
    weight.norm()
    assert not large_storages(4 * 400 * 300) - before


def test_in_place_operations_are_refused():
    weight, _ = made((5, 6))
    for change in (lambda: weight.mul_(2), lambda: torch.nn.init.zeros_(weight), lambda: weight.requires_grad_(False)):
        with pytest.raises(InputError, match="stored values"), torch.no_grad():
            change()


@pytest.mark.parametrize("kernel", ["auto", "numba"])
def test_function_transforms(kernel):
    """Large enough for kernels of our own, which no transform can look into."""
    index = torch.arange(0, 64 * 64 * 9, 101)
    x, values = torch.randn(3, 16, 64, 8, 8), torch.randn(3, len(index))

    def apply(x, values):
        return sparse.conv(x, index, (64, 64, 3, 3), values, padding=1) if kernel == "auto" else _product(x, values)

    def _product(x, values):
        return F.conv2d(x, SparseTensor.of(values, index, (64, 64, 3, 3)), padding=1)

    together = torch.func.vmap(apply)(x, values)
    for i in range(3):
        torch.testing.assert_close(together[i], apply(x[i], values[i]), rtol=1e-4, atol=1e-4)
    slope = torch.func.grad(lambda v: apply(x[0], v).square().mean())(values[0])
    leaf = values[0].clone().requires_grad_()
    apply(x[0], leaf).square().mean().backward()
    torch.testing.assert_close(slope, leaf.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operation", [F.linear, F.conv2d])
@pytest.mark.parametrize("kernel", KERNELS)
def test_autocast_hands_over_half_precision(kernel, operation, monkeypatch):
    if kernel == "csr" and operation is not F.linear:
        return
    use(monkeypatch, kernel)
    shape = (6, 7) if operation is F.linear else (6, 3, 3, 3)
    weight, dense = made(shape, dtype=torch.float32)
    x, seen = torch.randn(4, *((7,) if operation is F.linear else (3, 5, 5))), []
    watchers = {id(weight.positions): lambda: seen.append}
    with torch.autocast("cpu", dtype=torch.bfloat16), sparse.watching(watchers):
        ours = operation(x.bfloat16(), weight)
        ours.float().square().sum().backward()
    expected = operation(x, dense)
    torch.testing.assert_close(ours.float(), expected, rtol=0.03, atol=0.05)
    expected.square().sum().backward()
    limit = 0.02 * float(dense.grad.abs().max())
    torch.testing.assert_close(seen[0].float(), dense.grad, rtol=0.05, atol=limit)
    torch.testing.assert_close(weight.stored.grad, dense.grad.flatten()[weight.positions.long()], rtol=0.05, atol=limit)


def test_without_memory():
    weight, _ = made((6, 7))
    shape = SparseTensor.of(weight.stored.to("meta"), weight.positions.to("meta"), (6, 7))
    assert F.linear(torch.zeros(4, 7, dtype=torch.float64, device="meta"), shape).shape == (4, 6)


def test_outside_of_autocast_types_must_agree():
    weight, _ = made((5, 6))
    with pytest.raises(InputError, match=r"float64 and the input is torch\.float32"):
        F.linear(torch.zeros(2, 6), weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    weight, dense = made((5, 6), dtype=dtype)
    x = torch.randn(3, 6, dtype=dtype)
    torch.testing.assert_close(F.linear(x, weight), F.linear(x, dense))


@pytest.mark.usefixtures("kernels")
def test_int64_positions():
    weight, dense = made((5, 6), index_dtype=torch.int64)
    x = torch.randn(3, 6, dtype=torch.float64)
    close(F.linear(x, weight), F.linear(x, dense))


def test_a_copy_without_history_is_dense():
    weight, dense = made((5, 6))
    still = SparseTensor.of(weight.stored.detach(), weight.positions, (5, 6))
    assert torch.equal(copy.deepcopy(still), dense)
    assert torch.equal(still.detach().clone(), dense)
