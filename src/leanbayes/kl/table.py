"""A table of how each pair of posterior and prior is computed, in the manner of Nazarovs et al. 2021, Table 1."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.distributions import Distribution

from leanbayes.kl.pair import Pair, priors_of_table_1, resolve
from leanbayes.kl.statistics import way
from leanbayes.posteriors import FAMILIES, Family

__all__ = ["Row", "as_markdown", "table"]


@dataclass(frozen=True)
class Row:
    """How one pair of posterior and prior is computed.

    Attributes:
        posterior: the name of the family.
        prior: the name of the prior.
        method: "exact" (a fixed number of statistics, whatever M is), "streamed", "taylor or streamed", or "infinite".
        variable: what the prior describes: the weight "w", or its positive part "v".
        d_p: the paper's d_P for E[log p], which counts the numbers that meet a parameter; None where it grows with M.
        taylor_d_p: d_P of a Taylor polynomial of degree 3; None where there is none.
        statistics: "sampled" where their law is known, "integrated" where a part of the noise is integrated out, and
            "accumulated" elsewhere. Only the last takes a time that grows with M.
        reason: why the divergence is infinite, if it is.
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
    """Return a row for each posterior and prior.

    Args:
        posteriors: families by name; by default all of them.
        priors: priors by name; by default those of Nazarovs et al. 2021, Table 1.

    >>> rows = table(priors={"Normal": priors_of_table_1()["Normal"]})
    >>> [(row.posterior, row.d_p, row.method) for row in rows if row.posterior in ("Normal", "Horseshoe")]
    [('Horseshoe', None, 'infinite'), ('Normal', 5, 'exact')]
    """
    families = {name: make() for name, make in FAMILIES.items()} if posteriors is None else posteriors
    laws = priors_of_table_1() if priors is None else priors
    return [_row(name, other, resolve(family, law)) for name, family in families.items() for other, law in laws.items()]


def _row(posterior: str, prior: str, pair: Pair) -> Row:
    variable = "v" if pair.part else "w"
    if pair.infinite is not None:
        return Row(posterior, prior, "infinite", variable, None, None, "", pair.infinite)
    if pair.terms is None:
        heavy = not pair.family.has_moment(3) or getattr(pair.prior, "joint", False)
        method = "streamed" if heavy else "taylor or streamed"
        return Row(posterior, prior, method, variable, None, None if heavy else math.comb(5, 2) - 1, "accumulated", "")
    statistics = way(pair.family, pair.wanted, "auto")
    return Row(posterior, prior, "exact", variable, _interactions(pair), None, statistics, "")


def _interactions(pair: Pair) -> int:
    """Return d_P of Nazarovs et al. 2021.

    In Theorem 1 it is one for each function of x = θξ. In Theorem 2 and its corollaries it is C(K+2, 2) − 1 for a
    polynomial of degree K in μ and σ.
    """
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
    """Return the table in Markdown, with a row for each posterior and a column for each prior.

    A number is d_P of an "exact" pair. A star says that its statistics are drawn from their law, or that a part of the
    noise is integrated out, so that not even the time depends on M. "streamed" marks the other pairs, with T where a
    Taylor polynomial is possible. ∞ marks an infinite divergence.
    """
    priors = list(dict.fromkeys(row.prior for row in rows))
    lines = ["| posterior | " + " | ".join(priors) + " |", "|---" * (len(priors) + 1) + "|"]
    for posterior in dict.fromkeys(row.posterior for row in rows):
        by_prior = {row.prior: row for row in rows if row.posterior == posterior}
        lines.append(f"| {posterior} | " + " | ".join(_cell(by_prior[prior]) for prior in priors) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    if row.method == "infinite":
        return "∞"
    if row.d_p is None:
        return "streamed" + (", T" if row.taylor_d_p is not None else "")
    return f"{row.d_p}{'*' if row.statistics in ('sampled', 'integrated') else ''}"
