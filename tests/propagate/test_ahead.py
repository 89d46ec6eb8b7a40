"""Noise that is drawn before a pass begins, and mirrored pairs of many small tensors in one operation."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import leanbayes as lb
from leanbayes.propagate.mirrored import Mirrored


def network() -> lb.Bayesian:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    return lb.Bayesian(model, propagate="mirrored", posterior=lb.posteriors.Normal(init_scale=0.1))


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pull(bnn: lb.Bayesian, x: Tensor) -> list[Tensor | None]:
    bnn(x, generator=seeded()).square().sum().backward()
    return [parameter.grad for parameter in bnn.parameters()]


@pytest.mark.parametrize("count", [8, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_together_are_those_of_single_tensors(
    count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an even batch, products and norms take both halves in one call; with an odd one they do not."""
    together = network().to(dtype)
    alone = copy.deepcopy(together)
    x = torch.randn(count, 3, 4, 4, dtype=dtype, generator=seeded(1))
    ours = pull(together, x)
    monkeypatch.setattr("leanbayes.propagate.ahead._SMALL", 0)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    for one, other in zip(ours, pull(alone, x), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    for one, other in zip(together.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_noise_is_that_of_a_draw_and_no_mode_changes_it() -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), propagate="mirrored").double()
    x = torch.randn(6, 6, dtype=torch.float64)
    whole = bnn(x, generator=seeded())
    drawn = bnn.draw(generator=seeded())
    torch.testing.assert_close(whole[:3], functional_call(bnn.model, drawn, (x[:3],)), rtol=1e-12, atol=1e-12)
    mirrored = {name: 2 * mean - drawn[name] for name, mean in bnn.model.named_parameters()}
    torch.testing.assert_close(whole[3:], functional_call(bnn.model, mirrored, (x[3:],)), rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(bnn(x, generator=seeded()), whole, rtol=1e-12, atol=1e-12)


def test_large_weights_have_the_noise_of_a_draw_too() -> None:
    pytest.importorskip("numba")
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 3)), propagate="mirrored")
    x = torch.randn(6, 400)
    whole = bnn(x, generator=seeded())
    drawn = bnn.draw(generator=seeded())
    torch.testing.assert_close(whole[:3], functional_call(bnn.model, drawn, (x[:3],)), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(bnn(x, generator=seeded()), whole, rtol=1e-4, atol=1e-5)


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.first(x)
        return result


def test_weights_that_the_loss_does_not_use_have_no_gradient() -> None:
    bnn = lb.Bayesian(_TwoHeads(), propagate="mirrored")
    bnn(torch.randn(4, 4)).sum().backward()
    for name, parameter in bnn.named_parameters():
        assert (parameter.grad is None) == ("second" in name)
    assert bnn.model.first.weight.grad.abs().sum() > 0


def test_frozen_means_or_scales_get_no_gradient() -> None:
    bnn = network()
    bnn.model[0].weight.requires_grad_(requires_grad=False)
    rho = dict(bnn.parts())["3.weight"].rho.requires_grad_(requires_grad=False)
    x = torch.randn(8, 3, 4, 4)
    bnn(x).square().sum().backward()
    assert bnn.model[0].weight.grad is None
    assert rho.grad is None
    assert dict(bnn.parts())["0.weight"].rho.grad.abs().sum() > 0
    assert bnn.model[3].weight.grad.abs().sum() > 0


def test_gradients_of_gradients() -> None:
    """The slope of the squared gradient along a direction, against finite differences in float64."""
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), propagate="mirrored").double()
    x, parameters = torch.randn(6, 6, dtype=torch.float64), list(bnn.parameters())

    def squared() -> Tensor:
        loss = bnn(x, generator=seeded()).square().sum()
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.stack([slope.square().sum() for slope in slopes]).sum()

    direction = [torch.randn_like(parameter) for parameter in parameters]
    slopes = torch.autograd.grad(squared(), parameters)
    ends, step = [], 1e-6
    for sign in (1, -2):
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=sign * step)
        ends.append(squared().item())
    change = sum((slope * part).sum() for slope, part in zip(slopes, direction, strict=True))
    assert float(change) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_a_checkpointed_part_has_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return result

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 3))  # a large weight and small ones
    ends = []
    for kind in (nn.Sequential, Checkpointed):
        bnn = lb.Bayesian(kind(*copy.deepcopy(plain)), propagate=Mirrored())
        ends.append(pull(bnn, torch.randn(6, 400, generator=seeded(1))))
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other)
