"""Find the prior of each random tensor, also from a mapping of name patterns to priors."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch.distributions import Distribution

from leanbayes.errors import InputError, SelectionError
from leanbayes.priors.fixed import FixedPrior
from leanbayes.priors.prior import Prior, PriorLike

__all__ = ["resolve_priors"]


def resolve_priors(prior: PriorLike, names: list[str]) -> dict[str, Prior]:
    """Find the prior of each named tensor.

    Args:
        prior: one prior for all tensors, or a mapping of patterns such as "fc.*" to priors. The first pattern that
            matches a name decides.
        names: the names of the random tensors.

    Returns:
        One prior for each name.

    Raises:
        SelectionError: if a pattern matches no name, or a name no pattern.

    >>> from leanbayes.priors import FittedPrior
    >>> from torch.distributions import Normal
    >>> resolve_priors({"fc.*": FittedPrior(), "*": Normal(0.0, 1.0)}, ["fc.weight"])
    {'fc.weight': FittedPrior()}
    """
    if not isinstance(prior, Mapping):
        return dict.fromkeys(names, _as_prior(prior))
    for pattern in prior:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SelectionError(
                f"the prior's pattern {pattern!r} matched none of {len(names)} random tensors; "
                f"the first are {names[:3]}"
            )
    priors: dict[str, Prior] = {}
    for name in names:
        match = next((law for pattern, law in prior.items() if fnmatchcase(name, pattern)), None)
        if match is None:
            raise SelectionError(f"no prior for {name!r} among the patterns {list(prior)}; add '*' as the last one")
        priors[name] = _as_prior(match)
    return priors


def _as_prior(law: Distribution | Prior) -> Prior:
    if isinstance(law, Prior):
        return law
    if isinstance(law, Distribution):
        return FixedPrior(law)
    raise InputError(f"a prior is a torch distribution, a leanbayes Prior or a mapping of globs to them, got {law!r}")
