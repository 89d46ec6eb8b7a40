"""Positions that share a random filter: averages of them against draws of the filter."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.moments import MomentTensor
from tests.propagate.moments.cases import random


def layer(x: Tensor, w: Tensor, b: Tensor, **setting) -> MomentTensor:
    """A convolution of kernel 1 with plain input: Var of the mean over positions is known in closed form."""
    return F.conv1d(x, random(w, torch.full_like(w, 0.04), **setting), random(b, torch.full_like(b, 0.01), **setting))


@pytest.fixture
def parts() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(3, 4, 10, dtype=torch.float64) + torch.tensor([0.0, 1.0, -2.0])[:, None, None]
    return x, torch.randn(5, 4, 1, dtype=torch.float64), torch.randn(5, dtype=torch.float64)


def truth(x: Tensor) -> Tensor:
    """Var mean_p(Σ_c w_c x_cp + b) = Σ_c σ_w² x̄_c² + σ_b²."""
    return (0.04 * x.mean(2).square().sum(1) + 0.01)[:, None].expand(-1, 5)


AVERAGES = {
    "mean": lambda y: y.mean(2),
    "mean, axis from the end": lambda y: y.mean(-1),
    "sum": lambda y: y.sum(2) / 10,
    "adaptive": lambda y: F.adaptive_avg_pool1d(y, 1).squeeze(2),
    "average pooling": lambda y: F.avg_pool1d(y, 10).flatten(1),
    "after permuting": lambda y: y.permute(2, 0, 1).mean(0),
    "after folding and back": lambda y: y.reshape(3, 5, 2, 5).mean((2, 3)),
    "in two steps": lambda y: y.view(3, 5, 5, 2).mean(3).mean(2),
    "by a product": lambda y: y @ torch.full((10,), 0.1, dtype=torch.float64)[:, None],
    "after scaling": lambda y: (2 * y - 3).mean(2) / 2,
    "after padding and cropping": lambda y: F.pad(y, (2, 1))[..., 2:-1].mean(2),
    "after joining channels": lambda y: torch.cat([y, y], 1)[:, :5].mean(2),
    "after joining positions": lambda y: torch.cat([y[..., :4], y[..., 4:]], 2).mean(2),
}

AT_ONCE = ("mean", "mean, axis from the end", "sum", "after permuting", "after folding and back", "after scaling")


@pytest.mark.parametrize("name", AVERAGES)
def test_the_variance_of_an_average_over_positions_is_right(parts, name):
    """Exact for the mean over all positions at once; in parts, or by a product, within 12 % of the deviation."""
    y = layer(*parts)
    found = AVERAGES[name](y).variance.reshape(3, 5)
    torch.testing.assert_close(found.sqrt(), truth(parts[0]).sqrt(), rtol=1e-9 if name in AT_ONCE else 0.12, atol=0)


def test_independent_positions_average_out_and_fully_shared_ones_do_not(parts):
    x, w, b = parts
    alone = layer(x, w, b, positions="independent")
    assert alone.shared is None
    torch.testing.assert_close(alone.mean(2).variance, alone.variance.mean(2) / 10)
    one = layer(x, w, b, positions="shared")
    torch.testing.assert_close(one.mean(2).variance, one.variance.mean(2))
    split = layer(x, w, b).mean(2).variance
    assert (alone.mean(2).variance < split).all()
    assert (split < one.mean(2).variance).all()


def test_equal_positions_are_one(parts):
    _, w, b = parts
    x = torch.randn(3, 4, 1, dtype=torch.float64).expand(3, 4, 10)
    y = layer(x, w, b)
    torch.testing.assert_close(y.shared, torch.ones(3, 5, 1, dtype=torch.float64))
    torch.testing.assert_close(y.mean(2).variance, y.variance[..., 0])


def test_channels_are_independent(parts):
    y = layer(*parts)
    torch.testing.assert_close(y.mean(1).variance, y.variance.sum(1) / 25)
    flat = y.flatten(1)
    assert flat.shared is None


def test_input_noise_is_independent_between_positions():
    x = random(torch.randn(2, 3, 6).double(), torch.rand(2, 3, 6).double())
    y = F.conv1d(x, torch.randn(4, 3, 1).double())
    assert y.shared is None
    torch.testing.assert_close(y.mean(2).variance, y.variance.sum(2) / 36)


def test_tokens_share_the_weight_of_a_linear_layer():
    x, w = torch.randn(2, 7, 3).double() + 1, torch.randn(4, 3).double()
    for apply in (lambda r: F.linear(x, r), lambda r: x @ r.T):
        y = apply(random(w, torch.full_like(w, 0.09)))
        truth = (0.09 * x.mean(1).square().sum(1)).sqrt()[:, None].expand(-1, 4)
        torch.testing.assert_close(y.mean(1).variance.sqrt(), truth, rtol=0.12, atol=0)


def test_a_bias_is_shared_in_full():
    b = random(torch.zeros(3).double(), torch.tensor([1.0, 4.0, 9.0]).double())
    x = torch.randn(2, 5, 3).double()
    for y in (x + b, F.linear(x, torch.eye(3).double(), b)):
        torch.testing.assert_close(y.mean(1).variance, b.variance.expand(2, 3))


def test_two_layers_against_draws():
    """conv, relu, conv, global average: by 4,000 draws of the filters, within 12 %; the other two ways are worse."""
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    shapes = [(6, 3, 3), (6,), (4, 6, 3), (4,)]
    means = [torch.randn(s, dtype=torch.float64) * 0.4 for s in shapes]
    scale = 0.1

    def net(w1, b1, w2, b2):
        return F.conv1d(F.relu(F.conv1d(x, w1, b1, padding=1)), w2, b2, padding=1).mean(2)

    draws = torch.stack([net(*(m + scale * torch.randn_like(m) for m in means)) for _ in range(4_000)]).std(0)
    error = {}
    for positions in ("split", "shared", "independent"):
        found = net(*(random(m, torch.full_like(m, scale**2), positions=positions) for m in means))
        error[positions] = ((found.variance.sqrt() - draws) / draws).abs().mean().item()
    assert error["split"] < 0.12, error
    assert error["split"] < min(error["shared"], error["independent"]), error
