"""Statistics over seeds: what a handful of runs can tell, and what they cannot."""

import warnings
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from math import factorial, isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.prediction import Predictor

__all__ = [
    "Anova",
    "Interval",
    "PairedTest",
    "Spearman",
    "WeightDistance",
    "anova",
    "holm",
    "interval",
    "interval_over_groups",
    "paired_t",
    "paired_tests",
    "seed_tests",
    "spearman",
    "spearman_over_groups",
    "weight_distance",
    "weights_of",
]

Values = Sequence[float] | NDArray[Any] | Tensor
Vector = NDArray[np.float64]

_EXACT_UP_TO = 8  # 8! = 40320 orders are quick to count
_FEWEST_GROUPS = 5  # below which resampling them says nothing
_RESAMPLES = 2000
_ROUNDING = 64 * np.finfo(np.float64).eps
_STEPS = np.linspace(-6, 6, 1501)  # in deviations around each component; this grid meets the supremum to 1e-5


@dataclass(frozen=True)
class Interval:
    """The mean of several runs, and a confidence interval of the true mean.

    Attributes:
        mean: the mean of the runs.
        deviation: the standard deviation of the runs; None for a single run.
        low: the lower end of the interval; None for a single run.
        high: the upper end of the interval; None for a single run.
        n: how many runs there are.
        level: the confidence level, such as 0.95.
    """

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    n: int
    level: float


def interval(values: Values, level: float = 0.95) -> Interval:
    """Return Student's interval, mean ± t_{(1+level)/2, n−1} · s/√n, which holds for independent Normal values.

    Args:
        values: one value for each run.
        level: the confidence level.

    >>> seeds = interval([1.0, 2.0, 3.0])
    >>> seeds.mean, seeds.deviation, round(seeds.low, 3), round(seeds.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    >>> interval([0.9]).low is None
    True
    """
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level}")
    x = _vector(values, "values", at_least=1)
    mean = float(x.mean())
    if len(x) == 1:
        return Interval(mean, None, None, None, 1, level)
    deviation = float(x.std(ddof=1))
    half = float(_scipy_stats().t.ppf((1 + level) / 2, len(x) - 1)) * deviation / len(x) ** 0.5
    return Interval(mean, deviation, mean - half, mean + half, len(x), level)


def interval_over_groups(values: Values, groups: Sequence[Hashable], level: float = 0.95) -> Interval:
    """Return the mean of values and its interval, where the values of one group, such as a patient, may be alike.

    With the deviations of each group added up, D_g = Σ_{i in g} (v_i − mean), the variance of the mean is
    G/(G−1) · Σ_g D_g² / n², and Student's t has G−1 degrees of freedom. With one value in each group, this is
    `interval`.

    Args:
        values: one value for each example.
        groups: the group of each example.
        level: the confidence level.

    Returns:
        The interval; its ``n`` is the number of groups, and its deviation is √G times the standard error.

    >>> alone, paired = (interval_over_groups([1.0, 2.0, 3.0, 4.0], of) for of in ("abcd", "aabb"))
    >>> alone == interval([1.0, 2.0, 3.0, 4.0]), paired.n, round(paired.high - paired.low, 1)
    (True, 2, 25.4)
    """
    x = _vector(values, "values", 1)
    if len(groups) != len(x):
        raise ShapeMismatch(f"need one group for each value, got {len(groups)} groups and {len(x)} values")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    count = len(numbers)
    if count == len(x):
        return interval(values, level)
    mean = float(x.mean())
    if count < 2:
        return Interval(mean, None, None, None, count, level)
    sums = np.bincount([numbers[name] for name in groups], weights=x - mean)
    error = float(np.sqrt(count / (count - 1) * np.square(sums).sum())) / len(x)
    half = float(_scipy_stats().t.ppf((1 + level) / 2, count - 1)) * error
    return Interval(mean, error * count**0.5, mean - half, mean + half, count, level)


