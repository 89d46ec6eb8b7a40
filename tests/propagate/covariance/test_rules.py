"""Every rule: against dense algebra where it is linear, against integrals and many draws where it is not."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jacrev, vmap

from leanbayes.propagate.covariance import CovarianceTensor, Setting, full
from leanbayes.propagate.covariance.gaussian import Rectified
from leanbayes.propagate.moments.gaussian import rectified
from tests.oracles import covariance_within_standard_errors, mean_within_standard_errors
from tests.propagate.covariance.cases import (
    ALL,
    FIRST_ORDER,
    KINKS,
    LAYERS,
    LINEAR,
    MAXIMA,
    SMOOTH,
    Case,
    propagate,
    random_weight,
)

every = pytest.mark.parametrize("case", ALL, ids=str)
DRAWS = 200_000


def dense(blocks: Tensor) -> list[Tensor]:
    return [torch.block_diag(*example) for example in blocks]


def draws_of(case: Case, mean: Tensor, blocks: Tensor, n: int) -> Tensor:
    """The operation on n draws of one example."""
    root = torch.linalg.cholesky(dense(blocks)[0])
    z = mean + (torch.randn(n, mean[0].numel(), dtype=mean.dtype) @ root.T).view(n, *mean.shape[1:])
    return case.run(z)


@every
def test_without_covariance_it_is_the_plain_operation_bit_for_bit(case: Case) -> None:
    for mean, blocks in (case.inputs(), case.full_inputs()):
        weights, deviations = case.parameters()
        sure = [torch.zeros_like(d) for d in deviations]
        result, covariance = propagate(case, mean, torch.zeros_like(blocks), *weights, *sure)
        plain = case.run(mean.clone(), *weights)
        assert torch.equal(result, plain)
        assert covariance.shape == (2, plain[0].numel(), plain[0].numel())
        assert not covariance.any()


def algebra(case: Case, mean: Tensor, blocks: Tensor, weights: list[Tensor], deviations: list[Tensor]) -> Tensor:
    """J_x Σ J_xᵀ + Σ_w σ_w² (J_w J_wᵀ + M_w Σ M_wᵀ) with M_w = ∂²y/∂w∂x, of an operation linear in x and in each w."""
    result = []
    for row, sigma in zip(mean, dense(blocks), strict=True):

        def run(x: Tensor, *w: Tensor) -> Tensor:
            return case.run(x.unsqueeze(0), *w).flatten()

        slope = jacrev(run)(row, *weights).flatten(1)
        total = slope @ sigma @ slope.T
        for place, deviation in enumerate(deviations):
            by_weight = jacrev(run, place + 1)(row, *weights).flatten(1)
            total = total + (by_weight * deviation.flatten().square()) @ by_weight.T
            mixed = jacrev(jacrev(run), place + 1)(row, *weights).reshape(len(slope), row.numel(), -1)
            for each, spread in zip(mixed.unbind(-1), deviation.flatten(), strict=True):
                total = total + spread**2 * each @ sigma @ each.T
        result.append(total)
    return torch.stack(result)


@pytest.mark.parametrize("case", [*LINEAR, *LAYERS], ids=str)
def test_a_linear_rule_agrees_with_dense_algebra(case: Case) -> None:
    weights, deviations = case.parameters()
    for mean, blocks in (case.inputs(), case.full_inputs()):
        result, covariance = propagate(case, mean, blocks, *weights, *deviations)
        torch.testing.assert_close(result, case.run(mean, *weights), rtol=1e-12, atol=1e-12)
        expected = algebra(case, mean, blocks, weights, deviations)
        torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in LAYERS if not case.name.startswith(("x", "w"))], ids=str)
def test_a_layer_of_a_plain_input_agrees_with_dense_algebra(case: Case) -> None:
    mean, blocks = case.inputs()
    weights, deviations = case.parameters()
    result = case.run(mean, *map(random_weight, weights, deviations))
    assert isinstance(result, CovarianceTensor)
    expected = algebra(case, mean, torch.zeros_like(blocks), weights, deviations)
    torch.testing.assert_close(full(result), expected, rtol=1e-10, atol=1e-12)


def test_a_convolution_agrees_with_draws_of_input_and_weights() -> None:
    case = next(case for case in LAYERS if case.name == "conv2d")
    mean, blocks = case.inputs(1)
    weights, deviations = case.parameters()
    result, covariance = propagate(case, mean, blocks, *weights, *deviations)
    n = 60_000
    root = torch.linalg.cholesky(dense(blocks)[0])
    x = mean + (torch.randn(n, 1, root.shape[0], dtype=mean.dtype) @ root.T).view(n, *mean.shape)
    w = [m + s * torch.randn(n, *m.shape, dtype=m.dtype) for m, s in zip(weights, deviations, strict=True)]
    drawn = vmap(case.run)(x, *w)
    mean_within_standard_errors(drawn, result, errors=4.5)
    covariance_within_standard_errors(drawn, result, covariance[0], errors=4.5)


def test_a_pair_of_rectified_numbers_agrees_with_an_integral() -> None:
    """E[r r'] = ∫ z E[r' | z] over z > 0, for all correlations and for means on both sides of the kink."""
    places = torch.tensor([-4.0, -1.5, -0.4, 0.0, 0.4, 1.1, 3.0], dtype=torch.float64)
    for rho in (-1.0, -0.999, -0.6, 0.0, 0.5, 0.95, 0.9999, 1.0):
        same = torch.full((1, 7, 7), rho, dtype=torch.float64)
        ones = torch.ones(1, 7, dtype=torch.float64)
        result = Rectified.apply(same, places.view(1, 7), ones, ones)[0].fill_diagonal_(0)
        z = torch.linspace(0, 14, 4_001, dtype=torch.float64)
        density = torch.exp(-(z[:, None] - places).square() / 2) / math.sqrt(2 * math.pi)
        given = places[None, :, None] + rho * (z[None, None] - places[:, None, None])
        left = torch.full_like(given, max(1 - rho**2, 0.0))
        after = torch.relu(given) + rectified(given, left)[0]  # (7, 7, points)
        product = torch.trapezoid(z * density.T[:, None] * after, z)
        mean = torch.relu(places) + rectified(places, torch.ones_like(places))[0]
        truth = (product - mean[:, None] * mean).fill_diagonal_(0)  # which is exact anyway
        assert (result - truth).abs().max() < 3e-5, rho


@pytest.mark.parametrize("case", KINKS, ids=str)
def test_a_rule_with_a_kink_agrees_with_many_draws(case: Case) -> None:
    mean, blocks = case.full_inputs(1)
    result, covariance = propagate(case, mean, blocks)
    drawn = draws_of(case, mean, blocks, DRAWS)
    mean_within_standard_errors(drawn, result[0], errors=4.5)
    covariance_within_standard_errors(drawn, result, covariance[0], errors=4.5)


@pytest.mark.parametrize("case", [*SMOOTH, *FIRST_ORDER], ids=str)
def test_another_rule_agrees_up_to_its_stated_error(case: Case) -> None:
    mean, blocks = case.full_inputs(1)
    result, covariance = propagate(case, mean, blocks)
    n = 200_000
    drawn = draws_of(case, mean, blocks, n).flatten(1)
    centred = drawn - drawn.mean(0)
    truth = centred.T @ centred / n
    error = ((centred.square().T @ centred.square() / n - truth.square()) / n).sqrt()
    spread = truth.diagonal().sqrt()
    assert ((result.flatten() - drawn.mean(0)).abs() <= (case.off + 5 / math.sqrt(n)) * spread).all()
    assert ((covariance[0] - truth).abs() <= case.off * spread[:, None] * spread + 5 * error).all()


@pytest.mark.parametrize("function", [torch.tanh, F.gelu, torch.sigmoid])
def test_the_series_is_nearer_to_the_truth_than_its_first_term(function) -> None:
    mean = torch.tensor([[0.4, 0.6, -0.3]], dtype=torch.float64)
    blocks = torch.full((1, 1, 3, 3), 0.9, dtype=torch.float64)
    blocks[0, 0].fill_diagonal_(1.0)
    case = Case("", function, (3,))
    _, covariance = propagate(case, mean, blocks)
    drawn = draws_of(case, mean, blocks, DRAWS)
    truth = torch.cov(drawn.T)
    z = torch.randn(DRAWS, 1, dtype=torch.float64)
    slope = ((function(mean + z) - function(mean)) * z).mean(0)
    first = slope[:, None] * slope * 0.9
    off = ~torch.eye(3, dtype=torch.bool)
    assert (covariance[0] - truth)[off].abs().max() < 0.4 * (first - truth)[off].abs().max()


@pytest.mark.parametrize("case", MAXIMA, ids=str)
def test_the_largest_is_that_with_the_largest_mean(case: Case) -> None:
    for mean, blocks in (case.inputs(), case.full_inputs()):
        result, covariance = propagate(case, mean, blocks)
        for row, sigma, value, spread in zip(mean, dense(blocks), result, covariance, strict=True):
            places = [int((row.flatten() == each).nonzero()) for each in value.flatten()]
            assert torch.equal(spread, sigma[places][:, places])


@every
def test_what_comes_out_is_symmetric_and_not_negative(case: Case) -> None:
    weights, deviations = case.parameters()
    for mean, blocks in (case.inputs(), case.full_inputs()):
        _, covariance = propagate(case, mean, blocks, *weights, *deviations)
        size = covariance.abs().max()
        assert (covariance - covariance.mT).abs().max() <= 1e-12 * size
        assert torch.linalg.eigvalsh(covariance).min() >= -1e-5 * size


@every
def test_blocks_are_the_same_matrix(case: Case) -> None:
    mean, blocks = case.inputs()
    weights, deviations = case.parameters()
    whole = torch.stack(dense(blocks)).unsqueeze(1)
    one = propagate(case, mean, blocks, *weights, *deviations)
    other = propagate(case, mean, whole, *weights, *deviations)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@every
def test_gradients(case: Case) -> None:
    mean, blocks = case.full_inputs(1)
    weights, deviations = case.parameters()
    deviations = [d + 0.1 for d in deviations]
    leaves = [tensor.requires_grad_() for tensor in (mean, blocks, *weights, *deviations)]

    def run(mean: Tensor, blocks: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        return propagate(case, mean, (blocks + blocks.mT) / 2, *others)

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@every
def test_permuting_the_batch_permutes_the_moments(case: Case) -> None:
    mean, blocks = case.inputs(3)
    weights, deviations = case.parameters()
    order = [2, 0, 1]
    result = propagate(case, mean, blocks, *weights, *deviations)
    moved = propagate(case, mean[order], blocks[order], *weights, *deviations)
    for one, other in zip(result, moved, strict=True):
        torch.testing.assert_close(one[order], other, rtol=1e-12, atol=1e-13)


def test_gradients_of_relu_are_finite_where_numbers_are_one_or_none() -> None:
    """Correlation 1 between different entries, and entries without variance."""
    mean = torch.tensor([[0.3, 0.3, -0.2, 5.0]], requires_grad=True)
    factor = torch.tensor([[1.0, 1.0, 0.5, 0.0]], requires_grad=True)
    blocks = (factor.unsqueeze(-1) * factor.unsqueeze(-2)).unsqueeze(1)
    y = F.relu(CovarianceTensor.of(mean, blocks, Setting()))
    (y.expected.sum() + y.blocks.sum()).backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(factor.grad).all()
    truth = rectified(torch.tensor(0.3), torch.tensor(1.0))[1]
    torch.testing.assert_close(y.blocks[0, 0, :2, :2], truth.expand(2, 2), rtol=1e-4, atol=0)


@pytest.mark.parametrize("variance", [0.0, 1e-38, 1e-12, 1e6])
def test_extremes_are_finite(variance: float) -> None:
    mean = torch.tensor([[-1e30, -100.0, 0.0, 100.0, 1e30]])
    for function in (F.relu, F.leaky_relu, torch.tanh, torch.sigmoid):
        y = function(CovarianceTensor.of(mean, torch.full((1, 1, 5, 5), variance), Setting()))
        assert torch.isfinite(y.expected).all(), function
        assert torch.isfinite(y.blocks).all(), function


def test_softmax_of_a_common_shift_is_sure() -> None:
    x = CovarianceTensor.of(torch.randn(2, 3), torch.ones(2, 1, 3, 3), Setting())
    assert F.softmax(x, 1).blocks.abs().max() < 1e-6
    assert F.log_softmax(x, 1).blocks.abs().max() < 1e-6
