"""Statistics over seeds: what a handful of runs can and cannot tell."""

import warnings
from collections.abc import Mapping, Sequence
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
    "paired_t",
    "paired_tests",
    "seed_tests",
    "spearman",
    "weight_distance",
    "weights_of",
]

Values = Sequence[float] | NDArray[Any] | Tensor
Vector = NDArray[np.float64]

_EXACT_UP_TO = 8  # 8! = 40320 orders are counted in a moment
_ROUNDING = 64 * np.finfo(np.float64).eps
_STEPS = np.linspace(-6, 6, 1501)  # deviations around each component: the supremum is met to 1e-5


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` runs and where the true mean lies with probability ``level``.

    One run has a mean and no interval: ``deviation``, ``low`` and ``high`` are then None.
    """

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    n: int
    level: float


def interval(values: Values, level: float = 0.95) -> Interval:
    """Student's interval: mean ± t_{(1+level)/2, n−1} · s/√n, for values that are Normal and independent.

    >>> found = interval([1.0, 2.0, 3.0])
    >>> found.mean, found.deviation, round(found.low, 3), round(found.high, 3)
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


@dataclass(frozen=True)
class Anova:
    """Whether group means differ: F = (variance between) / (variance within), and p of so large an F if none did."""

    F: float
    p: float
    between: int
    within: int


def anova(groups: Mapping[str, Values] | Sequence[Values]) -> Anova:
    """One-way analysis of variance; ``between`` and ``within`` are the degrees of freedom, k − 1 and n − k.

    The groups are taken as independent. Runs that share their seeds are paired: `paired_tests` uses that.

    >>> found = anova({"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]})
    >>> round(found.F, 6), round(found.p, 6), found.between, found.within
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
        raise InputError("the values do not vary within any group, so no F can be computed; compare the means as is")
    found = _scipy_stats().f_oneway(*vectors)
    return Anova(float(found.statistic), float(found.pvalue), len(vectors) - 1, total - len(vectors))


@dataclass(frozen=True)
class PairedTest:
    """Student's test of a mean difference, a − b, over ``n`` pairs.

    ``corrected`` is p with Holm's correction for the number of tests made (p itself, if one). Where every pair differs
    by the same there is no spread to judge by: ``t``, ``p`` and ``corrected`` are None.
    """

    difference: float
    t: float | None
    p: float | None
    corrected: float | None
    n: int


def paired_t(a: Values, b: Values) -> PairedTest:
    """Two-sided paired t-test: t = d̄ / (s_d/√n) with d = a − b, pair by pair (the same seed in both).

    >>> found = paired_t([3.0, 4.0, 5.0], [1.0, 3.0, 2.0])
    >>> found.difference, round(found.t, 6), round(found.p, 6)
    (2.0, 3.464102, 0.07418)
    """
    first, second = _pair(a, b, at_least=2)
    found = _paired(first, second)
    if found.p is None:
        raise InputError(
            f"every pair differs by {found.difference:g}, so there is no spread to judge that by; run more seeds"
        )
    return found


def paired_tests(table: Mapping[str, Values]) -> dict[str, PairedTest]:
    """Paired t-tests of every pair of rows, "a vs b", with Holm's correction; values in the same order of seeds.

    >>> found = paired_tests({"a": [3.0, 4.0, 5.0], "b": [1.0, 3.0, 2.0], "c": [0.0, 0.0, 1.0]})
    >>> [(name, round(test.p, 4), round(test.corrected, 4)) for name, test in found.items()]
    [('a vs b', 0.0742, 0.1484), ('a vs c', 0.0082, 0.0245), ('b vs c', 0.1296, 0.1484)]
    """
    if len(table) < 2:
        raise InputError(f"there is nothing to compare: got {len(table)} rows, need at least two")
    vectors = {name: _vector(values, repr(name), at_least=2) for name, values in table.items()}
    if len({len(x) for x in vectors.values()}) > 1:
        raise ShapeMismatch(f"every row needs one value a seed, got { {name: len(x) for name, x in vectors.items()} }")
    return _corrected({f"{a} vs {b}": _paired(vectors[a], vectors[b]) for a, b in combinations(vectors, 2)})


def seed_tests(tables: Mapping[str, Mapping[str, Mapping[int, float | None]]]) -> dict[str, dict[str, Any]]:
    """ANOVA and paired tests of each metric of a comparison, {metric: {method: {seed: value}}}, as JSON can hold them.

    Pairs are of the seeds that both methods have, two at least. What cannot be tested is left out, and so is a method
    one of whose values is missing or not finite: without the run that failed it would look better than it is.

    >>> seed_tests({"accuracy": {"a": {0: 0.9}, "b": {0: 0.8}}})
    {'anova': {}, 'paired': {}}
    """
    found: dict[str, dict[str, Any]] = {"anova": {}, "paired": {}}
    for metric, methods in tables.items():
        rows = {
            name: {seed: value for seed, value in row.items() if value is not None}
            for name, row in methods.items()
            if row and all(value is not None and isfinite(value) for value in row.values())
        }
        with suppress(InputError):
            found["anova"][metric] = asdict(anova({name: list(row.values()) for name, row in rows.items()}))
        pairs = {}
        for a, b in combinations(rows, 2):
            seeds = sorted(rows[a].keys() & rows[b].keys())
            if len(seeds) > 1:
                pairs[f"{a} vs {b}"] = _paired(*(np.array([rows[name][seed] for seed in seeds]) for name in (a, b)))
        tested = {pair: asdict(test) for pair, test in _corrected(pairs).items() if test.p is not None}
        if tested:
            found["paired"][metric] = tested
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction (1979): with p₁ ≤ … ≤ p_m, p̃ᵢ = max over j ≤ i of min(1, (m − j + 1) p_j).

    Rejecting where p̃ ≤ α makes even one wrong rejection no more likely than α, whatever depends on what.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise InputError(f"p values must be from 0 to 1, got {list(p_values)}")
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


@dataclass(frozen=True)
class Spearman:
    """Rank correlation and its two-sided p; ``exact`` says whether all orders were counted or Student's law used."""

    rho: float
    p: float
    n: int
    exact: bool


def spearman(a: Values, b: Values) -> Spearman:
    """Correlation of ranks, ties sharing theirs, of at least three pairs.

    Up to eight pairs p comes from all n! orders; the usual Student approximation would call three in order p = 0.

    >>> spearman([1.0, 2.0, 3.0], [5.0, 6.0, 9.0])
    Spearman(rho=1.0, p=0.333..., n=3, exact=True)
    """
    first, second = _pair(a, b, at_least=3)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise InputError("one of the two is constant: it has no order to correlate")
    stats = _scipy_stats()
    found = stats.spearmanr(first, second)
    rho, p, n = float(found.statistic), float(found.pvalue), len(first)
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


@dataclass(frozen=True)
class WeightDistance:
    """How far two weight distributions are apart, from 0 to 1.

    ``statistic`` is the Kolmogorov-Smirnov distance of two fitted mixtures, ``empirical`` that of the weights
    themselves; if these differ, the mixtures fit badly. ``p`` is for ``statistic`` with ``n_a`` and ``n_b`` weights.
    """

    statistic: float
    p: float
    empirical: float
    n_a: int
    n_b: int


def weight_distance(a: Values, b: Values, *, components: int = 5, most: int = 100_000, seed: int = 0) -> WeightDistance:
    """sup_x |F_a(x) − F_b(x)| of two Gaussian mixtures, one fitted to each set of weights (001, appendix G).

    001 reads its p < 1e-10 at a distance of 0.07 as likeness; a small p says that the two laws differ. With many
    weights every p is small, so read the distance. It says nothing of which weight is where. The p is the asymptotic
    one of two samples; that the mixtures were fitted to them it does not know.

    Args:
        a: weights of one model, of any shape, such as `weights_of` gives.
        b: those of the other.
        components: Gaussians in each mixture; 001 does not say how many.
        most: fit to so many of the weights at most, chosen by ``seed``.
        seed: of that choice and of the fit.

    >>> a = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    >>> 0.15 < weight_distance(a, a + 0.5, components=2).statistic < 0.25  # 2Φ(1/4) − 1 = 0.197
    True
    """
    if components < 1 or most < components:
        raise InputError(f"need components of at least 1 and most no smaller, got {components} and {most}")
    stats = _scipy_stats()
    first, second = (_some(values, name, components, most, seed) for name, values in (("a", a), ("b", b)))
    pooled = np.concatenate([first, second])
    # A common shift and scale change no distance, and the fit's own smallest variance is meant for data of unit scale.
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
    """Every weight of a model in one vector: of a `Bayesian` one draw, of an ensemble those of all members.

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
        raise InputError(f"a {type(model).__name__} has no weights")
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _mixture(x: Vector, components: int, seed: int) -> tuple[Vector, Vector, Vector]:
    """Weights, means and deviations of a mixture fitted to a sample."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `empirical` tells how well the mixture fits
        fitted = GaussianMixture(components, max_iter=500, random_state=seed).fit(x[:, None])
    return fitted.weights_, fitted.means_[:, 0], np.sqrt(fitted.covariances_[:, 0, 0])


def _some(values: Values, name: str, at_least: int, most: int, seed: int) -> Vector:
    """At most so many of the values, chosen without order."""
    tensor = torch.as_tensor(values).detach().flatten()
    if len(tensor) > most:
        chosen = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(seed))[:most]
        tensor = tensor[chosen.to(tensor.device)]
    x = _vector(tensor, name, at_least=max(at_least, 2))
    if _constant(x, x):
        raise InputError(f"the weights of {name} are all {x[0]:g}: that is no distribution to fit a mixture to")
    return x


def _paired(a: Vector, b: Vector) -> PairedTest:
    difference = float((a - b).mean())
    if _constant(a - b, a, b):
        return PairedTest(difference, None, None, None, len(a))
    found = _scipy_stats().ttest_rel(a, b)
    return PairedTest(difference, float(found.statistic), float(found.pvalue), float(found.pvalue), len(a))


def _corrected(found: dict[str, PairedTest]) -> dict[str, PairedTest]:
    tested = {name: test.p for name, test in found.items() if test.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {name: replace(test, corrected=corrected.get(name)) for name, test in found.items()}


def _pair(a: Values, b: Values, at_least: int) -> tuple[Vector, Vector]:
    first, second = _vector(a, "a", at_least), _vector(b, "b", at_least)
    if len(first) != len(second):
        raise ShapeMismatch(f"pairs need as many values in a as in b, got {len(first)} and {len(second)}")
    return first, second


def _constant(x: Vector, *sources: Vector) -> bool:
    """Whether ``x`` varies by no more than the rounding of what it was computed from."""
    return bool(np.ptp(x) <= _ROUNDING * max(np.abs(source).max() for source in sources))


def _vector(values: Values, name: str, at_least: int) -> Vector:
    try:
        x = np.asarray(values.detach().tolist() if isinstance(values, Tensor) else values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a list of numbers: {error}") from error
    if x.ndim != 1:
        raise ShapeMismatch(f"{name} must be a list of numbers, got the shape {x.shape}")
    if len(x) < at_least:
        raise InputError(f"{name} has {len(x)} values, need at least {at_least}; run more seeds")
    if not np.isfinite(x).all():
        raise NonFinite(f"{name} has NaN or infinite values at {np.flatnonzero(~np.isfinite(x))[:5].tolist()}")
    return x


def _scipy_stats() -> Any:
    """Imported when first needed: it takes a second."""
    from scipy import stats

    return stats
