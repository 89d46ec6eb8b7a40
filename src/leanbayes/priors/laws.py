"""The catalogue of prior distributions that torch lacks."""

from torch.distributions import Distribution

from leanbayes._catalogue import Catalogue

__all__ = ["LAWS"]


def _name_of(value: object) -> str | None:
    """The name of a class of distributions, and None for anything else."""
    return value.__name__ if isinstance(value, type) and issubclass(value, Distribution) else None


LAWS: Catalogue[type[Distribution]] = Catalogue(
    "prior law", _name_of, package="leanbayes.priors", group="leanbayes.priors"
)
"""Every distribution that a saved prior may name, beside those of torch."""
