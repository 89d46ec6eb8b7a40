"""Prior distributions on the whole line that torch lacks and that posterior families bring along.

Nazarovs et al. 2021 list them in their Table 1.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from leanbayes.posteriors import FamilyLaw, GeneralisedError, Horseshoe, Logistic, Radial

__all__ = ["ErrorLaw", "HorseshoeLaw", "LogisticLaw", "RadialLaw"]


class LogisticLaw(FamilyLaw):
    """The logistic distribution, p(w) = e^−z/(s(1 + e^−z)²) with z = (w − m)/s.

    Args:
        loc: the mean m.
        scale: the scale s.
        validate_args: whether to check the arguments, as for any torch distribution.

    >>> LogisticLaw(0.0, 1.0).log_prob(torch.tensor(0.0))
    tensor(-1.3863)
    """

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Logistic(), loc, scale, validate_args)


class HorseshoeLaw(FamilyLaw):
    """The horseshoe, w = m + sλz with z ~ N(0, 1) and a half-Cauchy λ that is integrated out (Carvalho et al. 2010).

    Args:
        loc: the centre m.
        scale: the scale s.
        validate_args: whether to check the arguments, as for any torch distribution.

    >>> HorseshoeLaw(0.0, 1.0).log_prob(torch.tensor(1.0))
    tensor(-2.1439)
    """

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Horseshoe(), loc, scale, validate_args)


class ErrorLaw(FamilyLaw):
    """The generalised error law, p(w) = exp(−½|z|^{2/c})/(s 2^{c/2+1} Γ(1 + c/2)) with z = (w − m)/s.

    Args:
        loc: the mean m.
        scale: the scale s.
        shape: the shape c; 1 is Normal, 2 is Laplace.
        validate_args: whether to check the arguments, as for any torch distribution.

    >>> ErrorLaw(0.0, 1.0, shape=1.0).log_prob(torch.tensor(0.0))
    tensor(-0.9189)
    """

    def __init__(self, loc: Any, scale: Any, shape: Any, validate_args: bool | None = None) -> None:
        self.shape = torch.as_tensor(shape)
        super().__init__(GeneralisedError(shape=float(self.shape)), loc, scale, validate_args)

    arg_constraints = FamilyLaw.arg_constraints | {"shape": constraints.positive}


class RadialLaw(FamilyLaw):
    """The radial distribution of a whole tensor, w = m + s·r·z/‖z‖ (Farquhar et al. 2020).

    All coordinates of the tensor have one density together.

    Args:
        loc: the mean m.
        scale: the scale s.
        validate_args: whether to check the arguments, as for any torch distribution.

    >>> RadialLaw(0.0, 1.0).log_prob(torch.ones(3)).shape
    torch.Size([])
    """

    joint = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Radial(), loc, scale, validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p of a tensor, which counts as one point."""
        loc, scale = self.loc.expand(value.shape), self.scale.expand(value.shape)
        return self.family.log_density(loc, scale, value[None]).view(())
