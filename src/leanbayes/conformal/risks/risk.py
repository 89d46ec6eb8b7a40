"""What a risk of masks is, and how to find one by its name."""

from abc import ABC, abstractmethod
from inspect import isabstract
from typing import ClassVar, Literal

from torch import Tensor

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError
from leanbayes.metrics.nested_masks import Masks

__all__ = ["RISKS", "Risk", "as_risk"]


class Risk(ABC):
    """A frozen dataclass with a ``name``: the loss of each case at each threshold, between 0 and 1.

    Attributes:
        as_masks_grow: whether the loss "falls" or "rises" as a mask takes in more pixels; None if it may do both.
    """

    name: ClassVar[str]
    as_masks_grow: ClassVar[Literal["falls", "rises"] | None]

    @abstractmethod
    def losses(self, masks: Masks) -> Tensor:
        """Return the losses (N, thresholds) in float64."""


def _name_of(value: object) -> str | None:
    if not (isinstance(value, type) and issubclass(value, Risk)) or isabstract(value):
        return None
    return None if value.__name__.startswith("_") else value.name


RISKS: Catalogue[type[Risk]] = Catalogue("risk", _name_of, package="leanbayes.conformal.risks", group="leanbayes.risks")
"""Every risk of masks by its name."""


def as_risk(value: Risk | str) -> Risk:
    """Return a risk; a name stands for the risk with its defaults.

    >>> as_risk("false_negatives")
    FalseNegatives()
    """
    if isinstance(value, Risk):
        return value
    if isinstance(value, str):
        return RISKS.named(value)()
    raise InputError(f'risk must be a name such as "false_negatives" or a value, got {value!r}')
