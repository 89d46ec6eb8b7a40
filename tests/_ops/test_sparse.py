"""Products over the non-zeros against the dense operations, which are torch's."""

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leanbayes._ops import sparse
from leanbayes._ops.sparse import (
    batch_innermost,
    conv,
    conv_halves,
    conv_moments,
    linear,
    linear_halves,
    linear_moments,
)
from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from tests._ops.cases import assert_equal, dense, gradients, pattern

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def compare(operation, moments, plain, x, index, mean, variance, shape):
    """Forward and backward, of the mean alone and of both, against the dense operation."""
    leaves = [x.requires_grad_(), mean.requires_grad_(), variance.requires_grad_()]
    mu, var = dense(mean, index, shape), dense(variance, index, shape)
    expected = plain(x, mu), plain(x.square(), var)
    weights = torch.randn_like(expected[0]), torch.randn_like(expected[0])
    terms = max(expected[0].numel() // shape[0], torch.Size(shape[1:]).numel())
    both = moments(x, index, shape, mean, variance)
    assert_equal(both, expected, terms)
    assert_equal(gradients(both, weights, leaves), gradients(expected, weights, leaves), terms)
    one = operation(x, index, shape, mean)
    assert_equal([one], expected[:1], terms)
    assert_equal(gradients([one], weights[:1], leaves[:2]), gradients(expected[:1], weights[:1], leaves[:2]), terms)


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    each = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * rank))  # noqa: E731
    kernel, dilation = each(1, 4), each(1, 3)
    padding = draw(st.one_of(st.just("same"), st.just("valid"), st.just(each(0, 3)), st.integers(0, 3)))
    stride = (1,) * rank if padding == "same" else each(1, 3)
    least = [max(1, d * (k - 1) + 1) for d, k in zip(dilation, kernel, strict=True)]
    sizes = [n + draw(st.integers(0, 20 // rank**2)) for n in least]
    groups = draw(st.integers(1, 3))
    shape = (groups * draw(st.integers(1, 4)), draw(st.integers(1, 3)), *kernel)
    # A vector is 32 numbers of float32 or 16 of float64: less than one, a whole one, some and a rest.
    batch = draw(st.sampled_from([0, 1, 5, 16, 32, 37, 64, 71]))
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return batch, groups * shape[1], sizes, shape, density, dtype, (stride, padding, dilation, groups)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch, of its own copy
@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(convolutions(), st.sampled_from(["plain", "channels_last", "innermost"]), st.integers(0, 2**31))
def test_convolution_equals_the_dense_one(case, layout, seed):
    batch, channels, sizes, shape, density, dtype, options = case
    torch.manual_seed(seed)
    index, mean, variance = pattern(shape, density, dtype)
    x = torch.randn(batch, channels, *sizes, dtype=dtype)
    if layout == "innermost":
        x = batch_innermost(x)
    if layout == "channels_last":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    compare(
        lambda *a: conv(*a, *options, kernel="numba"),
        lambda *a: conv_moments(*a, *options, kernel="numba"),
        lambda x, w: CONVOLUTIONS[len(sizes)](x, w, None, *options),
        x.detach(),
        index,
        mean,
        variance,
        shape,
    )


@pytest.mark.parametrize("kernel", ["numba", "csr", "dense", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("leading", "shape", "density"),
    [((40,), (30, 50), 0.05), ((3, 5), (7, 4), 0.5), ((), (6, 3), 1.0), ((70,), (9, 8), 0.0), ((0,), (3, 5), 0.5)],
)
def test_linear_equals_the_dense_one(kernel, dtype, leading, shape, density):
    index, mean, variance = pattern(shape, density, dtype)
    x = torch.randn(*leading, shape[1], dtype=dtype)
    compare(
        lambda *a: linear(*a, kernel=kernel),
        lambda *a: linear_moments(*a, kernel=kernel),
        F.linear,
        x,
        index,
        mean,
        variance,
        shape,
    )


@pytest.mark.parametrize("kernel", ["dense", "auto"])
def test_the_chosen_and_the_dense_convolution_agree_with_torch(kernel):
    shape, options = (6, 2, 3, 3), (2, 1, 1, 2)
    index, mean, variance = pattern(shape, 0.1, torch.float64)
    compare(
        lambda *a: conv(*a, *options, kernel=kernel),
        lambda *a: conv_moments(*a, *options, kernel=kernel),
        lambda x, w: F.conv2d(x, w, None, *options),
        torch.randn(40, 4, 9, 9, dtype=torch.float64),
        index,
        mean,
        variance,
        shape,
    )


def test_gradients_equal_finite_differences():
    shape = (4, 3, 3, 2)
    index, mean, variance = pattern(shape, 0.4, torch.float64)
    x = torch.randn(17, 3, 4, 3, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, mean, variance)]

    def f(x, mean, variance):
        return conv_moments(x, index, shape, mean, variance, 2, 1, kernel="numba")

    assert torch.autograd.gradcheck(f, leaves, fast_mode=True)


@pytest.mark.parametrize("kernel", ["numba", "csr"])
def test_gradients_of_a_linear_map_equal_finite_differences(kernel):
    index, mean, variance = pattern((4, 5), 0.4, torch.float64)
    leaves = [t.requires_grad_() for t in (torch.randn(3, 5, dtype=torch.float64), mean, variance)]
    assert torch.autograd.gradcheck(lambda *a: linear_moments(a[0], index, (4, 5), *a[1:], kernel=kernel), leaves)


def test_a_second_derivative_raises_and_is_not_wrong():
    index, mean, _ = pattern((4, 5), 0.4, torch.float64)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    y = linear(x, index, (4, 5), mean.requires_grad_(), kernel="numba")
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_only_the_gradients_asked_for_are_given():
    index, mean, variance = pattern((4, 3, 3), 0.4, torch.float32)
    m, v = conv_moments(torch.randn(33, 3, 8), index, (4, 3, 3), mean.requires_grad_(), variance, kernel="numba")
    (m.sum() + v.sum()).backward()
    assert mean.grad is not None
    assert variance.grad is None


def test_one_output_alone_may_be_differentiated():
    index, mean, variance = pattern((4, 3, 3), 0.4, torch.float64)
    x = torch.randn(33, 3, 8, dtype=torch.float64, requires_grad=True)
    _, v = conv_moments(x, index, (4, 3, 3), mean, variance, kernel="numba")
    (ours,) = torch.autograd.grad(v.sum(), x)
    (theirs,) = torch.autograd.grad(F.conv1d(x.square(), dense(variance, index, (4, 3, 3))).sum(), x)
    assert_equal([ours], [theirs], 12)


def test_without_a_batch_the_result_has_none():
    index, mean, _ = pattern((4, 3, 3, 3), 0.4, torch.float64)
    x = torch.randn(3, 8, 8, dtype=torch.float64)
    ours = conv(x, index, (4, 3, 3, 3), mean, padding=1, kernel="numba")
    assert_equal([ours], [F.conv2d(x, dense(mean, index, (4, 3, 3, 3)), padding=1)], 27)


def test_the_layout_stays_through_a_chain():
    index, mean, variance = pattern((8, 8, 3, 3), 0.1, torch.float32)
    x = torch.randn(64, 8, 6, 6)
    m, v = conv_moments(x, index, (8, 8, 3, 3), mean, variance, padding=1, kernel="numba")
    h = torch.relu(m + v.sqrt() * torch.randn_like(m))
    assert h.stride() == batch_innermost(x).stride()
    assert batch_innermost(h).data_ptr() == h.data_ptr()
    assert conv(h, index, (8, 8, 3, 3), mean, kernel="numba").stride() == (1, 16 * 64, 4 * 64, 64)


@pytest.mark.parametrize("shape", [(5, 3, 4, 2), (1, 3, 4), (5, 1, 1), (0, 3, 2), (4, 3), (4,)])
def test_batch_innermost_changes_strides_only(shape):
    x = torch.randn(shape)
    for same in (x, x.movedim(1, -1).contiguous().movedim(-1, 1) if len(shape) > 1 else x, x.expand(2, *shape)[1]):
        moved = batch_innermost(same)
        assert torch.equal(moved, x)
        assert moved.movedim(0, -1).is_contiguous()


def test_int32_and_int64_indices_agree():
    index, mean, _ = pattern((8, 4, 3), 0.3, torch.float32)
    x = torch.randn(40, 4, 9)
    for kernel in ("numba", "dense"):
        assert torch.equal(
            conv(x, index, (8, 4, 3), mean, kernel=kernel), conv(x, index.int(), (8, 4, 3), mean, kernel=kernel)
        )


def test_threads_do_not_change_the_result():
    index, mean, variance = pattern((32, 32, 3, 3), 0.1, torch.float32)
    x, q = torch.randn(70, 32, 8, 8), torch.randn(2, 70, 32, 8, 8)
    results, before = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            leaves = [tensor.clone().requires_grad_() for tensor in (x, mean, variance)]
            both = conv_moments(leaves[0], index, (32, 32, 3, 3), *leaves[1:], padding=1, kernel="numba")
            results.append([*both, *gradients(both, q, leaves)])
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


def test_two_threads_may_call_at_once():
    index, mean, _ = pattern((32, 32, 3, 3), 0.1, torch.float32)
    x = torch.randn(64, 32, 8, 8)
    expected, results = conv(x, index, (32, 32, 3, 3), mean, kernel="numba"), []
    callers = [
        threading.Thread(target=lambda: results.append(conv(x, index, (32, 32, 3, 3), mean, kernel="numba")))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 4
    assert all(torch.equal(result, expected) for result in results)


def test_a_changed_index_between_the_passes_is_noticed():
    index, mean, _ = pattern((8, 4, 3), 0.3, torch.float64)
    y = conv(torch.randn(40, 4, 9, dtype=torch.float64), index, (8, 4, 3), mean.requires_grad_(), kernel="numba")
    index.add_(0)
    with pytest.raises(RuntimeError, match="inplace"):
        y.sum().backward()


def test_in_inference_mode():
    with torch.inference_mode():
        index, mean, _ = pattern((8, 4, 3), 0.3, torch.float64)
        x = torch.randn(40, 4, 9, dtype=torch.float64)
        for kernel in ("numba", "dense"):
            assert_equal(
                [conv(x, index, (8, 4, 3), mean, kernel=kernel)], [F.conv1d(x, dense(mean, index, (8, 4, 3)))], 12
            )


X, INDEX, MEAN = torch.zeros(2, 4, 5, 5), torch.tensor([0, 5]), torch.zeros(2)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: conv(X, INDEX.float(), (3, 4, 2, 2), MEAN), InputError, "int32 or int64"),
        (lambda: conv(X, INDEX[None], (3, 4, 2, 2), MEAN), InputError, "one row"),
        (lambda: conv(X, INDEX, (3, 4, 2, 2), MEAN[:1]), ShapeMismatch, "mean has shape"),
        (lambda: conv_moments(X, INDEX, (3, 4, 2, 2), MEAN, MEAN[:1]), ShapeMismatch, "variance has shape"),
        (lambda: conv(X.double(), INDEX, (3, 4, 2, 2), MEAN), InputError, "convert one"),
        (lambda: conv(X, INDEX, (3, 5, 2, 2), MEAN), ShapeMismatch, "takes 5 channels"),
        (lambda: conv(X, INDEX, (3, 2, 2, 2), MEAN, groups=2), ShapeMismatch, "multiple of 2"),
        (lambda: conv(X, INDEX, (3, 4, 2), MEAN), ShapeMismatch, "cannot take"),
        (lambda: conv(X, INDEX, (3, 4, 2, 2), MEAN, padding="half"), UnknownName, "same"),
        (lambda: conv(X, INDEX, (3, 4, 2, 2), MEAN, 2, "same"), InputError, "stride 1"),
        (lambda: conv(X, INDEX, (3, 4, 2, 2), MEAN, 0), InputError, "positive"),
        (lambda: conv(X, INDEX, (3, 4, 2, 2), MEAN, (1, 2, 3)), InputError, "for 2 axes"),
        (lambda: conv(X, INDEX, (3, 4, 7, 7), MEAN), ShapeMismatch, "does not fit"),
        (lambda: conv(X, INDEX, (3, 4, 2, 2), MEAN, kernel="cuda"), UnknownName, "numba"),
        (lambda: conv(X, INDEX, (3, 4, 2, 2), MEAN, kernel="csr"), InputError, "linear maps"),
        (lambda: conv(X, INDEX.flip(0), (3, 4, 2, 2), MEAN, kernel="numba"), InputError, "sorted"),
        (lambda: conv(X, INDEX * 0, (3, 4, 2, 2), MEAN, kernel="numba"), InputError, "repeats"),
        (lambda: conv(X, INDEX + 43, (3, 4, 2, 2), MEAN, kernel="numba"), InputError, "0 to 47"),
        (lambda: linear(X[0, 0, :, :4], INDEX.flip(0), (3, 4), MEAN, kernel="csr"), InputError, "sorted"),
        (lambda: linear(X, INDEX, (3, 4), MEAN), ShapeMismatch, "cannot take"),
        (lambda: linear(X, INDEX, (3, 5, 1), MEAN), ShapeMismatch, "cannot take"),
    ],
)
def test_what_cannot_be_done_is_said(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_public_names_exist():
    assert all(hasattr(sparse, name) for name in sparse.__all__)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch, of its own copy
@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
@given(convolutions(), st.sampled_from(["plain", "innermost"]), st.integers(0, 2**31))
def test_two_halves_equal_two_dense_convolutions(case, layout, seed):
    batch, channels, sizes, shape, density, dtype, options = case
    torch.manual_seed(seed)
    index, first, second = pattern(shape, density, dtype)
    x = torch.randn(batch, channels, *sizes, dtype=dtype)
    x = (batch_innermost(x) if layout == "innermost" else x).detach().requires_grad_()
    leaves = [x, first.requires_grad_(), second.requires_grad_()]
    result = conv_halves(x, index, shape, first, second, *options, kernel="numba")
    half = batch // 2
    if batch % 2 or half * x.itemsize < 128:  # a half does not fill a vector
        assert result is None
        return
    plain = CONVOLUTIONS[len(sizes)]
    pairs = zip((x[:half], x[half:]), (first, second), strict=True)
    expected = torch.cat([plain(part, dense(values, index, shape), None, *options) for part, values in pairs])
    weights = torch.randn_like(expected)
    terms = max(expected.numel() // shape[0], torch.Size(shape[1:]).numel())
    assert_equal([result], [expected], terms)
    assert_equal(gradients([result], [weights], leaves), gradients([expected], [weights], leaves), terms)


@pytest.mark.parametrize("batch", [64, 96, 71, 32])
def test_two_halves_of_a_linear_map(batch):
    torch.manual_seed(0)
    index, first, second = pattern((30, 50), 0.1, torch.float64)
    x = torch.randn(batch, 50, dtype=torch.float64)
    result = linear_halves(x, index, (30, 50), first, second, kernel="numba")
    if batch % 2:
        assert result is None
        return
    parts = zip(x.chunk(2), (first, second), strict=True)
    torch.testing.assert_close(result, torch.cat([part @ dense(values, index, (30, 50)).t() for part, values in parts]))


def test_gradients_of_two_halves_by_differences():
    torch.manual_seed(0)
    index, first, second = pattern((3, 2, 3, 3), 0.4, torch.float64)
    x = torch.randn(32, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    leaves = (x, first.requires_grad_(), second.requires_grad_())

    def halves(x, first, second):
        return conv_halves(x, index, (3, 2, 3, 3), first, second, 1, 1, kernel="numba")

    torch.autograd.gradcheck(halves, leaves, fast_mode=True)
