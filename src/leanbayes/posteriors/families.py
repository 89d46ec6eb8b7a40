"""The catalogue of posterior families."""

from inspect import isabstract

from leanbayes._catalogue import Catalogue
from leanbayes.posteriors.family import Family

__all__ = ["FAMILIES"]


def _name_of(value: object) -> str | None:
    """The name of a family that can be built, and None for anything else."""
    is_family = isinstance(value, type) and issubclass(value, Family) and not isabstract(value)
    return value.__name__ if is_family and isinstance(value, type) else None


FAMILIES: Catalogue[type[Family]] = Catalogue(
    "posterior family", _name_of, package="leanbayes.posteriors", group="leanbayes.posteriors"
)
"""Every posterior family by the name of its class."""
