"""The random tensors of a model, as an optimizer that owns the scales sees them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanbayes._sharding import gathered_entries, is_piece, local, local_entries, local_gradient, write_entries
from leanbayes.bayesian import Bayesian, Coordinates
from leanbayes.errors import InputError
from leanbayes.posteriors import Family
from leanbayes.posteriors.initial import inverse_softplus

__all__ = ["RandomTensor", "random_tensors"]


@dataclass(frozen=True)
class RandomTensor:
    """One random tensor: its means, its raw scales, and the gradients of both after a backward pass.

    The raw scales ρ give the scales σ = softplus(ρ). They have one number for each random coordinate, or one for each
    filter where the coordinates of a filter share their scale.

    Where the parameters are sharded, the methods work on the piece of the scales that this process holds, and on the
    means that belong to it. The single random coordinates of a partly random tensor are sharded otherwise than the
    tensor itself, so all processes must call these methods together.

    Attributes:
        name: the name of the parameter in the model.
        mean: the parameter that holds the means, random and not.
        parts: what randomness adds to the parameter: raw scales, positions, and what the prior remembers.
        family: the posterior family.
    """

    name: str
    mean: nn.Parameter
    parts: Coordinates
    family: Family

    @property
    def rho(self) -> nn.Parameter:
        """The parameter that holds the raw scales."""
        rho = self.parts._parameters["rho"]  # a step asks often, and `nn.Module` takes a microsecond to find it
        assert rho is not None
        return rho

    @property
    def index(self) -> Tensor | None:
        """The flat positions of the random coordinates in ``mean``, or None if all of them are random."""
        return self.parts.index

    def scale(self) -> Tensor:
        """Return σ, shaped as ``rho``, or the piece of it that this process holds."""
        return self.family.spread(local(self.rho.detach()))

    def random_mean(self) -> Tensor:
        """Return the means μ of the random coordinates."""
        return self._random(self.mean.detach())

    def mean_gradient(self) -> Tensor:
        """Return ∂loss/∂μ of the random coordinates; 0 where the loss does not depend on them."""
        if self.mean.grad is None:
            return self._random(torch.zeros_like(self.mean.detach()))
        return local_gradient(self.mean) if self.index is None else self._random(self.mean.grad)

    def scale_gradient(self) -> Tensor:
        """Return ∂loss/∂σ = (∂loss/∂ρ)/(dσ/dρ), shaped as ``rho``; 0 where the loss does not depend on it."""
        if self.rho.grad is None:
            return torch.zeros_like(local(self.rho))
        with torch.enable_grad():
            rho = local(self.rho.detach()).detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.family.spread(rho).sum(), rho)
        # A scale that underflows to 0 has slope 0; its gradient is then 0 and not 0/0.
        return torch.where(slope > 0, local_gradient(self.rho) / slope, torch.zeros_like(slope))

    @torch.no_grad()
    def set_scale(self, scale: Tensor) -> None:
        """Write ρ so that the scales become ``scale``, which is positive and shaped as ``rho``."""
        local(self.rho.detach()).copy_(inverse_softplus(scale))

    @torch.no_grad()
    def set_random_mean(self, means: Tensor) -> None:
        """Write the means of the random coordinates of a partly random tensor."""
        assert self.index is not None
        if is_piece(self.mean):
            whole = means
            if is_piece(self.rho):
                pieces = self.rho.detach().clone()
                local(pieces).copy_(means)
                whole = pieces.full_tensor()  # type: ignore[attr-defined]
            write_entries(self.mean.detach(), self.index, whole)
            return
        values, index = self.mean.detach(), self.index.long()
        if values.is_contiguous():
            values.view(-1).index_copy_(0, index, means)
        else:
            values.copy_(values.flatten().index_copy(0, index, means).view(values.shape))

    def _random(self, values: Tensor) -> Tensor:
        if self.index is None:
            piece: Tensor = local(values)
            return piece
        if is_piece(values):
            return local_entries(gathered_entries(values, self.index), self.rho)
        return values.flatten().index_select(0, self.index)


def random_tensors(model: nn.Module) -> list[RandomTensor]:
    """Return the random tensors of a `Bayesian` whose scales are trained.

    >>> [tensor.name for tensor in random_tensors(Bayesian(nn.Linear(2, 1)))]
    ['weight', 'bias']
    """
    if not isinstance(model, Bayesian):
        raise InputError(
            f"an optimizer that owns the scales needs a model with scales, got a {type(model).__name__}; "
            "wrap the model: leanbayes.Bayesian(model)"
        )
    probe = torch.tensor([0.01, 1.0], dtype=torch.float64)
    if not torch.allclose(model.posterior.spread(inverse_softplus(probe)), probe):
        raise InputError(
            f"{model.posterior} does not compute its scales by softplus, so an optimizer cannot write them; "
            "choose another posterior, such as leanbayes.posteriors.Normal()"
        )
    means = dict(model.model.named_parameters())
    return [
        RandomTensor(name, means[name], parts, model.posterior)
        for name, parts in model.parts()
        if parts.rho.requires_grad
    ]
