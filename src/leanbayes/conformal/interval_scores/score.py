"""What a score of numbers is, and how to find one by its name."""

from abc import ABC, abstractmethod
from inspect import isabstract
from typing import ClassVar

from torch import Tensor

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError
from leanbayes.prediction import Prediction

__all__ = ["INTERVAL_SCORES", "IntervalScore", "as_interval_score"]


class IntervalScore(ABC):
    """A frozen dataclass with a ``name``: a first interval for each prediction, and the unit in which it is widened.

    The scores of a target y are (lower − y)/unit and (y − upper)/unit: by how many units each end of the first interval
    must move out until y lies inside; a negative score lets it move in. The first interval may be a point.

    Attributes:
        needs_samples: whether the score needs what each draw predicts.
    """

    name: ClassVar[str]
    needs_samples: ClassVar[bool] = False

    @abstractmethod
    def interval(self, prediction: Prediction, level: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the lower and upper ends of the first interval and the unit, each of the shape of the targets.

        Args:
            prediction: its mean and variances are in float64.
            level: the coverage that the interval will have in the end.
        """


def _name_of(value: object) -> str | None:
    if not (isinstance(value, type) and issubclass(value, IntervalScore)) or isabstract(value):
        return None
    return None if value.__name__.startswith("_") else value.name


INTERVAL_SCORES: Catalogue[type[IntervalScore]] = Catalogue(
    "score of numbers", _name_of, package="leanbayes.conformal.interval_scores", group="leanbayes.interval_scores"
)
"""Every score of numbers by its name."""


def as_interval_score(value: IntervalScore | str) -> IntervalScore:
    """Return a score; a name stands for the score with its defaults.

    >>> as_interval_score("absolute")
    Absolute()
    """
    if isinstance(value, IntervalScore):
        return value
    if isinstance(value, str):
        return INTERVAL_SCORES.named(value)()
    raise InputError(f'score must be a name such as "scaled" or a value such as Scaled(), got {value!r}')
