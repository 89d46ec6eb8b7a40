"""Verdicts from numbers: paired differences over seeds (or data sets) with Student's intervals, and tables of means.

A difference is told by its interval, never by its mean alone. So there are three answers: the interval lies where the
claim puts it (holds), where the claim does not (does not hold), or on both sides: so many seeds cannot tell, which is
"not testable here". What is too small to matter is stated as a margin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from leanbayes.errors import InputError
from leanbayes.lab.statistics import Interval, interval
from leanbayes.metrics import metric_named
from leanbayes_papers.base import Answer, Claim, Results, Verdict

__all__ = ["MARGINS", "all_of", "beats", "gains", "matches", "summary", "within"]

MARGINS: Mapping[str, float] = {
    "accuracy": 0.005, "auc": 0.01, "brier": 0.01, "nll": 0.02, "ece": 0.01, "entropy": 0.02, "rmse": 0.02,
    "dice": 0.01, "auroc": 0.01,
}  # fmt: skip
"""Differences that nobody would choose a method by; of NLL and entropy in nats, of RMSE in deviations of the target."""

Direction = Literal["high", "low"]


def gains(
    results: Results, measure: str, a: str, b: str, data: str | None = None, direction: Direction | None = None
) -> dict[tuple[str, int], float]:
    """By how much ``a`` is better than ``b``, for each data set and seed that both have."""
    first, second = (results.column(measure, method, data) for method in (a, b))
    high = (direction or metric_named(measure).better) == "high"
    return {key: (first[key] - second[key]) * (1 if high else -1) for key in sorted(first) if key in second}


def beats(
    results: Results,
    claim: Claim,
    measure: str,
    a: str,
    b: str,
    *,
    margin: float | None = None,
    tests: int = 1,
    data: str | None = None,
    direction: Direction | None = None,
) -> Verdict:
    """Whether ``a`` is better than ``b``: its gain above 0 holds; below the margin, which is no gain, does not.

    ``tests`` is how many such questions the claim puts together: their intervals cover at once (Bonferroni).
    """
    return _judged(results, claim, measure, a, b, 0.0, margin, tests, data, direction)


def matches(
    results: Results,
    claim: Claim,
    measure: str,
    a: str,
    b: str,
    *,
    margin: float | None = None,
    tests: int = 1,
    data: str | None = None,
    direction: Direction | None = None,
) -> Verdict:
    """Whether ``a`` is no worse than ``b`` by more than the margin: its gain above −margin holds, below does not."""
    small = _margin(measure) if margin is None else margin
    return _judged(results, claim, measure, a, b, -small, -small, tests, data, direction)


def within(claim: Claim, values: Sequence[float], low: float, high: float, what: str) -> Verdict:
    """Whether a number is from ``low`` to ``high``: its whole interval inside holds, outside does not."""
    if len(values) < 2:
        return Verdict(claim, "not testable here", f"{what}: {len(values)} runs have no interval")
    found = interval(values)
    assert found.low is not None
    assert found.high is not None
    inside, outside = low <= found.low and found.high <= high, found.high < low or found.low > high
    answer: Answer = "holds" if inside else "does not hold" if outside else "not testable here"
    return Verdict(claim, answer, f"{what} {_written(found)}, which should be from {low:g} to {high:g}")


def all_of(claim: Claim, parts: Sequence[Verdict]) -> Verdict:
    """A claim that holds where all its parts do, and does not where one does not."""
    if not parts:
        raise InputError("a verdict needs at least one part")
    answers = {part.answer for part in parts}
    order: tuple[Answer, ...] = ("does not hold", "not testable here", "holds")
    answer = next(each for each in order if each in answers)
    return Verdict(
        claim, answer, "; ".join(part.why if len(answers) == 1 else f"{part.answer}: {part.why}" for part in parts)
    )


def summary(results: Results, measures: Sequence[str], data: str | None = None) -> list[dict[str, Any]]:
    """A row for each method: its name, and mean and 95 % interval over seeds of each measure that it has.

    >>> from leanbayes_papers.base import Job
    >>> found = [(Job("a", "vi", "mnist", seed), {"metrics": {"nll": 0.5 + seed}}) for seed in range(2)]
    >>> summary(Results(found), ["nll"])[0]["nll"]["mean"]
    1.0
    """
    rows = []
    for method in results.methods():
        cells: dict[str, Any] = {"method": method}
        for measure in measures:
            values = list(results.column(measure, method, data).values())
            if values:
                cells[measure] = asdict(interval(values))
        rows.append(cells)
    return rows


def _judged(
    results: Results,
    claim: Claim,
    measure: str,
    a: str,
    b: str,
    holds_above: float,
    fails_below: float | None,
    tests: int,
    data: str | None,
    direction: Direction | None,
) -> Verdict:
    pairs = gains(results, measure, a, b, data, direction)
    fails_below = _margin(measure) if fails_below is None else fails_below
    what = f"{measure}: {a} against {b}"
    if len(pairs) < 2:
        return Verdict(claim, "not testable here", f"{what}: {len(pairs)} pairs of runs have no interval")
    found = interval(_by_data(pairs), 1 - 0.05 / tests)
    assert found.low is not None
    assert found.high is not None
    answer: Answer = "not testable here"
    if found.low > holds_above:
        answer = "holds"
    elif found.high < fails_below:
        answer = "does not hold"
    means = [_mean([results.column(measure, method, data)[key] for key in pairs]) for method in (a, b)]
    told = f"{what}: {means[0]:.4g} and {means[1]:.4g}, better by {_written(found)}"
    if answer == "not testable here":
        told += f", which does not tell ({found.n} pairs; the margin is {abs(fails_below):g})"
    return Verdict(claim, answer, told)


def _by_data(pairs: Mapping[tuple[str, int], float]) -> list[float]:
    """The pairs; with several data sets one number for each, as their splits are not independent."""
    names = list(dict.fromkeys(name for name, _ in pairs))
    if len(names) == 1:
        return list(pairs.values())
    return [_mean([value for (name, _), value in pairs.items() if name == each]) for each in names]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _margin(measure: str) -> float:
    base = measure.partition("@")[0].rpartition("/")[2]
    if base not in MARGINS:
        raise InputError(f"say how small a difference in {measure} does not matter: margin=...")
    return MARGINS[base]


def _written(found: Interval) -> str:
    return f"{found.mean:.3g} ({100 * found.level:.4g} % interval {found.low:.3g} to {found.high:.3g}, n = {found.n})"
