"""Means of functions of noise over M draws: their expectations, draws from their law, or sums over the draws."""

import math
from collections.abc import Iterator, Set

import torch
from torch import Tensor

from leanbayes.errors import InputError, UnknownName
from leanbayes.posteriors import Family, Statistics, Term

__all__ = ["WAYS", "accumulated", "draws", "expected", "gather", "require_way", "standard_error", "way"]

WAYS = ("auto", "sampled", "integrated", "accumulated")
"""How the means over M draws are made; `gather` explains them."""

_CHUNK = 2**18  # numbers drawn at a time, where a single draw has fewer


def gather(
    family: Family, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None, how: str
) -> Statistics:
    """Return the statistics of M draws.

    Args:
        family: the family that the noise belongs to.
        wanted: the terms of the noise whose means are needed.
        samples: the number M of draws.
        like: the scales, which give shape, dtype and device.
        generator: the source of random numbers; None for the global one of torch.
        how: one of `WAYS`. "sampled" draws the means from their law, in a time that does not depend on M; "integrated"
            draws a part of the noise M times and integrates the rest out; "accumulated" sums over M draws; "auto" takes
            the first of these three that is exact for the family.
    """
    require_way(how)
    if like.device.type == "meta":  # there is nothing to draw, and nothing to decide by
        return Statistics({term: torch.empty_like(like) for term in wanted}, like.new_empty(()))
    if how == "sampled" or (how == "auto" and family.sampled_exactly):
        statistics = family.sampled(wanted, samples, like, generator)
        if statistics is not None:
            return statistics
        if how == "sampled":
            raise InputError(
                f"the law of the means of {_names(wanted)} is not known for the noise of {family}; use "
                'statistics="accumulated"'
            )
    if how in ("auto", "integrated"):
        statistics = family.integrated(wanted, samples, like, generator)
        if statistics is not None:
            return statistics
        if how == "integrated":
            raise InputError(
                f"no part of the noise of {family} gives the means of {_names(wanted)}; use "
                'statistics="accumulated", or leanbayes.Exact() where a closed form exists'
            )
    return accumulated(family, wanted, samples, like, generator)


def require_way(how: str) -> None:
    """Raise `UnknownName` unless this is a way to statistics."""
    if how not in WAYS:
        raise UnknownName.of("way to statistics", how, WAYS)


def way(family: Family, wanted: Set[Term], how: str) -> str:
    """Return the way that `gather` takes to these statistics: "sampled", "integrated" or "accumulated"."""
    little = (wanted, 2, torch.zeros(2), torch.Generator())
    exactly = how == "sampled" or (how == "auto" and family.sampled_exactly)
    if exactly and family.sampled(*little) is not None:
        return "sampled"
    if how in ("auto", "integrated") and family.integrated(*little) is not None:
        return "integrated"
    return "accumulated"


def _names(wanted: Set[Term]) -> str:
    return ", ".join(sorted(map(str, wanted)))


def accumulated(
    family: Family, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
) -> Statistics:
    """Sum over the draws in chunks, so that memory does not grow with M (Nazarovs et al. 2021, Theorems 1 and 2)."""
    with torch.no_grad():
        totals = {term: torch.zeros_like(like) for term in wanted}
        log_density = torch.zeros((), dtype=like.dtype, device=like.device)
        for noise in draws(family, samples, like, generator):
            log_density += family.log_noise(noise).sum()
            for term, total in totals.items():
                values = term(noise)
                assert isinstance(values, Tensor)
                total += values.sum(0)
        return Statistics({term: total / samples for term, total in totals.items()}, log_density / samples)


def expected(family: Family, wanted: Set[Term], count: int) -> Statistics:
    """Return the statistics of infinitely many draws."""
    return Statistics({term: family.expected(term, count) for term in wanted}, -family.noise_entropy(count))


def draws(family: Family, samples: int, like: Tensor, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Yield M draws of noise in chunks; the draws of a chunk lie along its first axis."""
    like = like.detach()
    chunk = max(1, _CHUNK // max(1, like.numel()))
    for start in range(0, samples, chunk):
        yield family.noise(like, min(chunk, samples - start), generator)


def standard_error(values: Tensor, sizes: list[int]) -> float:
    """Return the standard error of the mean of all draws, from the means of groups; NaN for a single group."""
    if len(sizes) < 2:
        return math.nan
    weights = torch.tensor(sizes, dtype=torch.float64)
    values = values.double()
    mean = (weights * values).sum() / weights.sum()
    variance = (weights * (values - mean).square()).sum() / (len(sizes) - 1)  # of one draw
    return float((variance / weights.sum()).sqrt())
