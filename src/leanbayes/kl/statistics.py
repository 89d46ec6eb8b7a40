"""Means of functions of noise over M draws: expected, drawn from their own law, or accumulated draw by draw."""

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
    """The statistics of ``samples`` draws for coordinates shaped as ``like``.

    Args:
        family: whose noise it is.
        wanted: terms of the noise.
        samples: M.
        like: the scales.
        generator: for the draws.
        how: "sampled" from their law, in a time that does not depend on M; "accumulated" over M draws; or "auto", which
            is "sampled" where the law is known exactly.
    """
    if how not in ("auto", "sampled", "accumulated"):
        raise UnknownName.of("way to statistics", how, ["auto", "sampled", "accumulated"])
    if like.device.type == "meta":  # there is nothing to draw, and nothing to decide by
        return Statistics({term: torch.empty_like(like) for term in wanted}, like.new_empty(()))
    if how == "sampled" or (how == "auto" and family.sampled_exactly):
        found = family.sampled(wanted, samples, like, generator)
        if found is not None:
            return found
        if how == "sampled":
            terms = ", ".join(sorted(map(str, wanted)))
            raise InputError(
                f'the law of the means of {terms} is not known for the noise of {family}; use statistics="accumulated"'
            )
    return accumulated(family, wanted, samples, like, generator)


def can_sample(family: Family, wanted: Set[Term]) -> bool:
    """Whether the law of these statistics is known."""
    return family.sampled(wanted, 2, torch.zeros(2), torch.Generator()) is not None


def accumulated(
    family: Family, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
) -> Statistics:
    """Draw by draw, in chunks: memory does not grow with M (003, Theorems 1 and 2)."""
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
    """What the statistics of infinitely many draws are."""
    return Statistics({term: family.expected(term, count) for term in wanted}, -family.noise_entropy(count))


def draws(family: Family, samples: int, like: Tensor, generator: torch.Generator | None) -> Iterator[Tensor]:
    """M draws of noise, some at a time along a first axis."""
    like = like.detach()
    chunk = max(1, _CHUNK // max(1, like.numel()))
    for start in range(0, samples, chunk):
        yield family.noise(like, min(chunk, samples - start), generator)


def standard_error(values: Tensor, sizes: list[int]) -> float:
    """Of the mean of all draws, from the means of groups of draws; NaN for a single group."""
    if len(sizes) < 2:
        return math.nan
    weights = torch.tensor(sizes, dtype=torch.float64)
    values = values.double()
    mean = (weights * values).sum() / weights.sum()
    variance = (weights * (values - mean).square()).sum() / (len(sizes) - 1)  # of one draw
    return float((variance / weights.sum()).sqrt())
