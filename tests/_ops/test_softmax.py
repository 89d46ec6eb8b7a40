"""Expectations of the softmax and its entropy against integrals in float64, and the NLL of the mean of draws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leanbayes._ops import softmax
from leanbayes._ops.softmax import mixture_nll, softmax_moments
from leanbayes.evaluation.cost.resources import peak_memory
from leanbayes.likelihood import Categorical
from leanbayes.likelihood.base import even_noise


def exact(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """E softmax(z) and E H(softmax(z)) for logits (N, C), in float64 and from integrals over one number.

    With L_c(t) = E exp(−t e^z_c) and 1/S = ∫ e^{−tS} dt, E p_c = −∫ L_c' Π L_j dt and E p_c² = ∫ t L_c" Π L_j dt over
    the other classes j. The entropy is E log S − Σ E p_c z_c. There E log S = ∫ (e^−t − Π L_j) dt/t over all classes,
    and E p_c z_c = m_c E p_c + v_c E p_c(1 − p_c) by Stein's identity. All integrals are over log t.
    """
    mean, variance = mean.double(), variance.double()
    mean = mean - mean.logsumexp(1, keepdim=True)
    nodes = torch.linspace(-8, 8, 65, dtype=torch.float64)
    weights = torch.exp(-nodes.square() / 2) / torch.exp(-nodes.square() / 2).sum()
    log_t, step = torch.arange(-40, 10, 0.125, dtype=torch.float64), 0.125
    results = []
    for m, v in zip(mean, variance, strict=True):
        factors = torch.exp(m[:, None] + v.sqrt()[:, None] * nodes)
        laplace = torch.empty(3, len(log_t), len(m), dtype=torch.float64)
        for row, t in enumerate(log_t.exp()):
            y = t * factors
            decay = torch.exp(-y) * weights
            laplace[:, row] = torch.stack([decay.sum(1), (y * decay).sum(1), (y * y * decay).sum(1)])
        logs = laplace[0].clamp_min(1e-300).log()
        others = torch.exp(logs.sum(1, keepdim=True) - logs)
        p, square = step * (laplace[1] * others).sum(0), step * (laplace[2] * others).sum(0)
        log_sum = step * (torch.exp(-log_t.exp()) - torch.exp(logs.sum(1))).sum()
        results.append((p, log_sum - (m * p + v * (p - square)).sum()))
    return torch.stack([p for p, _ in results]), torch.stack([h for _, h in results])


def logits(shape: tuple[int, ...], seed: int, last: bool = False, wide: float = 4.0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    mean, variance = wide * torch.randn(shape, generator=source), torch.rand(shape, generator=source) ** 4 * wide
    return (mean.movedim(-1, 1), variance.movedim(-1, 1)) if last else (mean, variance)


def assert_alike(result: tuple[Tensor, Tensor], truth: tuple[Tensor, Tensor]) -> None:
    for value, expected in zip(result, truth, strict=True):
        assert value.shape == expected.shape
        torch.testing.assert_close(value.double(), expected.double(), rtol=2e-5, atol=2e-6)


def test_the_integrals_are_those_of_many_draws():
    """The truth of this file, against a million draws."""
    mean, variance = logits((1, 4), 5, wide=1.5)
    p, entropy = exact(mean, variance)
    z = mean + variance.sqrt() * torch.randn(2**20, 4, generator=torch.Generator().manual_seed(0))
    drawn = z.double().softmax(1)
    entropies = torch.special.entr(drawn).sum(1)
    assert ((drawn.mean(0) - p[0]).abs() < 5 * drawn.std(0) / 2**10).all()
    assert abs(entropies.mean() - entropy[0]) < 5 * entropies.std() / 2**10
    torch.testing.assert_close(p.sum(1), torch.ones(1, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("deviation", "error"), [(0.1, 1e-5), (0.3, 3e-4), (1.0, 0.03), (2.0, 0.15)])
@pytest.mark.parametrize(("classes", "examples"), [(3, 24), (10, 16), (16, 12), (1000, 1)])
def test_the_errors_are_those_stated(classes, examples, deviation, error):
    source = torch.Generator().manual_seed(classes)
    mean = 3 * torch.rand(examples, 1, generator=source) * torch.randn(examples, classes, generator=source)
    variance = torch.full_like(mean, deviation**2)
    probabilities, entropies = softmax_moments(mean.double(), variance.double())
    p, entropy = exact(mean, variance)
    assert (probabilities - p).abs().max() < error
    assert (entropies - entropy).abs().max() < 2 * error


@pytest.mark.parametrize("deviation", [0.3, 1.0, 2.0])
def test_two_classes_are_the_logistic_function(deviation):
    """z_1 − log S_1 is then exactly Gaussian, so only the error of seven nodes remains."""
    mean = torch.linspace(-9, 9, 40, dtype=torch.float64)
    pair = torch.stack([torch.zeros_like(mean), mean], 1)
    probabilities, entropies = softmax_moments(pair, torch.full_like(pair, deviation**2 / 2))
    p, entropy = exact(pair, torch.full_like(pair, deviation**2 / 2))
    error = {0.3: 1e-6, 1.0: 3e-5, 2.0: 4e-3}[deviation]
    assert (probabilities - p).abs().max() < error
    assert (entropies - entropy).abs().max() < 2 * error


@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple), last=st.booleans(), seed=st.integers(0, 99)
)
def test_the_kernel_is_the_operation_of_torch_for_all_shapes_and_layouts(shape, last, seed):
    mean, variance = logits(shape, seed, last)
    assert_alike(softmax._swept(mean, variance), softmax._by_torch(mean.double(), variance.double()))


def test_large_images_in_both_layouts_and_paths():
    for last in (False, True):
        shape = (3, 70, 41, 5) if last else (3, 5, 70, 41)
        mean, variance = logits(shape, 0, last)
        truth = softmax._by_torch(mean.double(), variance.double())
        assert_alike(softmax_moments(mean, variance), truth)
        assert_alike(softmax._by_torch(mean, variance), truth)


@pytest.mark.parametrize("by", [softmax._swept, softmax._by_torch])
def test_far_logits_and_no_variance(by):
    mean = torch.tensor([[1e4, -1e4, 0.0], [3e4, 3e4, 3e4], [0.0, 50.0, -80.0]])
    probabilities, entropies = by(mean, torch.zeros_like(mean))
    torch.testing.assert_close(probabilities, mean.softmax(1), rtol=1e-5, atol=1e-20)
    torch.testing.assert_close(entropies, torch.tensor([0.0, 1.0986123, 0.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("by", [softmax._swept, softmax._by_torch])
def test_rare_classes_and_small_entropies_keep_their_digits(by):
    """Far from the largest class p_c = e^(z_c − z_0), whose expectation is closed: e^(m + v)."""
    mean = torch.tensor([[0.0, -30.0, -45.0, -60.0]])
    probabilities, entropies = by(mean, torch.full_like(mean, 0.09))
    rare = torch.exp(mean[0, 1:].double() + 0.09)
    torch.testing.assert_close(probabilities[0, 1:].double(), rare, rtol=1e-3, atol=0)
    small = rare[0] * (1 + 30 - 0.18)  # E p(1 − log p), for the second class
    assert entropies.item() == pytest.approx(small.item(), rel=1e-3)


@pytest.mark.parametrize("by", [softmax._swept, softmax._by_torch])
@pytest.mark.parametrize(
    ("which", "bad"), [(0, torch.nan), (0, torch.inf), (0, -torch.inf), (1, torch.nan), (1, torch.inf)]
)
def test_what_is_no_number_is_not_hidden(which, bad, by):
    moments = [torch.zeros(4000, 3), torch.ones(4000, 3)]
    moments[which][7, 2] = bad
    _, entropies = by(*moments)
    assert not torch.isfinite(entropies[7])
    assert torch.isfinite(entropies).sum() == 3999


def test_gradients_take_the_path_of_torch():
    mean, variance = (part.requires_grad_() for part in logits((9000, 8), 0))
    probabilities, entropies = softmax_moments(mean, variance)
    (probabilities[:, 0].sum() + entropies.sum()).backward()
    assert mean.grad.any()
    assert variance.grad.any()
    assert torch.isfinite(mean.grad).all()


def test_no_copy_for_each_node_or_class():
    """The memory is that of a few copies of the logits, whatever the number of classes and nodes is."""
    mean, variance = logits((2, 12, 96, 96), 0)
    softmax_moments(mean, variance)
    assert peak_memory(lambda: softmax_moments(mean, variance)) < 1.2 * 4 * mean.numel()


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
        patch.setattr(softmax, "_LEAST_OF_DRAWS", 1)
        patch.setattr(softmax, "_PIECE", 300)
        result = mixture_nll(logits, targets, coldness)
        strided = mixture_nll(logits.movedim(0, 1).contiguous().movedim(0, 1), targets, coldness)
    truth = Categorical().mixture_nll(logits.double() * coldness, targets).sum().item()
    assert result == pytest.approx(truth, rel=1e-5, abs=1e-5 * count)
    assert strided == result


def test_the_nll_of_few_or_other_logits_is_left_to_torch():
    assert mixture_nll(torch.zeros(2, 3, 4), torch.zeros(3).long(), 1.0) is None
    assert mixture_nll(torch.zeros(2, 2**16, 4).double(), torch.zeros(2**16).long(), 1.0) is None
