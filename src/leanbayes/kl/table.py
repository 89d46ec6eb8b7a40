"""003's Table 1 made by the code: how each pair of posterior and prior is computed, and the size of its tuple."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.distributions import Distribution

from leanbayes.kl.pair import TABLE_1, Pair, resolve
from leanbayes.kl.statistics import can_sample
from leanbayes.posteriors import FAMILIES, Family

__all__ = ["Row", "as_markdown", "table"]


@dataclass(frozen=True)
class Row:
    """One pair.

    Attributes:
        posterior: the family's name.
        prior: the prior's name.
        method: "exact" (a tuple that does not depend on M), "taylor or streamed", or "infinite".
        variable: what the prior is one of: the weight w, or its positive part v.
        d_p: 003's d_P for E[log p]: the numbers that meet a parameter; None where that grows with M, as M times S.
        taylor_d_p: d_P of a Taylor polynomial of degree 3; None where there is none.
        statistics: "sampled" where their law is known, "approximate" where its first two moments are, "accumulated".
        reason: why a divergence is infinite.
    """

    posterior: str
    prior: str
    method: str
    variable: str
    d_p: int | None
    taylor_d_p: int | None
    statistics: str
    reason: str


def table(
    posteriors: Mapping[str, Family] | None = None, priors: Mapping[str, Distribution] | None = None
) -> list[Row]:
    """Every posterior with every prior; by default all families, and the priors of 003's Table 1.

    >>> rows = table(priors={"Normal": TABLE_1["Normal"]})
    >>> [(row.d_p, row.method) for row in rows if row.posterior in ("Normal", "Horseshoe")]
    [(5, 'exact'), (None, 'infinite')]
    """
    families = {name: make() for name, make in FAMILIES.items()} if posteriors is None else posteriors
    laws = TABLE_1 if priors is None else priors
    return [_row(name, other, resolve(family, law)) for name, family in families.items() for other, law in laws.items()]


def _row(posterior: str, prior: str, pair: Pair) -> Row:
    variable = "v" if pair.part else "w"
    if pair.infinite is not None:
        return Row(posterior, prior, "infinite", variable, None, None, "", pair.infinite)
    if pair.terms is None:
        heavy = not pair.family.has_moment(3) or getattr(pair.prior, "joint", False)
        method = "streamed" if heavy else "taylor or streamed"
        return Row(posterior, prior, method, variable, None, None if heavy else math.comb(5, 2) - 1, "accumulated", "")
    known = can_sample(pair.family, pair.wanted)
    exactly = "sampled" if pair.family.sampled_exactly else "approximate"
    return Row(posterior, prior, "exact", variable, _interactions(pair), None, exactly if known else "accumulated", "")


def _interactions(pair: Pair) -> int:
    """Theorem 1: one for each function of x = θξ. Theorem 2 and its corollaries: C(K+2, 2) − 1 for degree K in μ, σ."""
    assert pair.terms is not None
    orders = [term for term in pair.terms if term.order]
    if pair.part and not pair.family.relative:
        logs = [int(term.order) for term in orders if term.kind == "log"]
        powers = [term for term in orders if term.kind == "power"]
        degree = max(logs, default=0)
        return len(powers) + (1 if degree == 1 else math.comb(degree + 2, 2) - 1 if degree else 0)
    degree = int(max((term.order for term in orders), default=0))
    return math.comb(degree + 2, 2) - 1


def as_markdown(rows: Sequence[Row]) -> str:
    """The table with a row for each posterior and a column for each prior.

    A number is d_P of an exact tuple, with * where its statistics are drawn from their own law, so that the time does
    not depend on M either; "streamed" has no tuple, with T where there is a Taylor polynomial; ∞ has no divergence.
    """
    priors = list(dict.fromkeys(row.prior for row in rows))
    lines = ["| posterior | " + " | ".join(priors) + " |", "|---" * (len(priors) + 1) + "|"]
    for posterior in dict.fromkeys(row.posterior for row in rows):
        own = {row.prior: row for row in rows if row.posterior == posterior}
        lines.append(f"| {posterior} | " + " | ".join(_cell(own[prior]) for prior in priors) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    if row.method == "infinite":
        return "∞"
    if row.d_p is None:
        return "streamed" + (", T" if row.taylor_d_p is not None else "")
    return f"{row.d_p}{'*' if row.statistics in ('sampled', 'approximate') else ''}"
