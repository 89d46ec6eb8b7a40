"""Means of the softmax and its entropy over points: the kernel against float64, and the points against many draws."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leanbayes._ops import softmax
from leanbayes._ops.softmax import mixture_nll, softmax_moments
from leanbayes.likelihood import Categorical
from leanbayes.likelihood.base import even_noise


def dense(mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """All points at once, in float64."""
    mean, variance = mean.double(), variance.double()
    points = noise.double().view(len(noise), 1, -1, *[1] * (mean.dim() - 2))
    log_p = F.log_softmax(mean + variance.clamp_min(0).sqrt() * points, 2)
    return log_p.exp().mean(0), -(log_p.exp() * log_p).sum(2).mean(0)


def logits(shape: tuple[int, ...], seed: int, last: bool = False, wide: float = 4.0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    mean, variance = wide * torch.randn(shape, generator=source), torch.rand(shape, generator=source) ** 4 * wide
    return (mean.movedim(-1, 1), variance.movedim(-1, 1)) if last else (mean, variance)


@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple),
    points=st.integers(1, 9),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_kernel_is_the_dense_operation_for_all_shapes_and_layouts(shape, points, last, seed):
    mean, variance = logits(shape, seed, last)
    noise = torch.randn(points, mean.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = dense(mean, variance, noise)
    for result in (softmax._swept(mean, variance, noise), softmax_moments(mean, variance, noise)):
        for value, truth in zip(result, expected, strict=True):
            assert value.shape == truth.shape
            torch.testing.assert_close(value.double(), truth, rtol=2e-5, atol=2e-6)


def test_large_images_in_both_layouts_and_paths():
    noise = even_noise(5, 8)
    for last in (False, True):
        shape = (3, 70, 41, 5) if last else (3, 5, 70, 41)
        mean, variance = logits(shape, 0, last)
        expected = dense(mean, variance, noise)
        for result in (softmax_moments(mean, variance, noise), softmax_moments(mean.double(), variance, noise)):
            for value, truth in zip(result, expected, strict=True):
                torch.testing.assert_close(value.double(), truth, rtol=2e-5, atol=2e-6)


def test_far_logits_and_no_variance():
    mean = torch.tensor([[1e4, -1e4, 0.0], [3e4, 3e4, 3e4], [0.0, 50.0, -80.0]]).repeat(3000, 1)
    probabilities, entropies = softmax_moments(mean, torch.zeros_like(mean), even_noise(3, 32))
    torch.testing.assert_close(probabilities, mean.softmax(1))
    torch.testing.assert_close(entropies[:3], torch.tensor([0.0, 1.0986123, 0.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("which", "bad"), [(0, torch.nan), (0, torch.inf), (0, -torch.inf), (1, torch.nan), (1, torch.inf)]
)
def test_what_is_no_number_is_not_hidden(which, bad):
    moments = [torch.zeros(4000, 3), torch.ones(4000, 3)]
    moments[which][7, 2] = bad
    _, entropies = softmax_moments(*moments, even_noise(3, 32))
    assert not torch.isfinite(entropies[7])
    assert torch.isfinite(entropies).sum() == 3999


def test_gradients_take_the_path_of_torch():
    mean, variance = (part.requires_grad_() for part in logits((900, 8), 0))
    probabilities, entropies = softmax_moments(mean, variance, even_noise(8, 32))
    (probabilities[:, 0].sum() + entropies.sum()).backward()
    assert mean.grad.any()
    assert variance.grad.any()


@pytest.mark.parametrize(("deviation", "error"), [(0.1, 2e-5), (0.3, 1e-3), (1.0, 0.04)])
@pytest.mark.parametrize("classes", [3, 10, 16])
def test_the_error_of_32_points_is_as_stated(classes, deviation, error):
    """Against 24,576 quasi-random points and their mirror images in float64, whose own error is far smaller."""
    source = torch.Generator().manual_seed(classes)
    mean = 2 * torch.randn(40, classes, generator=source, dtype=torch.float64)
    variance = torch.full_like(mean, deviation**2)
    many = torch.cat(
        [
            torch.quasirandom.SobolEngine(classes, scramble=True, seed=seed).draw(2**13, dtype=torch.float64)
            for seed in range(3)
        ]
    )
    noise = torch.special.ndtri(many.clamp(1e-12, 1 - 1e-12))
    truth = dense(mean, variance, torch.cat([noise, -noise]))
    probabilities, entropies = softmax_moments(mean, variance, even_noise(classes, 32))
    assert (probabilities - truth[0]).abs().max() < error
    assert (entropies - truth[1]).abs().max() < 4 * error


@pytest.mark.parametrize("points", [1, 2, 7, 32, 33])
@pytest.mark.parametrize("columns", [1, 3, 16, 40])
def test_even_noise_has_no_odd_moments_and_unit_variances(points, columns):
    noise = even_noise(columns, points)
    assert noise.shape == (points, columns)
    assert noise.mean(0).abs().max() < 1e-12
    assert noise.pow(3).mean(0).abs().max() < 1e-9
    if points > 1:
        torch.testing.assert_close(noise.square().mean(0), torch.ones(columns, dtype=torch.float64))
    if points // 2 >= columns:
        torch.testing.assert_close(noise.mT @ noise / points, torch.eye(columns, dtype=torch.float64))


@given(
    draws=st.integers(1, 5),
    count=st.integers(1, 700),
    classes=st.integers(1, 6),
    coldness=st.floats(0.05, 20),
    seed=st.integers(0, 99),
)
def test_the_nll_of_a_mixture_is_that_of_float64(draws, count, classes, coldness, seed):
    source = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(draws, count, classes, generator=source)
    targets = torch.randint(classes, (count,), generator=source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "_LEAST", 1)
        patch.setattr(softmax, "_PIECE", 300)
        result = mixture_nll(logits, targets, coldness)
        strided = mixture_nll(logits.movedim(0, 1).contiguous().movedim(0, 1), targets, coldness)
    truth = Categorical().mixture_nll(logits.double() * coldness, targets).sum().item()
    assert result == pytest.approx(truth, rel=1e-5, abs=1e-5 * count)
    assert strided == result


def test_the_nll_of_few_or_other_logits_is_left_to_torch():
    assert mixture_nll(torch.zeros(2, 3, 4), torch.zeros(3).long(), 1.0) is None
    assert mixture_nll(torch.zeros(2, 2**16, 4).double(), torch.zeros(2**16).long(), 1.0) is None
