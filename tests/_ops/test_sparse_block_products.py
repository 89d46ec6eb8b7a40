"""Products over blocks of stored weights against the dense operations, which are torch's."""

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leanbayes._ops.sparse import (
    batch_innermost,
    conv,
    conv_halves,
    conv_moments,
    kernels_for,
    linear,
    linear_halves,
    linear_moments,
)
from leanbayes.errors import InputError
from tests._ops.cases import assert_equal, block_pattern, dense, gradients, pattern

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def moments_of(plain, x, mean, variance, index, shape):
    return plain(x, dense(mean, index, shape)), plain(x.square(), dense(variance, index, shape))


def compare(ours, theirs, leaves, terms):
    """Outputs and the gradients of all leaves."""
    weights = [torch.randn_like(result) for result in theirs]
    assert_equal(ours, theirs, terms)
    assert_equal(gradients(ours, weights, leaves), gradients(theirs, weights, leaves), terms)


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    each = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * rank))  # noqa: E731
    kernel, dilation = each(1, 4), each(1, 3)
    padding = draw(st.one_of(st.just("same"), st.just("valid"), st.just(each(0, 3)), st.integers(0, 3)))
    stride = (1,) * rank if padding == "same" else each(1, 3)
    least = [max(1, d * (k - 1) + 1) for d, k in zip(dilation, kernel, strict=True)]
    sizes = [n + draw(st.integers(0, 20 // rank**2)) for n in least]
    groups, block = draw(st.integers(1, 2)), draw(st.sampled_from([8, 16, 24, 32]))
    shape = (groups * block * draw(st.integers(1, 2)), draw(st.integers(1, 3)), *kernel)
    # A vector is 32 numbers of float32 or 16 of float64: less than one, a whole one, some and a rest.
    batch = draw(st.sampled_from([0, 1, 5, 16, 32, 37, 64, 71]))
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return batch, groups * shape[1], sizes, shape, block, density, dtype, (stride, padding, dilation, groups)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch, of its own copy
@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(convolutions(), st.booleans(), st.integers(0, 2**31))
def test_convolution_equals_the_dense_one(case, turned, seed):
    batch, channels, sizes, shape, block, density, dtype, options = case
    torch.manual_seed(seed)
    index, mean, variance = block_pattern(shape, density, block, dtype)
    x = torch.randn(batch, channels, *sizes, dtype=dtype)
    leaves = [(batch_innermost(x) if turned else x).detach(), mean, variance]
    x, mean, variance = (leaf.requires_grad_() for leaf in leaves)
    plain = lambda x, w: CONVOLUTIONS[len(sizes)](x, w, None, *options)  # noqa: E731
    expected = moments_of(plain, x, mean, variance, index, shape)
    terms = max(expected[0].numel() // shape[0], torch.Size(shape[1:]).numel())
    both = conv_moments(x, index, shape, mean, variance, *options, kernel="blocks")
    compare(both, expected, leaves, terms)
    one = conv(x, index, shape, mean, *options, kernel="blocks")
    compare([one], expected[:1], leaves[:2], terms)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch, of its own copy
@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
@given(convolutions(), st.integers(0, 2**31))
def test_two_halves_equal_two_dense_convolutions(case, seed):
    batch, channels, sizes, shape, block, density, dtype, options = case
    torch.manual_seed(seed)
    index, first, second = block_pattern(shape, density, block, dtype)
    x = torch.randn(batch, channels, *sizes, dtype=dtype).requires_grad_()
    leaves = [x, first.requires_grad_(), second.requires_grad_()]
    result = conv_halves(x, index, shape, first, second, *options, kernel="blocks")
    half = batch // 2
    if batch % 2 or half * x.itemsize < 128:  # a half does not fill a vector
        assert result is None
        return
    pairs = zip((x[:half], x[half:]), (first, second), strict=True)
    plain = CONVOLUTIONS[len(sizes)]
    expected = torch.cat([plain(part, dense(values, index, shape), None, *options) for part, values in pairs])
    compare([result], [expected], leaves, max(expected.numel() // shape[0], torch.Size(shape[1:]).numel()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("leading", "shape", "block", "density"),
    [((40,), (48, 50), 16, 0.1), ((3, 5), (8, 4), 8, 0.5), ((), (16, 3), 16, 1.0), ((1100,), (32, 9), 32, 0.5)],
)
def test_linear_equals_the_dense_one(dtype, leading, shape, block, density):
    torch.manual_seed(0)
    index, mean, variance = block_pattern(shape, density, block, dtype)
    leaves = [torch.randn(*leading, shape[1], dtype=dtype), mean, variance]
    x, mean, variance = (leaf.requires_grad_() for leaf in leaves)
    expected = moments_of(F.linear, x, mean, variance, index, shape)
    terms = max(expected[0].numel() // shape[0], shape[1])
    compare(linear_moments(x, index, shape, mean, variance, kernel="blocks"), expected, leaves, terms)
    compare([linear(x, index, shape, mean, kernel="blocks")], expected[:1], leaves[:2], terms)


def test_two_halves_of_a_linear_map():
    torch.manual_seed(0)
    index, first, second = block_pattern((32, 50), 0.1, 16, torch.float64)
    x = torch.randn(70, 50, dtype=torch.float64)
    result = linear_halves(x, index, (32, 50), first, second, kernel="blocks")
    parts = zip(x.chunk(2), (first, second), strict=True)
    torch.testing.assert_close(result, torch.cat([part @ dense(values, index, (32, 50)).t() for part, values in parts]))


def test_gradients_equal_finite_differences():
    torch.manual_seed(0)
    shape = (16, 3, 3, 2)
    index, mean, variance = block_pattern(shape, 0.4, 8, torch.float64)
    x = torch.randn(34, 3, 4, 3, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, mean, variance)]

    def moments(x, mean, variance):
        return conv_moments(x, index, shape, mean, variance, 2, 1, kernel="blocks")

    def halves(x, first, second):
        return conv_halves(x, index, shape, first, second, 1, 1, kernel="blocks")

    assert torch.autograd.gradcheck(moments, leaves, fast_mode=True)
    assert torch.autograd.gradcheck(halves, leaves, fast_mode=True)


@pytest.mark.parametrize("outputs", [32, 256])
def test_threads_do_not_change_the_result(outputs):
    torch.manual_seed(0)
    shape = (outputs, 32, 3, 3)
    index, mean, variance = block_pattern(shape, 0.1, 16, torch.float32)
    x, q = torch.randn(70, 32, 8, 8), torch.randn(2, 70, outputs, 8, 8)
    results, before = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            leaves = [tensor.clone().requires_grad_() for tensor in (x, mean, variance)]
            both = conv_moments(leaves[0], index, shape, *leaves[1:], padding=1, kernel="blocks")
            results.append([*both, *gradients(both, q, leaves)])
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


def test_two_threads_may_call_at_once():
    index, mean, _ = block_pattern((32, 32, 3, 3), 0.1, 16, torch.float32)
    x = torch.randn(64, 32, 8, 8)
    expected, results = conv(x, index, (32, 32, 3, 3), mean, kernel="blocks"), []
    callers = [
        threading.Thread(target=lambda: results.append(conv(x, index, (32, 32, 3, 3), mean, kernel="blocks")))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 4
    assert all(torch.equal(result, expected) for result in results)


def test_nan_reaches_only_the_examples_that_have_it():
    """Batches of 37 make the kernels compute some examples twice, which must not be counted twice or mixed."""
    index, mean, _ = block_pattern((16, 4, 3), 0.5, 16, torch.float32)
    x = torch.randn(37, 4, 9)
    x[3] = torch.nan
    x.requires_grad_()
    y = conv(x, index, (16, 4, 3), mean, kernel="blocks")
    y.square().sum().backward()
    bad = torch.zeros(37, dtype=torch.bool)
    bad[3] = True
    assert torch.equal(y.isnan().flatten(1).any(1), bad)
    assert torch.equal(x.grad.isnan().flatten(1).any(1), bad)


def test_blocks_are_chosen_where_positions_are_in_blocks():
    shape, x = (64, 64, 3, 3), torch.zeros(64, 64, 16, 16)
    index, _, _ = block_pattern(shape, 0.05, 16, torch.float32)
    assert str(kernels_for(x, index, shape, padding=1)) == "blocks"
    assert str(kernels_for(x, pattern(shape, 0.05, torch.float32)[0], shape, padding=1)) == "numba"
    assert str(kernels_for(x, block_pattern(shape, 0.95, 16, torch.float32)[0], shape, padding=1)) == "dense"


def test_other_positions_are_refused():
    index, mean, _ = pattern((16, 4, 3), 0.5, torch.float32)
    with pytest.raises(InputError, match="blocks of 8 or 16"):
        conv(torch.randn(40, 4, 9), index, (16, 4, 3), mean, kernel="blocks")