@dataclass(frozen=True)
class Anova:
    """The result of an analysis of variance, which asks whether the means of groups differ.

    Attributes:
        F: the variance between groups divided by the variance within groups.
        p: the probability of an F at least this large if all groups had the same mean.
        between: the degrees of freedom between groups, k − 1 for k groups.
        within: the degrees of freedom within groups, n − k for n values.
    """

    F: float
    p: float
    between: int
    within: int


def anova(groups: Mapping[str, Values] | Sequence[Values]) -> Anova:
    """Return the one-way analysis of variance of several groups of values.

    The test takes the groups as independent. Runs that share their seeds are paired, which `paired_tests` uses.

    >>> test = anova({"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]})
    >>> round(test.F, 6), round(test.p, 6), test.between, test.within
    (1.5, 0.287864, 1, 4)
    """
    named = groups if isinstance(groups, Mapping) else {f"group {i}": group for i, group in enumerate(groups)}
    vectors = [_vector(values, repr(name), at_least=1) for name, values in named.items()]
    total = sum(map(len, vectors))
    if len(vectors) < 2 or total <= len(vectors):
        raise InputError(
            f"an ANOVA needs at least two groups and more values than groups, got {total} values in "
            f"{len(vectors)} groups; run more seeds"
        )
    if all(_constant(x, x) for x in vectors):
        raise InputError("the values do not vary within any group, so F cannot be computed; compare the means directly")
    test = _scipy_stats().f_oneway(*vectors)
    return Anova(float(test.statistic), float(test.pvalue), len(vectors) - 1, total - len(vectors))


@dataclass(frozen=True)
class PairedTest:
    """Student's test of the mean difference between pairs of values.

    If all pairs have the same difference there is no spread to judge it by: ``t``, ``p`` and ``corrected`` are None.

    Attributes:
        difference: the mean of a − b.
        t: the mean difference divided by its standard error.
        p: the probability of a t at least this far from 0 if the true difference were 0.
        corrected: p with Holm's correction for the number of tests, or p itself for a single test.
        n: how many pairs there are.
    """

    difference: float
    t: float | None
    p: float | None
    corrected: float | None
    n: int


def paired_t(a: Values, b: Values) -> PairedTest:
    """Return the two-sided paired t-test, t = d̄ / (s_d/√n) with d = a − b.

    Args:
        a: the values of one method, one for each seed.
        b: the values of the other method, with the seeds in the same order.

    >>> test = paired_t([3.0, 4.0, 5.0], [1.0, 3.0, 2.0])
    >>> test.difference, round(test.t, 6), round(test.p, 6)
    (2.0, 3.464102, 0.07418)
    """
    first, second = _pair(a, b, at_least=2)
    test = _paired(first, second)
    if test.p is None:
        raise InputError(
            f"every pair differs by {test.difference:g}, so there is no spread to judge that by; run more seeds"
        )
    return test


def paired_tests(table: Mapping[str, Values]) -> dict[str, PairedTest]:
    """Return the paired t-test of every pair of rows, by names such as "a vs b", with Holm's correction.

    Args:
        table: for each method its values, with the seeds in the same order in every row.

    >>> tests = paired_tests({"a": [3.0, 4.0, 5.0], "b": [1.0, 3.0, 2.0], "c": [0.0, 0.0, 1.0]})
    >>> [(name, round(test.p, 4), round(test.corrected, 4)) for name, test in tests.items()]
    [('a vs b', 0.0742, 0.1484), ('a vs c', 0.0082, 0.0245), ('b vs c', 0.1296, 0.1484)]
    """
    if len(table) < 2:
        raise InputError(f"a comparison needs at least two rows, got {len(table)}")
    vectors = {name: _vector(values, repr(name), at_least=2) for name, values in table.items()}
    if len({len(x) for x in vectors.values()}) > 1:
        raise ShapeMismatch(
            f"every row needs one value for each seed, got { {name: len(x) for name, x in vectors.items()} } values"
        )
    return _corrected({f"{a} vs {b}": _paired(vectors[a], vectors[b]) for a, b in combinations(vectors, 2)})


