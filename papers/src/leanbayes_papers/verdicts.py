"""Verdicts from numbers: paired differences over seeds (or data sets) with Student's intervals, and tables of means.

A verdict rests on the interval of a difference, never on its mean alone. So there are three answers. The claim holds
if the whole interval lies where the claim puts it. The claim does not hold if the whole interval lies elsewhere.
Otherwise the seeds are too few to decide, and the claim is "not testable here". A margin states which differences are
too small to matter.

No verdict rests on random weights whose scales did not move in training: see `judged`. Nor does one rest on an average
over two data sets, whose interval would say nothing; a study of few data sets judges each of them by itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from leanbayes.errors import InputError
from leanbayes.lab.statistics import Interval, interval
from leanbayes.metrics import metric_named
from leanbayes_papers.scales import still
from leanbayes_papers.study import Answer, Claim, Outcome, Results, Size, Study, Verdict

__all__ = ["MARGINS", "all_of", "beats", "exceeds", "gains", "judged", "matches", "ratios", "summary", "within"]

MARGINS: Mapping[str, float] = {
    "accuracy": 0.005, "auc": 0.01, "brier": 0.01, "nll": 0.02, "ece": 0.01, "entropy": 0.02, "rmse": 0.02,
    "dice": 0.01, "auroc": 0.01,
}  # fmt: skip
"""Differences too small to choose a method by. NLL and entropy are in nats, RMSE in deviations of the target."""

Direction = Literal["high", "low"]
_FEWEST_SETS = 3  # of which an average has an interval


def judged(study: Study, results: Results, size: Size) -> Outcome:
    """Return what a study concludes, without a verdict that rests on scales that did not move.

    A verdict that changes when the runs with still scales are left out rests on them. Its answer is then "not testable
    here". Tables and figures show all runs.

    Args:
        study: the study.
        results: the results of its jobs; see `leanbayes_papers.scales` for their record of scales.
        size: the size at which the jobs ran.
    """
    outcome = study.conclude(results, size)
    motionless = list(dict.fromkeys(job.method for job, result in results.runs if still(result)))
    if not motionless or not study.rests_on_scales:
        return outcome
    moving = Results([(job, result) for job, result in results.runs if not still(result)])
    without = {verdict.claim: verdict for verdict in study.conclude(moving, size).verdicts}
    why = f"the scales did not move in training: {', '.join(motionless)}"
    verdicts = [
        verdict if without.get(verdict.claim) == verdict else Verdict(verdict.claim, "not testable here", why)
        for verdict in outcome.verdicts
    ]
    return replace(outcome, verdicts=verdicts)


def gains(
    results: Results, measure: str, a: str, b: str, data: str | None = None, direction: Direction | None = None
) -> dict[tuple[str, int], float]:
    """Return by how much method ``a`` is better than ``b``, for each data set and seed that both have."""
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
    """Judge whether method ``a`` is better than ``b``.

    The claim holds if the interval of the gain lies above 0, and does not hold if it lies below the margin.

    Args:
        results: the runs of both methods.
        claim: the claim that the verdict answers.
        measure: the name of the metric.
        a: the method that should be better.
        b: the method to compare with.
        margin: the largest gain that does not matter; `MARGINS` by default.
        tests: how many comparisons the claim joins. Their intervals are widened so that all cover at once (Bonferroni).
        data: the only data set to look at; None takes all.
        direction: whether "high" or "low" values are better; None asks the metric.
    """
    return _compared(results, claim, measure, a, b, 0.0, margin, tests, data, direction)


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
    """Judge whether method ``a`` is worse than ``b`` by no more than the margin; arguments as for `beats`.

    The claim holds if the interval of the gain lies above −margin, and does not hold if it lies below.
    """
    small = _margin(measure) if margin is None else margin
    return _compared(results, claim, measure, a, b, -small, -small, tests, data, direction)


def exceeds(
    results: Results,
    claim: Claim,
    method: str,
    large: str,
    small: str,
    *,
    margin: float,
    tests: int = 1,
    data: str | None = None,
) -> Verdict:
    """Judge whether the measure ``large`` of a method is above its measure ``small``, paired by run; see `beats`."""
    measures_as_methods = Results(
        [
            (replace(job, method=name), {"metrics": {method: result["metrics"][name]}})
            for job, result in results.runs
            if job.method == method
            for name in (large, small)
            if name in result["metrics"]
        ]
    )
    return beats(
        measures_as_methods, claim, method, large, small, margin=margin, tests=tests, data=data, direction="high"
    )


def ratios(results: Results, measure: str, a: str, b: str, data: str | None = None) -> list[float]:
    """Return a measure of method ``a`` over that of ``b`` for each run that both have and where ``b`` is not 0."""
    first, second = (results.column(measure, method, data) for method in (a, b))
    return [first[key] / second[key] for key in first if second.get(key)]


def within(claim: Claim, values: Sequence[float], low: float, high: float, what: str) -> Verdict:
    """Judge whether a number lies between ``low`` and ``high``.

    The claim holds if the whole interval of the mean lies inside, and does not hold if it lies outside. ``what`` says
    in the verdict what the number is.
    """
    if len(values) < 2:
        return Verdict(claim, "not testable here", f"{what}: {len(values)} runs are too few for an interval")
    mean = interval(values)
    assert mean.low is not None
    assert mean.high is not None
    inside, outside = low <= mean.low and mean.high <= high, mean.high < low or mean.low > high
    answer: Answer = "holds" if inside else "does not hold" if outside else "not testable here"
    expected = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    return Verdict(claim, answer, f"{what}: {_written(mean)}, expected {expected}")


def all_of(claim: Claim, parts: Sequence[Verdict]) -> Verdict:
    """Join verdicts: the claim holds if every part does, and does not hold if one part does not."""
    if not parts:
        raise InputError("a verdict needs at least one part")
    answers = {part.answer for part in parts}
    weakest_first: tuple[Answer, ...] = ("does not hold", "not testable here", "holds")
    answer = next(candidate for candidate in weakest_first if candidate in answers)
    return Verdict(
        claim, answer, "; ".join(part.why if len(answers) == 1 else f"{part.answer}: {part.why}" for part in parts)
    )


def summary(results: Results, measures: Sequence[str], data: str | None = None) -> list[dict[str, Any]]:
    """Return a table with a row for each method: its name, and the mean and 95 % interval of each measure it has.

    >>> from leanbayes_papers.study import Job
    >>> runs = [(Job("a", "vi", "mnist", seed), {"metrics": {"nll": 0.5 + seed}}) for seed in range(2)]
    >>> summary(Results(runs), ["nll"])[0]["nll"]["mean"]
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


