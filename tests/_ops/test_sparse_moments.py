"""Moments of layers with sparse random weights against the dense operations, which are torch's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leanbayes._ops.sparse import batch_innermost, geometry_of
from leanbayes._ops.sparse_moments import Stored, boxed_variance, fits_box, output_moments
from tests._ops.cases import assert_equal, block_pattern, dense

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@st.composite
def convolutions(draw):
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    each = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * rank))  # noqa: E731
    kernel, dilation = each(1, 4), each(1, 3)
    padding = draw(st.one_of(st.just("same"), st.just("valid"), st.just(each(0, 3)), st.integers(0, 3)))
    stride = (1,) * rank if padding == "same" else each(1, 3)
    least = [max(1, d * (k - 1) + 1) for d, k in zip(dilation, kernel, strict=True)]
    sizes = [n + draw(st.integers(0, 20 // rank**2)) for n in least]
    groups, block = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 3, 8, 16, 32]))
    shape = (groups * block * draw(st.integers(1, 2)), draw(st.integers(1, 3)), *kernel)
    batch = draw(st.sampled_from([0, 1, 5, 16, 32, 37, 64, 71]))
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return batch, groups * shape[1], sizes, shape, block, density, dtype, (stride, padding, dilation, groups)


def layer(case):
    batch, channels, sizes, shape, block, density, dtype, options = case
    index, mean, variance = block_pattern(shape, density, block, dtype)
    x = batch_innermost(torch.randn(batch, channels, *sizes, dtype=dtype))
    return x, batch_innermost(torch.rand_like(x)), index, mean, variance, geometry_of(x, shape, *options)


def first_axis_last(x):
    return x.movedim(0, -1)


def batch_first(sums, like):
    return sums.movedim(-1, 0).reshape(like.shape)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch, of its own copy
@settings(max_examples=30, deadline=None, derandomize=True, phases=[Phase.generate])
@given(convolutions(), st.booleans(), st.integers(0, 2**31))
def test_moments_equal_those_of_the_dense_operations(case, random, seed):
    torch.manual_seed(seed)
    shape, options = case[3], case[-1]
    x, v, index, mean, variance, geometry = layer(case)
    w, spread = dense(mean, index, shape), dense(variance if random else variance * 0, index, shape)
    plain = lambda x, w: CONVOLUTIONS[len(shape) - 2](x, w, None, *options)  # noqa: E731
    expected = plain(x, w), plain(v, w.square()) + plain(x.square() + v, spread)
    ours = output_moments(
        first_axis_last(x), first_axis_last(v), Stored(index, mean, variance if random else None), geometry
    )
    terms = 2 * max(geometry.outputs, torch.Size(shape[1:]).numel())
    assert_equal([batch_first(a, b) for a, b in zip(ours, expected, strict=True)], expected, terms)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")  # torch, of its own copy
@settings(max_examples=30, deadline=None, derandomize=True, phases=[Phase.generate])
@given(convolutions(), st.booleans(), st.integers(0, 2**31))
def test_a_boxed_variance_has_kernels_that_are_even_over_their_window(case, random, seed):
    torch.manual_seed(seed)
    shape, options = case[3], case[-1]
    x, v, index, mean, variance, geometry = layer(case)
    if not fits_box(geometry):
        assert options[-1] > 1 or len(shape) == 5
        return
    shares = torch.rand(torch.Size(shape[2:]).numel(), dtype=x.dtype) + 0.5
    w, spread = dense(mean, index, shape), dense(variance if random else variance * 0, index, shape)

    def even(kernel):
        folded = (kernel.flatten(2) @ shares) / len(shares)
        return folded.view(*shape[:2], *[1] * (len(shape) - 2)).expand(shape).contiguous()

    plain = lambda x, w: CONVOLUTIONS[len(shape) - 2](x, w, None, *options)  # noqa: E731
    expected = plain(v, even(w.square() + spread)) + plain(x.square(), even(spread))
    weight = Stored(index, mean, variance if random else None)
    four = [first_axis_last(value).reshape(x.shape[1], *geometry.sizes[1:], len(x)) for value in (x, v)]
    ours = boxed_variance(*four, weight, shares, geometry)
    assert_equal([batch_first(ours, expected)], [expected], 4 * max(geometry.outputs, torch.Size(shape[1:]).numel()))


@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("batch", [3, 70])
def test_a_linear_map_is_a_convolution_of_one_position(block, batch):
    torch.manual_seed(0)
    index, mean, variance = block_pattern((32, 20), 0.2, block, torch.float64)
    x, v = torch.randn(20, batch, dtype=torch.float64), torch.rand(20, batch, dtype=torch.float64)
    ours = output_moments(x, v, Stored(index, mean, variance), geometry_of(x.t(), (32, 20)))
    w, spread = dense(mean, index, (32, 20)), dense(variance, index, (32, 20))
    expected = w @ x, w.square() @ v + spread @ (x.square() + v)
    assert_equal([value.squeeze(1) for value in ours], expected, 20)