def seed_tests(tables: Mapping[str, Mapping[str, Mapping[int, float | None]]]) -> dict[str, dict[str, Any]]:
    """Return an ANOVA and paired tests for each metric of a comparison, as JSON can hold them.

    Two methods are paired by the seeds that both have, of which there must be at least two. What cannot be tested is
    left out. A method is left out too if one of its values is missing or not finite, because without the run that
    failed it would look better than it is.

    Args:
        tables: the values as {metric: {method: {seed: value}}}.

    >>> seed_tests({"accuracy": {"a": {0: 0.9}, "b": {0: 0.8}}})
    {'anova': {}, 'paired': {}}
    """
    tests: dict[str, dict[str, Any]] = {"anova": {}, "paired": {}}
    for metric, methods in tables.items():
        rows = {
            name: {seed: value for seed, value in row.items() if value is not None}
            for name, row in methods.items()
            if row and all(value is not None and isfinite(value) for value in row.values())
        }
        with suppress(InputError):
            tests["anova"][metric] = asdict(anova({name: list(row.values()) for name, row in rows.items()}))
        pairs = {}
        for a, b in combinations(rows, 2):
            seeds = sorted(rows[a].keys() & rows[b].keys())
            if len(seeds) > 1:
                pairs[f"{a} vs {b}"] = _paired(*(np.array([rows[name][seed] for seed in seeds]) for name in (a, b)))
        tested = {pair: asdict(test) for pair, test in _corrected(pairs).items() if test.p is not None}
        if tested:
            tests["paired"][metric] = tested
    return tests


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values with Holm's correction (1979): for p₁ ≤ … ≤ p_m, p̃ᵢ = max over j ≤ i of min(1, (m − j + 1) p_j).

    If all hypotheses with p̃ ≤ α are rejected, the probability of even one wrong rejection is at most α, however the
    tests depend on each other.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise InputError(f"p values must be from 0 to 1, got {list(p_values)}")
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


@dataclass(frozen=True)
class Spearman:
    """A rank correlation.

    Attributes:
        rho: the correlation of the ranks, from −1 to 1.
        p: the two-sided p value.
        n: how many pairs there are.
        exact: whether p comes from counting all orders; otherwise it comes from Student's law.
    """

    rho: float
    p: float
    n: int
    exact: bool


def spearman(a: Values, b: Values) -> Spearman:
    """Return Spearman's correlation of ranks, in which tied values share their mean rank, of at least three pairs.

    For up to eight pairs, p comes from all n! orders. The usual approximation by Student's law would give p = 0 for
    three pairs in the same order.

    >>> spearman([1.0, 2.0, 3.0], [5.0, 6.0, 9.0])
    Spearman(rho=1.0, p=0.333..., n=3, exact=True)
    """
    first, second = _pair(a, b, at_least=3)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise InputError("one of the two is constant, so it has no order to correlate")
    stats = _scipy_stats()
    correlation = stats.spearmanr(first, second)
    rho, p, n = float(correlation.statistic), float(correlation.pvalue), len(first)
    if exact := n <= _EXACT_UP_TO:
        ranks, others = stats.rankdata(first), stats.rankdata(second) - (n + 1) / 2
        p = stats.permutation_test(
            (ranks,),
            lambda order, axis: np.sum(order * others, axis=axis),
            permutation_type="pairings",
            vectorized=True,
            n_resamples=factorial(n),
        ).pvalue
    return Spearman(min(1.0, max(-1.0, rho)), float(p), n, exact)


