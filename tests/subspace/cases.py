"""Sparse networks, and the dense ones that they must equal."""

from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.subspace import Subspace, dense_name, scatters

KINDS = ("linear", "conv1d", "conv2d", "conv3d")


class Fixed(Subspace):
    """The positions that it is given."""

    def __init__(self, selection: dict[str, Tensor | None]) -> None:
        self.selection = selection

    def select(self, model: nn.Module) -> dict[str, Tensor | None]:
        return self.selection

    def choose(self, pool: Any) -> Any:
        raise AssertionError(pool)


def network(kind: str, bias: bool = True, norm: bool = False) -> nn.Sequential:
    """Stride, padding, "same", dilation and groups, in float64."""
    if kind == "linear":
        layers = [nn.Linear(5, 9, bias), *([nn.BatchNorm1d(9)] if norm else []), nn.ReLU(), nn.Linear(9, 7, bias)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(7, 3, bias)).double()
    rank = int(kind[4])
    conv: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    batch_norm: Any = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1]
    layers = [conv(2, 4, 3, stride=2, padding=1, bias=bias), *([batch_norm(4)] if norm else []), nn.ReLU()]
    layers += [conv(4, 6, 3, padding="same", dilation=2, groups=2, bias=bias), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6 * 2**rank, 3, bias)).double()


def batch(kind: str, size: int = 5) -> tuple[Tensor, Tensor]:
    shape = (5,) if kind == "linear" else (2, *[4] * int(kind[4]))
    return torch.randn(size, *shape, dtype=torch.float64), torch.randint(3, (size,))


def moved(bnn: lb.Bayesian) -> lb.Bayesian:
    """Away from where it starts: every scale its own, buffers too."""
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for _, parts in bnn.parts():
            parts.rho.add_(1.5)
    return bnn


def selection_of(bnn: lb.Bayesian) -> dict[str, Tensor | None]:
    """The random coordinates, by name and position in the dense model."""
    own, result = scatters(bnn.model), {}
    for name, parts in bnn.parts():
        index = parts.index
        if name in own:
            index = own[name].index if index is None else own[name].index[index.long()]
        result[dense_name(name)] = index
    return result


def dense_twin(bnn: lb.Bayesian) -> lb.Bayesian:
    """The dense network of the same means and scales: `RandomWeight` with the positions of what is stored."""
    made = lb.Bayesian(
        bnn.densify(),
        subspace=Fixed(selection_of(bnn)),
        posterior=bnn.posterior,
        prior=bnn.prior,
        propagate=bnn.propagate,
        predict_by=bnn.predict_by,
        kl=bnn.kl_estimator,
    )
    with torch.no_grad():
        for (_, ours), (_, theirs) in zip(bnn.parts(), made.parts(), strict=True):
            theirs.rho.copy_(ours.rho)
    return made.train(bnn.training)


def close(a: Tensor, b: Tensor) -> None:
    assert a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def assert_same_gradients(ours: lb.Bayesian, theirs: lb.Bayesian) -> None:
    """Of the stored values those that the dense weight has there, of all else the same."""
    own, dense = scatters(ours.model), dict(theirs.model.named_parameters())
    for name, parameter in ours.model.named_parameters():
        other = dense[dense_name(name)].grad
        assert parameter.grad is not None
        assert other is not None
        close(parameter.grad, other.flatten()[own[name].index.long()] if name in own else other)
    for (_, a), (_, b) in zip(ours.parts(), theirs.parts(), strict=True):
        assert a.rho.grad is not None
        assert b.rho.grad is not None
        close(a.rho.grad, b.rho.grad)
