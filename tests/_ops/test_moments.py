"""The fused sweeps against the same in float64 by torch, values and gradients."""

import math

import pytest
import torch
from torch import Tensor

from leanbayes._ops import moments as ops
from leanbayes.propagate.moments.gaussian import rectified


@pytest.fixture(autouse=True)
def sweep_small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_LEAST", 1)
    monkeypatch.setattr(ops, "_share", lambda numbers: 700)  # several pieces, and blocks that are not full


def images(n: int = 3, channels: int = 5, size: int = 9) -> Tensor:
    return torch.randn(n, channels, size, size).contiguous(memory_format=torch.channels_last)


LAYOUTS = {
    "images": images,
    "channels first": lambda: images().contiguous(),
    "tokens": lambda: torch.randn(4, 70, 6),
    "rows": lambda: torch.randn(1500),
}


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().double().requires_grad_() for t in tensors]


def gradients(outputs, inputs, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs]
    return list(torch.autograd.grad(outputs, inputs, weights))


class TestRectify:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_values_and_gradients_against_float64(self, layout):
        mean = 3 * LAYOUTS[layout]()
        variance = torch.rand_like(mean) + 0.01
        mean.requires_grad_(), variance.requires_grad_()
        computed = ops.rectify(mean, variance)
        m, v = leaves(mean, variance)
        shift, spread, _ = rectified(m, v)
        truth = torch.relu(m) + shift, spread
        for one, other in zip(computed, truth, strict=True):
            assert one.stride() == mean.stride()
            assert (one - other).abs().max() < 1e-6
        for one, other in zip(gradients(computed, (mean, variance)), gradients(truth, (m, v)), strict=True):
            assert (one - other).abs().max() < 1e-5

    @pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e-2, 1.0, 1e3, 1e8])
    def test_relative_error_from_far_below_zero_to_far_above(self, scale):
        mean = torch.linspace(-5, 20, 4001) * scale
        variance = torch.full_like(mean, scale**2)
        computed = ops.rectify(mean, variance)
        shift, spread, _ = rectified(mean.double(), variance.double())
        torch.testing.assert_close(computed[0].double(), mean.double().relu() + shift, rtol=4e-6, atol=1e-10 * scale)
        torch.testing.assert_close(computed[1].double(), spread, rtol=8e-6, atol=1e-10 * scale**2)

    def test_without_variance_it_is_relu_bit_for_bit(self):
        mean = torch.cat([torch.randn(2000), torch.tensor([0.0, -0.0, 1e-38, -1e-38, 1e38])])
        computed = ops.rectify(mean, torch.zeros_like(mean))
        assert torch.equal(computed[0], mean.relu())
        assert not computed[1].any()

    def test_gradients_without_variance_are_finite(self):
        mean, variance = torch.randn(2000, requires_grad=True), torch.zeros(2000, requires_grad=True)
        of_mean, of_variance = gradients(ops.rectify(mean, variance), (mean, variance))
        assert torch.isfinite(of_mean).all()
        assert torch.isfinite(of_variance).all()

    def test_nan_stays(self):
        mean = torch.randn(2000)
        mean[7] = math.nan
        assert ops.rectify(mean, torch.ones(2000))[0][7].isnan()