def spearman_over_groups(a: Values, b: Values, groups: Sequence[Hashable], level: float = 0.95) -> Interval:
    """Return Spearman's correlation and its bootstrap interval over groups, such as patients.

    Each of 2,000 resamples draws as many groups as there are, with replacement and with all their pairs. The ends of
    the interval are percentiles of the correlations. Resamples in which one of the two is constant are left out.

    Args:
        a: the first value of each pair.
        b: the second one.
        groups: the group of each pair.
        level: the confidence level.

    Returns:
        The interval; its ``n`` is the number of groups, and its ends are None for fewer than five of them.
    """
    first, second = _pair(a, b, at_least=3)
    if len(groups) != len(first):
        raise ShapeMismatch(f"need one group for each pair, got {len(groups)} groups and {len(first)} pairs")
    rho = spearman(first, second).rho
    names = list(dict.fromkeys(groups))
    rows = {name: [index for index, group in enumerate(groups) if group == name] for name in names}
    if len(names) < _FEWEST_GROUPS:
        return Interval(rho, None, None, None, len(names), level)
    rank, random = _scipy_stats().rankdata, np.random.default_rng(0)
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = [row for number in random.integers(len(names), size=len(names)) for row in rows[names[number]]]
        x, y = rank(first[chosen]), rank(second[chosen])
        if np.ptp(x) > 0 and np.ptp(y) > 0:
            drawn.append(np.corrcoef(x, y)[0, 1])
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    deviation = float(np.std(drawn)) * len(names) ** 0.5
    return Interval(rho, deviation, float(low), float(high), len(names), level)


@dataclass(frozen=True)
class WeightDistance:
    """How far two distributions of weights are apart.

    Attributes:
        statistic: the Kolmogorov-Smirnov distance of two fitted mixtures, from 0 to 1.
        p: the p value of ``statistic``.
        empirical: the same distance of the weights themselves; if it differs from ``statistic``, the fit is bad.
        n_a: how many weights of the first set were used.
        n_b: how many weights of the second set were used.
    """

    statistic: float
    p: float
    empirical: float
    n_a: int
    n_b: int


def weight_distance(a: Values, b: Values, *, components: int = 5, most: int = 100_000, seed: int = 0) -> WeightDistance:
    """Return sup_x |F_a(x) − F_b(x)| of two Gaussian mixtures, one fitted to each set of weights.

    The measure comes from appendix G of the paper on sensitivity-guided subnetworks. That paper takes p < 1e-10 at a
    distance of 0.07 as a sign that the two laws are alike, but a small p means that they differ. With many weights
    every p is small, so read the distance. The distance ignores which weight is where. The p value is the asymptotic
    one for two samples, and ignores that the mixtures were fitted to them.

    Args:
        a: the weights of one model, of any shape, such as `weights_of` returns.
        b: the weights of the other model.
        components: how many Gaussians each mixture has; the paper does not say how many it uses.
        most: the largest number of weights that a mixture is fitted to; more than that are sampled.
        seed: the seed of that sample and of the fit.

    >>> a = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    >>> 0.15 < weight_distance(a, a + 0.5, components=2).statistic < 0.25  # 2Φ(1/4) − 1 = 0.197
    True
    """
    if components < 1 or most < components:
        raise InputError(f"components must be at least 1 and most at least components, got {components} and {most}")
    stats = _scipy_stats()
    first, second = (_sampled(values, name, components, most, seed) for name, values in (("a", a), ("b", b)))
    pooled = np.concatenate([first, second])
    # A common shift and scale change no distance, and the fit has a smallest variance that suits data of unit scale.
    first, second = ((x - pooled.mean()) / pooled.std() for x in (first, second))
    laws = [_mixture(x, components, seed) for x in (first, second)]
    grid = np.concatenate([mean[:, None] + np.outer(scale, _STEPS) for _, mean, scale in laws], axis=None)
    one, other = (sum(w * stats.norm.cdf(grid, m, s) for w, m, s in zip(*law, strict=True)) for law in laws)
    distance = float(np.abs(one - other).max())
    pairs = len(first) * len(second) / (len(first) + len(second))
    return WeightDistance(
        distance,
        float(stats.kstwobign.sf(distance * pairs**0.5)),
        float(stats.ks_2samp(first, second, method="asymp").statistic),
        len(first),
        len(second),
    )


