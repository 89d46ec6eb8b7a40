"""Sweeps over activations with the batch innermost against operations of torch and the kernels of the other layout."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops import compiled, innermost_moments, moments, positions
from leanbayes._ops.innermost_moments import is_innermost, neighbour_products, sum_windows, takes
from leanbayes._ops.sparse import batch_innermost
from leanbayes._ops.sparse_plan import Axis


def images(batch=37, channels=5, height=17, width=9):
    torch.manual_seed(0)
    return [batch_innermost(f(batch, channels, height, width)) for f in (torch.randn, torch.rand)]


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def test_rectified_moments_and_sums_equal_those_of_the_other_layout():
    mean, variance = images()
    usual = moments.rectify_and_sum(*map(moments.channels_innermost, (mean, variance)))
    ours = moments.rectify_and_sum(mean, variance)
    assert is_innermost(ours[0])
    assert is_innermost(ours[1])
    for a, b in zip(ours, usual, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("random_gain", [False, True])
def test_a_norm_and_its_sums_equal_those_of_the_other_layout(random_gain):
    x, variance = images()
    centre, on_variance, on_square, added = torch.rand(4, 5)
    vectors = centre, on_variance, on_square if random_gain else on_square * 0, added
    usual, usual_sums = moments.affine(*map(moments.channels_innermost, (x, variance)), *vectors)
    ours, sums = moments.affine(x, variance, *vectors)
    assert is_innermost(ours)
    torch.testing.assert_close(ours, usual)
    kinds = slice(None) if random_gain else slice(1)
    torch.testing.assert_close(sums[:, kinds], usual_sums[:, kinds])
    factor, start = centre, on_variance
    normed = innermost_moments.norm_means(x, factor, start)
    torch.testing.assert_close(normed, x * factor.view(1, -1, 1, 1) + start.view(1, -1, 1, 1))


@pytest.mark.parametrize("size", [(17, 9), (1, 99), (99, 1), (32, 4), (16, 16)])
def test_products_of_neighbours_equal_those_of_the_other_layout(size):
    x, _ = images(37, 5, *size)
    usual = positions.neighbour_products(moments.channels_innermost(x), (2, 3))
    assert takes(x)
    torch.testing.assert_close(positions.neighbour_products(x, (2, 3)), usual, rtol=1e-5, atol=1e-6)
    assert neighbour_products(x, 1, 1).shape == (37, 5, 1, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("taps", "stride", "padding", "dilation"), [(3, 1, 1, 1), (3, 2, 1, 1), (2, 1, 3, 4), (5, 3, 2, 2)]
)
def test_sums_over_windows_are_convolutions_by_ones(taps, stride, padding, dilation, dtype):
    x, _ = (part.to(dtype) for part in images(6))
    axes = [Axis(n, taps, stride, padding, padding, dilation) for n in x.shape[2:]]
    ours = sum_windows(x.movedim(0, -1).contiguous(), *axes).movedim(-1, 0)
    expected = F.conv2d(x, x.new_ones(5, 1, taps, taps), None, stride, padding, dilation, groups=5)
    torch.testing.assert_close(ours, expected)


def test_only_large_images_with_the_batch_innermost_are_taken(monkeypatch):
    x, _ = images()
    assert takes(x)
    assert not takes(x.contiguous())
    assert not takes(moments.channels_innermost(x))
    assert not takes(x.double())
    assert not takes(x[:, :1, :4])
    with torch.enable_grad():
        assert not takes(x)
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert not takes(x)