@pytest.mark.parametrize("channels", [5, 600])
def test_rectify_and_sum(channels):
    mean = images(channels=channels)
    variance = torch.rand_like(mean)
    assert ops.rectify_and_sum(mean, variance) is None  # with gradients it is not for
    with torch.no_grad():
        *computed, sums = ops.rectify_and_sum(mean, variance)
        truth = ops.rectify(mean, variance)
        assert ops.rectify_and_sum(mean.contiguous(), variance) is None
    for one, other in zip(computed, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    first, spread = (part.double() for part in truth)
    inside = rectified(mean.double(), variance.double())[2] * variance
    whole = torch.stack([part.sum((2, 3)) for part in (first, first.square(), spread, inside)], 1)
    torch.testing.assert_close(sums.double(), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pieces", [0, 1, 2, 50])
def test_every_piece_of_work_is_done_once(pieces):
    done = []
    ops.share_out(done.append, range(pieces))
    assert sorted(done) == list(range(pieces))


def test_an_error_of_a_piece_is_raised():
    with pytest.raises(ZeroDivisionError):
        ops.share_out(lambda start: 1 / (start - 7), range(20))


class TestSquare:
    @pytest.mark.parametrize("layout", ["images", "tokens"])
    def test_values(self, layout):
        x = LAYOUTS[layout]()
        v = torch.rand_like(x)
        second, sums = ops.square(x, v)
        torch.testing.assert_close(second, x.square() + v)
        axes = (2, 3) if layout == "images" else (1,)
        torch.testing.assert_close(sums, torch.stack([x.sum(axes), x.square().sum(axes), v.sum(axes)], 1))

    def test_gradients(self):
        x, v = images(), images().square()
        of_second, of_passed = torch.randn_like(x), torch.randn_like(x)
        of_sums = torch.randn(3, 3, 5)
        a, b = leaves(x, v)
        total = ((a.square() + b) * of_second).sum() + (b * of_passed).sum()
        for k, part in enumerate((a, a.square(), b)):
            total = total + (part.sum((2, 3)) * of_sums[:, k]).sum()
        total.backward()
        of_x, of_v = ops.pull_back_square(x, of_second.contiguous(), of_passed, of_sums)
        torch.testing.assert_close(of_x.double(), a.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(of_v.double(), b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["images", "tokens"])
def test_affine(layout):
    x = LAYOUTS[layout]()
    channels = 5 if layout == "images" else 6
    inputs = [x, torch.rand_like(x), *(torch.randn(channels) for _ in range(4))]
    for t in inputs:
        t.requires_grad_()
    computed = ops.affine(*inputs)
    a, v, *vectors = double = leaves(*inputs)
    m, on_variance, on_square, added = (t.view(-1, 1, 1) if layout == "images" else t for t in vectors)
    axes = (2, 3) if layout == "images" else (1,)
    away = (a - m).square()
    truth = on_variance * v + on_square * away + added, torch.stack([v.sum(axes), away.sum(axes)], 1)
    for one, other in zip(computed, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    for one, other in zip(gradients(computed, inputs), gradients(truth, double), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (40, 33, 3, 3), (1, 1, 20, 20)])
def test_turning_and_adding_what_is_turned(shape):
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        computed = ops.turned(x)
        assert torch.equal(computed, x)
        assert computed.movedim(0, -1).is_contiguous()
        total = torch.randn(shape).contiguous(memory_format=torch.channels_last)
        truth = total + x
        assert torch.equal(ops.add_turned(total, computed), truth)
        assert torch.equal(total, truth)
    assert ops.turned(x) is x
    assert torch.equal(ops.add_turned(x, x), 2 * x)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.double(),
        lambda x: x.bfloat16(),
        lambda x: x.transpose(0, 1),
        lambda x: x[..., ::2],
        lambda x: x[:0],
    ],
)
def test_other_types_and_layouts_are_left_to_torch(other):
    x = torch.randn(6, 6, 8)
    assert ops.rectify(other(x), torch.ones(6, 6, 8)) is None
    assert ops.square(torch.randn(6, 6, 8), other(x)) is None


def test_under_vmap_it_is_left_to_torch():
    computed = []
    torch.func.vmap(lambda m: computed.append(ops.rectify(m, m)) or m)(torch.rand(3, 9))
    assert computed == [None]


def side_by_side(x: Tensor, variance: Tensor) -> list[Tensor]:
    return [x.double(), x.double().square(), variance.double()]


class TestBeside:
    @pytest.mark.parametrize("channels", [1, 5, 33])
    @torch.no_grad()
    def test_values_layout_and_sums(self, channels):
        x = images(channels=channels)
        variance = torch.rand_like(x)
        out, sums = ops.beside(x, variance)
        assert out.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(out, torch.cat([variance, x.square()], 1))
        truth = torch.stack([part.sum((2, 3)) for part in side_by_side(x, variance)], 1)
        torch.testing.assert_close(sums.double(), truth, rtol=1e-5, atol=1e-4)

    def test_gradients_are_left_to_torch(self):
        assert ops.beside(images(), images().square()) is None


class TestPoolLargest:
    @pytest.mark.parametrize(
        "windows",
        [[(2, 2, 0, 1)] * 2, [(3, 2, 1, 1), (2, 1, 1, 1)], [(2, 3, 0, 3), (3, 1, 0, 1)], [(9, 9, 0, 1)] * 2],
    )
    @torch.no_grad()
    def test_against_torch(self, windows):
        x = images().mul(4).round().contiguous(memory_format=torch.channels_last)  # with ties, of which the first wins
        variance = torch.rand_like(x)
        arguments = [tuple(window[i] for window in windows) for i in range(4)]
        mean, indices = torch.nn.functional.max_pool2d_with_indices(x.contiguous(), *arguments)
        truth = mean, variance.flatten(2).gather(2, indices.flatten(2)).view(mean.shape)
        *computed, sums = ops.pool_largest(x, variance, mean.shape[2:], windows)
        for one, other in zip(computed, truth, strict=True):
            assert one.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(one, other)
        expected = torch.stack([part.sum((2, 3)) for part in side_by_side(*truth)], 1)
        torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-4)

    @torch.no_grad()
    def test_nan_and_infinity_as_in_torch(self):
        x = images()
        x[0, 0, 0, 0], x[0, 1, 1, 1], x[1, 2] = math.nan, math.nan, -math.inf
        mean, _, _ = ops.pool_largest(x, torch.ones_like(x), (4, 4), [(2, 2, 0, 1)] * 2)
        torch.testing.assert_close(mean, torch.nn.functional.max_pool2d(x, 2), equal_nan=True, rtol=0, atol=0)


class TestResample:
    @pytest.mark.parametrize("shape", [(18, 18), (4, 27), (1, 1), (9, 5)])
    @torch.no_grad()
    def test_against_dense_matrices_in_float64(self, shape):
        variance, rho = images().square(), torch.rand(3, 5)
        maps = []
        for n in shape:  # bands of random weights, of which some are negative and one column is zero
            band = torch.randn(9, n) * (torch.arange(9)[:, None] - torch.linspace(0, 8, n)).abs().lt(2.5)
            band[:, n // 2] = 0 if n > 1 else band[:, n // 2]
            maps.append(band)
        total, sums = ops.resample(variance, rho, maps)
        rows, columns = (matrix.double() for matrix in maps)
        v = variance.double()
        together = rho.double()[..., None, None] * torch.einsum("nchw,hi,wj->ncij", v.sqrt(), rows, columns).square()
        alone = torch.einsum("nchw,hi,wj->ncij", v, rows.square(), columns.square())
        truth = together + (1 - rho.double())[..., None, None] * alone
        assert total.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(total.double(), truth, rtol=1e-5, atol=1e-6)
        expected = torch.stack([together.sum((2, 3)), truth.sum((2, 3))], 1)
        torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)
