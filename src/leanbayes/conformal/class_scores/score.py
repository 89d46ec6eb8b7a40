"""What a score of classes is, and how to find one by its name."""

from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from inspect import isabstract
from typing import Any, ClassVar

from torch import Tensor

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError

__all__ = ["CLASS_SCORES", "ClassScore", "as_class_score", "describe_score", "restore_score"]


class ClassScore(ABC):
    """A frozen dataclass with a ``name`` that scores every class of every input: high scores conform badly.

    A set holds the classes whose score is at most a threshold. The catalogue finds a score because its module lies in
    this package. A running program registers its own with ``@CLASS_SCORES.register``, and a package through an entry
    point of the group "leanbayes.class_scores".

    Attributes:
        needs_noise: whether the score is randomised. One that is not is given zeros.
    """

    name: ClassVar[str]
    needs_noise: ClassVar[bool] = True

    @abstractmethod
    def scores(self, probabilities: Tensor, noise: Tensor) -> Tensor:
        """Return the score of each class.

        Args:
            probabilities: (N, classes) in float64.
            noise: (N,) numbers that are uniform between 0 and 1, for scores that are randomised; zeros for others.
        """


def _name_of(value: object) -> str | None:
    if not (isinstance(value, type) and issubclass(value, ClassScore)) or isabstract(value):
        return None
    return None if value.__name__.startswith("_") else value.name


CLASS_SCORES: Catalogue[type[ClassScore]] = Catalogue(
    "score of classes", _name_of, package="leanbayes.conformal.class_scores", group="leanbayes.class_scores"
)
"""Every score of classes by its name."""


def as_class_score(value: ClassScore | str) -> ClassScore:
    """Return a score; a name stands for the score with its defaults.

    >>> as_class_score("lac")
    LAC()
    """
    if isinstance(value, ClassScore):
        return value
    if isinstance(value, str):
        return CLASS_SCORES.named(value)()
    raise InputError(f'score must be a name such as "aps" or a value such as APS(), got {value!r}')


def describe_score(score: Any, catalogue: Catalogue[Any]) -> dict[str, Any]:
    """Describe a score by its name and fields, for a file."""
    if catalogue.get(score.name) is not type(score):
        raise InputError(
            f"{score!r} is in no catalogue, so a file could not bring it back; register its class with the catalogue's "
            "method register"
        )
    names = [field.name for field in fields(score)] if is_dataclass(score) else []
    return {"name": score.name, "fields": {name: getattr(score, name) for name in names}}


def restore_score(data: dict[str, Any], catalogue: Catalogue[Any]) -> Any:
    """Return the score that `describe_score` described."""
    return catalogue.named(data["name"])(**data["fields"])
