"""A family with given parameters as a torch distribution."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from leanbayes.errors import InputError
from leanbayes.posteriors.family import Family

__all__ = ["FamilyLaw"]


class FamilyLaw(Distribution):
    """The law of w = W(μ, σ, ξ), with the density, moments, entropy and draws of any `Family`.

    A joint family has one density for the whole tensor, so its batch shape is empty and the tensor is its event.

    Args:
        family: the family.
        loc: the means μ.
        scale: the scales σ.
        validate_args: whether to check the arguments, as for any torch distribution.
    """

    arg_constraints: dict[str, Any] = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012
    support = constraints.real
    has_rsample = True

    def __init__(self, family: Family, loc: Any, scale: Any, validate_args: bool | None = False) -> None:
        self.family = family
        self.loc: Tensor
        self.scale: Tensor
        self.loc, self.scale = torch.broadcast_tensors(torch.as_tensor(loc), torch.as_tensor(scale))
        empty = torch.Size()
        batch, event = (empty, self.loc.shape) if family.joint else (self.loc.shape, empty)
        super().__init__(batch, event, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean E[w]."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance Var(w)."""
        return self.family.variance(self.scale, self.loc)

    def entropy(self) -> Tensor:
        """Return H = −E[log q] for each coordinate, or for all together if the family is joint."""
        form = self.family.form(self.loc, self.scale, part=False)
        change = form.scale.log() if form.location is None or not form.exponential else form.scale.log() + form.location
        if self.family.joint:
            return change.sum() + self.family.noise_entropy(self.loc.numel())
        return change + self.family.noise_entropy(1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log q(w)."""
        if not self.family.joint:
            return self.family.log_density(self.loc, self.scale, value)
        if value.shape[value.dim() - self.loc.dim() :] != self.loc.shape:
            raise InputError(
                f"the density is of tensors of shape {tuple(self.loc.shape)}, got values of shape {tuple(value.shape)}"
            )
        draws = value.shape[: value.dim() - self.loc.dim()]
        return self.family.log_density(self.loc, self.scale, value.reshape(-1, *self.loc.shape)).view(draws)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw w; gradients reach the parameters."""
        shape = torch.Size(sample_shape)
        with torch.no_grad():
            noise = self.family.noise(self.scale, shape.numel(), None)
        return self.family.sample(self.loc, self.scale, noise).view(*shape, *self.loc.shape)
