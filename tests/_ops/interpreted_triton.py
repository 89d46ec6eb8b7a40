"""The kernels of Triton by Triton's interpreter on the CPU, against the dense operations in float64.

`test_sparse_triton.py` runs this file in a process of its own, because Triton reads TRITON_INTERPRET when it is loaded.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leanbayes._ops import sparse
from leanbayes._ops.sparse import batch_innermost, conv, conv_halves, conv_moments, linear, linear_halves
from leanbayes._ops.sparse_choice import Kernels
from leanbayes.errors import InputError
from tests._ops.cases import blocks, dense, gradients, pattern

CONVOLUTIONS = {0: lambda x, w, *_: F.linear(x, w), 1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
WAYS = {name: Kernels("triton", name, "triton") for name in ("triton", "triton_atomic", "dense")}


def assert_close(ours, theirs, rounding):
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        size = float(b.detach().abs().max()) if b.numel() else 0.0
        torch.testing.assert_close(a.double(), b, rtol=0, atol=rounding * max(1.0, size))


def compare(x, index, shape, options, monkeypatch, way, rounding=2e-6):
    """Forward and backward of both moments, and of the mean alone, against float64."""
    monkeypatch.setattr(sparse, "choose", lambda *_: WAYS[way])
    mean, variance = torch.randn(len(index)).to(x.dtype), torch.rand(len(index)).to(x.dtype)
    leaves = [x.requires_grad_(), mean.requires_grad_(), variance.requires_grad_()]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    operation = CONVOLUTIONS[len(shape) - 2]
    weights = [dense(values, index, shape) for values in exact[1:]]
    expected = [operation(a, w, None, *options) for a, w in zip((exact[0], exact[0].square()), weights, strict=True)]
    ours = sparse.linear_moments if len(shape) == 2 else conv_moments
    both = ours(x, index, shape, mean, variance, *options)
    assert all(y.dtype == x.dtype for y in both)
    cotangents = [torch.randn_like(y).to(x.dtype) for y in both]
    assert_close(both, expected, rounding)
    exactly = gradients(expected, [c.double() for c in cotangents], exact)
    assert_close(gradients(both, cotangents, leaves), exactly, rounding)
    alone = (linear if len(shape) == 2 else conv)(x, index, shape, mean, *options)
    assert_close([alone], expected[:1], rounding)
    exactly = gradients(expected[:1], [cotangents[0].double()], exact[:2])
    assert_close(gradients([alone], cotangents[:1], leaves[:2]), exactly, rounding)


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    each = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * rank))  # noqa: E731
    kernel, dilation = each(1, 3), each(1, 2)
    padding = draw(st.one_of(st.just("same"), st.just("valid"), st.just(each(0, 2))))
    stride = (1,) * rank if padding == "same" else each(1, 3)
    sizes = [d * (k - 1) + 1 + draw(st.integers(0, 6 // rank)) for d, k in zip(dilation, kernel, strict=True)]
    groups = draw(st.integers(1, 2))
    shape = (groups * draw(st.sampled_from([1, 5, 16, 17])), draw(st.integers(1, 4)), *kernel)
    batch = draw(st.sampled_from([0, 1, 5, 12]))
    x = torch.randn(batch, groups * shape[1], *sizes)
    return x, shape, draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])), (stride, padding, dilation, groups)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch, of its own copy
@settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate])
@given(convolutions(), st.sampled_from(["plain", "channels_last", "innermost"]), st.sampled_from(sorted(WAYS)))
def test_convolution_equals_the_dense_one(case, layout, way):
    x, shape, density, options = case
    torch.manual_seed(0)
    if layout == "innermost":
        x = batch_innermost(x)
    if layout == "channels_last":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    with pytest.MonkeyPatch.context() as patch:
        compare(x.detach(), pattern(shape, density, torch.float32)[0], shape, options, patch, way)


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize(("shape", "size"), [((32, 5, 3, 3), 6), ((48, 20), None)])
def test_whole_blocks(way, shape, size, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(3, 20) if size is None else torch.randn(3, 5, size, size)
    compare(x, blocks(shape, 0.2), shape, () if size is None else (2, 1), monkeypatch, way)


@pytest.mark.parametrize("leading", [(40,), (3, 5), (), (0,)])
def test_linear_equals_the_dense_one(leading, monkeypatch):
    torch.manual_seed(0)
    index = pattern((30, 50), 0.1, torch.float32)[0]
    compare(torch.randn(*leading, 50), index, (30, 50), (), monkeypatch, "triton")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", ["triton", "triton_atomic"])
def test_half_types_are_summed_in_float32(dtype, way, monkeypatch):
    torch.manual_seed(0)
    index = pattern((20, 4, 3, 3), 0.3, torch.float32)[0]
    x = torch.randn(2, 4, 5, 5).to(dtype)  # the results are rounded once, x² and gradients once more
    compare(x, index, (20, 4, 3, 3), (1, 1), monkeypatch, way, rounding=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_two_halves_equal_two_dense_convolutions(way, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(sparse, "choose", lambda *_: WAYS[way])
    shape, (index, first, second) = (20, 3, 3, 3), pattern((20, 3, 3, 3), 0.2, torch.float32)
    x = torch.randn(6, 3, 5, 5)
    leaves = [leaf.requires_grad_() for leaf in (x, first, second)]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    halves = zip(exact[0].chunk(2), exact[1:], strict=True)
    expected = torch.cat([F.conv2d(part, dense(values, index, shape), None, 2, 1) for part, values in halves])
    result = conv_halves(x, index, shape, first, second, 2, 1)
    cotangent = torch.randn_like(result)
    assert_close([result], [expected], 2e-6)
    exactly = gradients([expected], [cotangent.double()], exact)
    assert_close(gradients([result], [cotangent], leaves), exactly, 2e-6)
    assert conv_halves(x[:5], index, shape, first, second) is None


def test_two_halves_of_a_linear_map():
    torch.manual_seed(0)
    index, first, second = pattern((30, 50), 0.1, torch.float32)
    x = torch.randn(8, 50)
    result = linear_halves(x, index, (30, 50), first, second, kernel="triton")
    parts = zip(x.chunk(2), (first, second), strict=True)
    torch.testing.assert_close(result, torch.cat([part @ dense(values, index, (30, 50)).t() for part, values in parts]))


def test_sums_over_many_positions_are_shared_by_programs():
    torch.manual_seed(0)
    index, mean, _ = pattern((3, 2, 1, 1), 0.7, torch.float32)
    x = torch.randn(8, 2, 12, 12)
    y = conv(x, index, (3, 2, 1, 1), mean.requires_grad_(), kernel="triton")
    (ours,) = torch.autograd.grad(y.square().sum(), mean)
    exact = mean.detach().double().requires_grad_()
    (theirs,) = torch.autograd.grad(F.conv2d(x.double(), dense(exact, index, (3, 2, 1, 1))).square().sum(), exact)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=0)


def test_layouts_stay():
    index, mean, _ = pattern((16, 4, 3, 3), 0.1, torch.float32)
    x = torch.randn(4, 4, 5, 5)
    assert conv(x, index, (16, 4, 3, 3), mean, kernel="triton").is_contiguous()
    y = conv(batch_innermost(x), index, (16, 4, 3, 3), mean, kernel="triton")
    assert y.movedim(0, -1).is_contiguous()


def test_only_the_gradients_asked_for_are_given_and_only_once():
    index, mean, variance = pattern((4, 3, 3), 0.4, torch.float32)
    x = torch.randn(2, 3, 5, requires_grad=True)
    m, v = conv_moments(x, index, (4, 3, 3), mean.requires_grad_(), variance, kernel="triton")
    (gradient,) = torch.autograd.grad(m.square().sum() + v.sum(), x, create_graph=True)
    assert variance.grad is None
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_an_unsorted_index_and_float64_are_refused():
    x, mean = torch.zeros(2, 4, 5), torch.zeros(2)
    with pytest.raises(InputError, match="sorted"):
        conv(x, torch.tensor([5, 0]), (3, 4, 2), mean, kernel="triton")
    with pytest.raises(InputError, match="float64"):
        conv(x.double(), torch.tensor([0, 5]), (3, 4, 2), mean.double(), kernel="triton")