def _compared(
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
    if len(pairs) < 2:
        why = f"{measure}, {a} against {b}: {len(pairs)} pairs of runs are too few for an interval"
        return Verdict(claim, "not testable here", why)
    motionless = [method for method in (a, b) if any(still(r) for job, r in results.runs if job.method == method)]
    if motionless:
        why = f"{measure}, {a} against {b}: the scales did not move in training: {', '.join(motionless)}"
        return Verdict(claim, "not testable here", why)
    names = {name for name, _ in pairs}
    if 1 < len(names) < _FEWEST_SETS:
        why = f"{measure}, {a} against {b}: an average over {len(names)} data sets has no useful interval"
        return Verdict(claim, "not testable here", f"{why}; judge each data set by itself")
    gain = interval(_by_data(pairs), 1 - 0.05 / tests)
    assert gain.low is not None
    assert gain.high is not None
    answer: Answer = "not testable here"
    if gain.low > holds_above:
        answer = "holds"
    elif gain.high < fails_below:
        answer = "does not hold"
    means = [_mean([results.column(measure, method, data)[key] for key in pairs]) for method in (a, b)]
    why = f"{measure}: {means[0]:.4g} for {a}, {means[1]:.4g} for {b}, a gain of {_written(gain)}"
    if answer == "not testable here":
        why += f", which does not decide (the margin is {abs(fails_below):g})"
    return Verdict(claim, answer, why)


def _by_data(pairs: Mapping[tuple[str, int], float]) -> list[float]:
    """Return the gains; of several data sets one mean each, because their splits are not independent."""
    names = list(dict.fromkeys(name for name, _ in pairs))
    if len(names) == 1:
        return list(pairs.values())
    return [_mean([gain for (data, _), gain in pairs.items() if data == name]) for name in names]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _margin(measure: str) -> float:
    base = measure.partition("@")[0].rpartition("/")[2]
    if base not in MARGINS:
        raise InputError(f"no margin is known for {measure}; state how small a difference does not matter: margin=...")
    return MARGINS[base]


def _written(mean: Interval) -> str:
    return f"{mean.mean:.3g} ({100 * mean.level:.4g} % interval {mean.low:.3g} to {mean.high:.3g}, n = {mean.n})"
