"""One variance for each filter: the box sum against the dense operation, and every propagation with it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.propagate.linear_ops import LINEAR_OPS
from leanbayes.propagate.shared_variance import variance_through
from tests.oracles import moments_within_standard_errors
from tests.propagate.cases import CASES, Case

LINEAR = [case for case in CASES if case.operation in LINEAR_OPS]


def shared(case: Case) -> Tensor:
    """One variance for each output filter."""
    outputs = 1 if "transpose" in case.operation.__name__ else 0
    size = [1] * len(case.weight)
    size[outputs] = case.weight[outputs]
    return torch.rand(size, dtype=torch.float64) + 0.1


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("case", LINEAR, ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_is_the_dense_operation(case: Case, with_bias: bool) -> None:
    second, variance = case.x().square(), shared(case).requires_grad_()
    second.requires_grad_()
    bias = torch.rand(case.bias, dtype=torch.float64).requires_grad_() if with_bias else None
    dense = case.operation(second, variance.expand(case.weight), bias, **case.options)
    result = variance_through(case.operation, second, variance, torch.Size(case.weight), bias, **case.options)
    torch.testing.assert_close(result, dense, rtol=1e-12, atol=1e-13)
    weights, leaves = torch.randn_like(dense), [leaf for leaf in (second, variance, bias) if leaf is not None]
    for ours, truth in zip(*(torch.autograd.grad((y * weights).sum(), leaves) for y in (result, dense)), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-12)


def test_arguments_by_position() -> None:
    x, variance = torch.rand(2, 4, 6, 6), torch.rand(6, 1, 1, 1)
    arguments = (2, 1, 2, 2)
    result = variance_through(F.conv2d, x, variance, torch.Size((6, 2, 3, 3)), None, *arguments)
    torch.testing.assert_close(result, F.conv2d(x, variance.expand(6, 2, 3, 3), None, *arguments))
    variance = torch.rand(1, 3, 1, 1)
    arguments = (2, 1, 1, 2)
    result = variance_through(F.conv_transpose2d, x, variance, torch.Size((4, 3, 3, 3)), None, *arguments)
    torch.testing.assert_close(result, F.conv_transpose2d(x, variance.expand(4, 3, 3, 3), None, *arguments))


@pytest.mark.parametrize("size", [(4, 3, 3, 3), (1, 3, 1, 1), (4, 1, 3, 3), (1, 1, 1, 1)])
def test_other_ways_to_share_are_right_too(size: tuple[int, ...]) -> None:
    """Along the inputs, along the positions, or all in one: no box, but no mistake."""
    x, variance = torch.rand(2, 3, 5, 5), torch.rand(size)
    result = variance_through(F.conv2d, x, variance, torch.Size((4, 3, 3, 3)), None)
    torch.testing.assert_close(result, F.conv2d(x, variance.expand(4, 3, 3, 3)))


def test_channels_stay_innermost_if_they_are() -> None:
    x = torch.rand(2, 4, 5, 5).contiguous(memory_format=torch.channels_last)
    for groups in (1, 2):
        shape = torch.Size((6, 4 // groups, 3, 3))
        result = variance_through(F.conv2d, x, torch.rand(6, 1, 1, 1), shape, None, groups=groups)
        assert result.is_contiguous(memory_format=torch.channels_last)
    assert variance_through(F.conv2d, x.contiguous(), torch.rand(6, 1, 1, 1), shape, None, groups=2).is_contiguous()


def test_half_precision_holds_the_product_where_it_does_not_hold_the_sum() -> None:
    x = torch.full((1, 100, 4), 900.0, dtype=torch.float16)  # sums to 270,000 over three positions
    result = variance_through(F.conv1d, x, torch.full((2, 1, 1), 1e-2).half(), torch.Size((2, 100, 3)), None)
    assert result.dtype == torch.float16
    torch.testing.assert_close(result, torch.full((1, 2, 2), 2700.0).half(), rtol=5e-3, atol=0)


class Net(nn.Sequential):
    """A convolution, a transposed one and a linear layer, all with biases."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3, stride=2, groups=2),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 3, 2),
            nn.Flatten(),
            nn.Linear(27, 2),
        )


def pair() -> tuple[lb.Bayesian, lb.Bayesian]:
    """The same law, with one scale a filter and with one a weight."""
    torch.manual_seed(3)
    model = Net().double()
    by_filter = lb.Bayesian(model, posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho(-1.0, 0.5), per="filter"))
    by_weight = lb.Bayesian(model)
    with torch.no_grad():
        for (_, few), (_, many) in zip(by_filter.parts(), by_weight.parts(), strict=True):
            many.rho.copy_(few.rho.expand_as(many.rho))
    return by_filter, by_weight


X = torch.randn(5, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "flipout"])
def test_the_same_noise_gives_the_same_outputs(propagate: str) -> None:
    models = pair()
    result, truth = (
        m.call(m.weights(), (X,), {}, propagate=propagate, generator=torch.Generator().manual_seed(1)) for m in models
    )
    torch.testing.assert_close(result, truth, rtol=1e-11, atol=1e-12)
    weights = torch.randn_like(truth)
    for out, model in zip((result, truth), models, strict=True):
        (out * weights).sum().backward()
        model.means = [p.grad.clone() for p in model.model.parameters()]
        model.model.zero_grad()
    for (_, few), (_, many) in zip(*(m.parts() for m in models), strict=True):
        torch.testing.assert_close(few.rho.grad, many.rho.grad.sum_to_size(few.rho.shape), rtol=1e-9, atol=1e-11)
    for ours, theirs in zip(*(m.means for m in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_moments_are_the_same() -> None:
    by_filter, by_weight = pair()
    for positions in ("split", "independent", "shared"):
        result, truth = (
            lb.moments(model, X, by=lb.propagate.Moments(rank=0, positions=positions, kernels="exact"))
            for model in (by_filter, by_weight)
        )
        for ours, theirs in zip(result, truth, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    result[1].sum().backward()
    assert all(parts.rho.grad.abs().min() > 0 for _, parts in by_filter.parts())


def test_draws_have_the_shared_scale_and_noise_of_their_own() -> None:
    by_filter, _ = pair()
    draws = by_filter.draw(20_000, generator=torch.Generator().manual_seed(2))
    for name, weight in by_filter.weights().items():
        values = draws[name].detach()
        moments_within_standard_errors(values, weight.mean.detach(), weight.variance().detach())
    two = draws["0.weight"].detach()[:, 0].flatten(1)[:, :2]  # of one filter
    assert abs(torch.corrcoef(two.T)[0, 1].item()) < 5 / math.sqrt(20_000)


def test_predictions_agree_whichever_way_they_are_drawn() -> None:
    by_filter, _ = pair()
    one, other = (
        lb.predict(by_filter, X, samples=6, method=m, generator=torch.Generator().manual_seed(0))
        for m in ("loop", "vmap")
    )
    torch.testing.assert_close(one.mean, other.mean)
