"""∂loss/∂σ against autograd in float64, and scales that are written."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.optim import random_tensors


def scale_gradients(bnn: lb.Bayesian, loss) -> dict[str, torch.Tensor]:
    """∂loss/∂σ by autograd: the same draw with σ itself as the leaf, through a posterior whose ρ is σ."""

    class Direct(type(bnn.posterior)):  # type: ignore[misc]
        def spread(self, rho):
            return rho

    raw, family = {}, bnn.posterior
    for name, parts in bnn.parts():
        raw[name] = parts.rho.data
        parts.rho.data = family.spread(parts.rho.detach())
        parts.rho.grad = None
    bnn.posterior = Direct(**vars(family))
    loss().backward()
    gradients = {name: parts.rho.grad for name, parts in bnn.parts()}
    bnn.posterior = family
    for name, parts in bnn.parts():
        parts.rho.data, parts.rho.grad = raw[name], None
    return gradients


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "flipout", "moments"])
@pytest.mark.parametrize(
    ("subspace", "per"),
    [(lb.everything(), "weight"), (lb.everything(), "filter"), (lb.random_k(0.5), "weight")],
    ids=["everything", "filters", "part"],
)
def test_the_gradient_of_the_scales_is_that_of_autograd(propagate: str, subspace, per: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    family = lb.posteriors.Normal(0.3, per=per)
    bnn = lb.Bayesian(model, subspace=subspace, propagate=propagate, posterior=family)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randint(2, (6,))

    def loss() -> torch.Tensor:
        noise = torch.Generator().manual_seed(2)
        return lb.elbo(bnn, x, y, lb.Categorical(), n_data=6, with_kl=False, generator=noise).loss

    expected = scale_gradients(bnn, loss)
    bnn.zero_grad()
    loss().backward()
    tensors = random_tensors(bnn)
    assert [tensor.name for tensor in tensors] == list(expected)
    for tensor in tensors:
        torch.testing.assert_close(tensor.scale_gradient(), expected[tensor.name], rtol=1e-9, atol=1e-12)
        gradient = tensor.mean.grad if tensor.index is None else tensor.mean.grad.flatten()[tensor.index]
        assert torch.equal(tensor.mean_gradient(), gradient)
        assert tensor.random_mean().numel() == gradient.numel()


def test_price_theorem_turns_it_into_the_curvature() -> None:
    """For a quadratic loss E[(∂loss/∂σ)/σ] is its second derivative, here 2·mean(x²)."""
    model = nn.Linear(1, 1, bias=False).double()
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.2))
    x = torch.randn(8, 1, dtype=torch.float64)
    (tensor,) = random_tensors(bnn)
    estimates = []
    for seed in range(4000):
        bnn.zero_grad()
        bnn(x, generator=torch.Generator().manual_seed(seed)).square().mean().backward()
        estimates.append((tensor.scale_gradient() / tensor.scale()).item())
    values = torch.tensor(estimates)
    error = values.std() / len(values) ** 0.5
    assert abs(values.mean() - 2 * x.square().mean()) < 4 * error


def test_scales_can_be_written_and_gradients_may_be_missing() -> None:
    bnn = lb.Bayesian(nn.Linear(3, 2).double(), subspace=lb.layers("weight"))
    (tensor,) = random_tensors(bnn)
    assert torch.equal(tensor.scale_gradient(), torch.zeros(2, 3, dtype=torch.float64))
    assert torch.equal(tensor.mean_gradient(), torch.zeros(2, 3, dtype=torch.float64))
    scale = torch.logspace(-8, 2, 6, dtype=torch.float64).view(2, 3)
    tensor.set_scale(scale)
    torch.testing.assert_close(tensor.scale(), scale, rtol=1e-10, atol=0)
    tensor.rho.grad = torch.ones_like(tensor.rho)
    with torch.no_grad():
        tensor.rho.fill_(-2000.0)
    assert torch.equal(tensor.scale_gradient(), torch.zeros(2, 3, dtype=torch.float64))
    tensor.rho.requires_grad_(False)
    assert random_tensors(bnn) == []


def test_what_has_no_scales_is_named() -> None:
    with pytest.raises(lb.errors.InputError, match=r"got a Linear; wrap the model"):
        random_tensors(nn.Linear(2, 2))

    class Squared(lb.posteriors.Normal):
        def spread(self, rho):
            return rho.square()

    with pytest.raises(lb.errors.InputError, match="softplus"):
        random_tensors(lb.Bayesian(nn.Linear(2, 2), posterior=Squared()))
