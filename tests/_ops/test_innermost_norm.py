"""Batch norm of rows against torch's own batch norm in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leanbayes._ops import innermost_norm
from leanbayes._ops.innermost_norm import batch_norm, kernel_fits, rows_of
from leanbayes.subspace.storage import keep_layout


def norm_of_rows(rows, gain, offset, eps):
    normed, mean, variance = batch_norm(rows.t(), gain, offset, eps)
    return normed.t(), mean, variance


def leaves(channels, count, level=0.0):
    torch.manual_seed(0)
    rows = (torch.randn(channels, count) * 3 + level).requires_grad_()
    return rows, torch.randn(channels).requires_grad_(), torch.randn(channels).requires_grad_()


def in_float64(rows, gain, offset, eps):
    copies = [value.detach().double().requires_grad_() for value in (rows, gain, offset)]
    normed = F.batch_norm(copies[0].unsqueeze(0), None, None, *copies[1:], True, 0.0, eps).squeeze(0)
    return normed, copies


@pytest.mark.parametrize(("channels", "count"), [(1, 2), (3, 37), (16, 1024), (7, 5000), (2, 300_000)])
@pytest.mark.parametrize("level", [0.0, 1000.0])
def test_values_and_gradients_equal_those_of_torch(channels, count, level):
    inputs = leaves(channels, count, level)
    normed, mean, variance = norm_of_rows(*inputs, 1e-5)
    expected, copies = in_float64(*inputs, 1e-5)
    digits = 1e-5 * (1 + level)  # x − μ loses as many digits as μ is larger than the spread
    torch.testing.assert_close(normed.double(), expected, atol=digits, rtol=1e-5)
    rows = copies[0].detach()
    torch.testing.assert_close(mean, rows.mean(1), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(variance, rows.var(1, correction=0), atol=1e-6, rtol=2e-5)
    weights = torch.randn_like(normed)
    results = torch.autograd.grad(normed, inputs, weights)
    truths = torch.autograd.grad(expected, copies, weights.double())
    for result, truth in zip(results, truths, strict=True):
        torch.testing.assert_close(result.double(), truth, atol=digits * count**0.5, rtol=1e-4)


def test_the_gradient_can_be_differentiated():
    inputs = leaves(3, 40)
    expected, copies = in_float64(*inputs, 1e-5)

    def second(normed, given):
        (slope,) = torch.autograd.grad(normed.pow(3).sum(), given[0], create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), given)

    results = second(norm_of_rows(*inputs, 1e-5)[0], inputs)
    for result, truth in zip(results, second(expected, copies), strict=True):
        torch.testing.assert_close(result.double(), truth, atol=1e-2, rtol=1e-3)


def test_no_result_depends_on_the_number_of_threads():
    inputs, threads = leaves(64, 20_000), torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            normed = norm_of_rows(*inputs, 1e-5)[0]
            results.append((normed, *torch.autograd.grad(normed.pow(2).sum(), inputs)))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_nan_and_infinity_stay_in_their_channel():
    rows, gain, offset = (value.detach().clone() for value in leaves(3, 4000))
    rows[0, 7], rows[1, 9] = torch.nan, torch.inf
    normed = norm_of_rows(rows, gain, offset, 1e-5)[0]
    assert normed[0].isnan().all()
    assert normed[1].isnan().any()
    assert normed[2].isfinite().all()


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
@pytest.mark.parametrize("tracks", [True, False])
def test_a_module_tracks_statistics_as_torch_does(momentum, tracks, monkeypatch):
    torch.manual_seed(1)
    ours = nn.Sequential(nn.BatchNorm2d(16, momentum=momentum, track_running_stats=tracks))
    theirs = nn.BatchNorm2d(16, momentum=momentum, track_running_stats=tracks).double()
    keep_layout(ours)
    calls = []
    monkeypatch.setattr(innermost_norm, "batch_norm", lambda *a: calls.append(1) or batch_norm(*a))
    for _ in range(3):
        x = torch.randn(64, 16, 5, 5) * 2 + 1
        torch.testing.assert_close(ours(x).double(), theirs(x.double()), atol=1e-5, rtol=1e-5)
    assert len(calls) == 3
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[f"0.{name}"].double(), value.double(), atol=1e-5, rtol=1e-5)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x).double(), theirs(x.double()), atol=1e-5, rtol=1e-5)


def test_unusual_tensors_take_the_way_of_torch():
    rows, gain, offset = leaves(4, 4000)
    assert kernel_fits(rows.detach(), gain, offset)
    assert not kernel_fits(rows.detach().double(), gain, offset)
    assert not kernel_fits(rows.detach().t().contiguous().t(), gain, offset)
    assert not kernel_fits(rows.detach(), None, None)
    assert not kernel_fits(rows.detach(), gain.double(), offset)
    assert not kernel_fits(rows.detach()[:, :100], gain, offset)


def test_the_result_has_the_strides_of_the_input_and_may_be_rectified_in_place():
    x = torch.randn(16, 5, 5, 64).movedim(-1, 0).requires_grad_()
    normed = batch_norm(x, torch.ones(16), torch.zeros(16), 1e-5)[0]
    assert normed.stride() == x.stride()
    assert rows_of(normed).is_contiguous()
    assert F.relu_(normed).grad_fn.name() == "ReluBackward0"


@pytest.mark.parametrize("count", [2, 37, 5000])
def test_the_output_is_computed_again_with_the_same_bits(count):
    rows, gain, offset = leaves(33, count, 3.0)
    normed = batch_norm(rows.t(), gain, offset, 1e-5)[0]
    again, plus = innermost_norm._NormAgain.of(normed.grad_fn), torch.randn(33, count).t()
    assert torch.equal(again.value(), normed)
    assert torch.equal(again.rectified(None), F.relu(normed))
    assert torch.equal(again.rectified(plus), F.relu(plus + normed))


def test_what_is_no_number_is_computed_again():
    rows, gain, offset = (value.detach().clone() for value in leaves(3, 4000))
    rows[0, 7] = torch.nan
    normed = batch_norm(rows.requires_grad_().t(), gain, offset, 1e-5)[0]
    again = innermost_norm._NormAgain.of(normed.grad_fn).rectified(None)
    assert torch.equal(again.isnan(), F.relu(normed).isnan())
    assert again.isnan().any()