def weights_of(model: nn.Module, *, generator: torch.Generator | None = None) -> Tensor:
    """Return all weights of a model in one vector: one draw of a `Bayesian`, and all members of an ensemble.

    >>> weights_of(nn.Linear(3, 2)).shape
    torch.Size([8])
    """
    if isinstance(model, Predictor):
        return torch.cat([weights_of(part, generator=generator) for part in model.parts().values()])
    drawn: dict[str, Tensor] = {}
    if isinstance(model, Bayesian):
        drawn, model = model.draw(generator=generator), model.model
    tensors = [drawn.get(name, parameter) for name, parameter in model.named_parameters()]
    if not tensors:
        raise InputError(f"the model has no weights: it is a {type(model).__name__} without parameters")
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _mixture(x: Vector, components: int, seed: int) -> tuple[Vector, Vector, Vector]:
    """The weights, means and deviations of a Gaussian mixture that is fitted to a sample."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `empirical` shows how well the mixture fits
        fitted = GaussianMixture(components, max_iter=500, random_state=seed).fit(x[:, None])
    return fitted.weights_, fitted.means_[:, 0], np.sqrt(fitted.covariances_[:, 0, 0])


def _sampled(values: Values, name: str, at_least: int, most: int, seed: int) -> Vector:
    """All values, or a random sample of ``most`` of them."""
    tensor = torch.as_tensor(values).detach().flatten()
    if len(tensor) > most:
        chosen = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(seed))[:most]
        tensor = tensor[chosen.to(tensor.device)]
    x = _vector(tensor, name, at_least=max(at_least, 2))
    if _constant(x, x):
        raise InputError(f"the weights of {name} are all {x[0]:g}, so no mixture can be fitted to them")
    return x


def _paired(a: Vector, b: Vector) -> PairedTest:
    difference = float((a - b).mean())
    if _constant(a - b, a, b):
        return PairedTest(difference, None, None, None, len(a))
    test = _scipy_stats().ttest_rel(a, b)
    return PairedTest(difference, float(test.statistic), float(test.pvalue), float(test.pvalue), len(a))


def _corrected(tests: dict[str, PairedTest]) -> dict[str, PairedTest]:
    p_values = {name: test.p for name, test in tests.items() if test.p is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return {name: replace(test, corrected=corrected.get(name)) for name, test in tests.items()}


def _pair(a: Values, b: Values, at_least: int) -> tuple[Vector, Vector]:
    first, second = _vector(a, "a", at_least), _vector(b, "b", at_least)
    if len(first) != len(second):
        raise ShapeMismatch(
            f"a and b must have as many values as each other to be paired, got {len(first)} and {len(second)}"
        )
    return first, second


def _constant(x: Vector, *sources: Vector) -> bool:
    """Whether ``x`` varies by no more than the rounding errors of the values that it was computed from."""
    return bool(np.ptp(x) <= _ROUNDING * max(np.abs(source).max() for source in sources))


def _vector(values: Values, name: str, at_least: int) -> Vector:
    try:
        x = np.asarray(values.detach().tolist() if isinstance(values, Tensor) else values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a list of numbers: {error}") from error
    if x.ndim != 1:
        raise ShapeMismatch(f"{name} must be a list of numbers, got the shape {x.shape}")
    if len(x) < at_least:
        raise InputError(f"{name} has {len(x)} values, but needs at least {at_least}; run more seeds")
    if not np.isfinite(x).all():
        raise NonFinite(f"{name} has NaN or infinite values at {np.flatnonzero(~np.isfinite(x))[:5].tolist()}")
    return x


def _scipy_stats() -> Any:
    """Import scipy.stats when it is first needed, because the import takes a second."""
    from scipy import stats

    return stats
