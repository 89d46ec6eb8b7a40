"""Means of functions of noise over M draws: their expectations, draws from their law, or sums over the draws."""

import math
from collections.abc import Iterator, Set

import torch
from torch import Tensor

from leanbayes.errors import InputError, UnknownName
from leanbayes.posteriors import Family, Statistics, Term

__all__ = ["accumulated", "can_sample", "draws", "expected", "gather", "standard_error"]

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
        how: "sampled" draws the means from their law, in a time that does not depend on M; "accumulated" sums over M
            draws; "auto" is "sampled" where the law is known exactly, and "accumulated" elsewhere.
    """
    if how not in ("auto", "sampled", "accumulated"):
        raise UnknownName.of("way to statistics", how, ["auto", "sampled", "accumulated"])
    if like.device.type == "meta":  # there is nothing to draw, and nothing to decide by
        return Statistics({term: torch.empty_like(like) for term in wanted}, like.new_empty(()))
    if how == "sampled" or (how == "auto" and family.sampled_exactly):
        statistics = family.sampled(wanted, samples, like, generator)
        if statistics is not None:
            return statistics
        if how == "sampled":
            terms = ", ".join(sorted(map(str, wanted)))
            raise InputError(
                f'the law of the means of {terms} is not known for the noise of {family}; use statistics="accumulated"'
            )
    return accumulated(family, wanted, samples, like, generator)


def can_sample(family: Family, wanted: Set[Term]) -> bool:
    """Return whether the law of these statistics is known."""
    return family.sampled(wanted, 2, torch.zeros(2), torch.Generator()) is not None


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
