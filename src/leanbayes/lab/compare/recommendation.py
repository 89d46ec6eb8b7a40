"""Which method to take: the rule, and the sentences that give its result with an interval and the price.

The rule compares the NLL of every method with that of the plain network, with temperature if the comparison has it.

1. Each gain, the NLL of the plain network minus that of the method, has an interval. It is Student's over the seeds
   that both have. With one seed it comes from the test examples, by the bootstrap, and knows nothing of other seeds.
2. All m intervals hold together at 95 %, because each has the level 1 − 0.05/m (Bonferroni). A gain is significant if
   its interval lies above 0. So a comparison of many methods does not find a winner by chance alone.
3. Without a significant gain, the plain network is recommended.
4. Otherwise, of the methods with a significant gain, those count as equal that are not significantly worse than the one
   with the largest gain. The one with the lowest price is recommended: training plus prediction, both in units of the
   plain network.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leanbayes.lab.statistics import interval

__all__ = ["Gain", "Recommendation", "recommend"]

Scores = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The NLL of each test input, and the number of its targets, which is its weight."""

_WRONG = 0.05  # the probability that any of the intervals misses its true value
_FEWEST = 30  # test inputs: the bootstrap of fewer gives intervals that are too narrow
_RESAMPLES, _NUMBERS = 4000, 40_000_000  # resamples, and the most numbers that all of them draw
_ROUNDING = 1e-12


Over = Literal["seeds", "examples", "patients"]
_UNITS = {"examples": "test examples", "patients": "patients of the test set"}


@dataclass(frozen=True)
class Gain:
    """How much lower the NLL of one method is than that of another.

    Attributes:
        mean: the difference.
        low: the lower end of its interval; None if there is nothing to compute one from.
        high: the upper end of its interval.
        over: what the interval is taken over: the seeds, the test examples, or the patients of the test set.
        n: how many of them there are.
    """

    mean: float
    low: float | None
    high: float | None
    over: Over
    n: int

    @property
    def significant(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True)
class Recommendation:
    """Which method to take, what it gains and what it costs.

    Attributes:
        take: the method; None if there is no plain network to compare with.
        reference: the plain network.
        significant: whether the method has a significant gain; if not, ``take`` is the plain network.
        gain: the gain of the method, or the largest one if none is significant.
        comparisons: how many methods were compared with the plain network.
        training: how many times as long as that of the plain network the training of the method took.
        prediction: the same for the prediction.
        sentences: all of it in plain words.
    """

    take: str | None
    reference: str | None
    significant: bool
    gain: Gain | None
    comparisons: int
    training: float | None
    prediction: float | None
    sentences: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self) | {"sentences": list(self.sentences)}


def recommend(results: Mapping[str, Any], scores: Callable[[str], Scores | None]) -> Recommendation | None:
    """Apply the rule to a comparison.

    Args:
        results: the record of the comparison, with its methods, their runs, and the task.
        scores: returns the NLL of each test input for a method, in the same order for all methods; None if it is not
            known. It is asked only where there are fewer than two seeds.

    Returns:
        The recommendation, or None if no method has an NLL.
    """
    nlls = {method["name"]: _nlls(method) for method in results["methods"]}
    if not any(nlls.values()):
        return None
    finite = {name: of for name, of in nlls.items() if of and all(map(math.isfinite, of.values()))}
    left_out = [name for name, of in nlls.items() if of and name not in finite]
    kinds = {method["name"]: _plain_kind(method.get("recipe", {})) for method in results["methods"]}
    plain, tempered = (next((n for n in finite if kinds[n] == kind), None) for kind in ("plain", "tempered"))
    reference = tempered or plain
    comparison = _Comparison(results, finite, scores, plain or reference)
    if reference is None:
        return comparison.without_reference(left_out, any(kinds.values()))
    candidates = [name for name in finite if kinds[name] is None]
    return comparison.recommendation(reference, candidates, left_out, has_temperature=tempered is not None)


class _Comparison:
    """The methods with their NLLs by seed, their gains and their prices."""

    def __init__(
        self,
        results: Mapping[str, Any],
        nlls: Mapping[str, Mapping[int, float]],
        scores: Callable[[str], Scores | None],
        priced_by: str | None,
    ) -> None:
        self.logits = results.get("task", {}).get("kind") != "regression"
        self.nlls, self.scores = nlls, scores
        self.unit: Over = "patients" if results.get("task", {}).get("patients") else "examples"
        costs = {method["name"]: _costs(method) for method in results["methods"]}
        unit = costs.get(priced_by or "", {})
        self.prices = {
            name: {kind: _ratio(of.get(kind), unit.get(kind)) for kind in ("train_seconds", "predict_seconds")}
            for name, of in costs.items()
        }

    def recommendation(
        self, reference: str, candidates: Sequence[str], left_out: Sequence[str], has_temperature: bool
    ) -> Recommendation:
        plain = "the plain network with temperature" if has_temperature else "the plain network"
        count = len(candidates)
        gains = {name: self.gain(name, reference, count) for name in candidates}
        if not gains:
            only = f"Only {plain} was compared: add other methods to see what they gain."
            return Recommendation(reference, reference, False, None, 0, 1.0, 1.0, (only, *_without(left_out)))
        best = max(gains, key=lambda name: gains[name].mean)
        winners = [name for name in candidates if gains[name].significant]
        if not winners:
            ending = "" if has_temperature or not self.logits else " (with temperature, which was not compared)"
            sentences = [f"No significant gain: take {plain}{ending}."]
            sentences += [*_largest(best, gains[best], count), *_without(left_out)]
            return Recommendation(reference, reference, False, gains[best], count, 1.0, 1.0, tuple(sentences))
        best = max(winners, key=lambda name: gains[name].mean)
        equal = [name for name in winners if name == best or not self.gain(best, name, count).significant]
        take = min(equal, key=lambda name: (self._price(name), -gains[name].mean))
        gain, price = gains[take], self.prices[take]
        sentences = [
            f"Take {take}: its NLL is {_number(gain.mean, gain)} lower than that of {plain} ({_interval(gain)}).",
            *self._costs(take),
        ]
        if take != best:
            times = self._times(best)
            sentences.append(
                f"The NLL of {best} is lower still, but not significantly" + (f", at {times}." if times else ".")
            )
        sentences += _about_interval(gain, count)
        if self.logits and not has_temperature:
            sentences.append(
                "The plain network has no temperature here, which may give a part of this gain for nothing: add "
                "deterministic+temperature to the methods."
            )
        sentences += _without(left_out)
        return Recommendation(
            take,
            reference,
            True,
            gain,
            count,
            price["train_seconds"],
            price["predict_seconds"],
            tuple(sentences),
        )

    def without_reference(self, left_out: Sequence[str], failed: bool) -> Recommendation:
        """Say why no gain can be given, and which method has the lowest NLL."""
        wanted = "deterministic+temperature" if self.logits else "deterministic"
        sentences = [
            "The plain network has no finite NLL, so no gain over it can be given."
            if failed
            else f"No plain network was compared, so no gain over it can be given: add {wanted} to the methods."
        ]
        means = {name: sum(of.values()) / len(of) for name, of in self.nlls.items()}
        if means:
            best = min(means, key=lambda name: means[name])
            sentences.append(f"{best} has the lowest NLL, {means[best]:.3g}.")
        return Recommendation(None, None, False, None, 0, None, None, (*sentences, *_without(left_out)))

    def gain(self, name: str, other: str, comparisons: int) -> Gain:
        """Return how much lower the NLL of a method is than that of another, as one of several comparisons."""
        level = 1 - _WRONG / comparisons
        seeds = sorted(self.nlls[name].keys() & self.nlls[other].keys())
        if len(seeds) > 1:
            return _over_seeds([self.nlls[other][seed] - self.nlls[name][seed] for seed in seeds], level)
        means = [sum(self.nlls[method].values()) / len(self.nlls[method]) for method in (other, name)]
        pair = self.scores(other), self.scores(name)
        if pair[0] is not None and pair[1] is not None and len(pair[0][0]) == len(pair[1][0]):
            differences, weights = pair[0][0] - pair[1][0], pair[0][1]
            if np.isfinite(differences).all() and weights.sum() > 0:
                return _over_examples(differences, weights, level, self.unit)
        return Gain(means[0] - means[1], None, None, self.unit, 0)

    def _price(self, name: str) -> float:
        price = self.prices[name]
        return sum(math.inf if ratio is None else ratio for ratio in price.values())

    def _costs(self, name: str) -> list[str]:
        training, prediction = (self.prices[name][kind] for kind in ("train_seconds", "predict_seconds"))
        if training is None or prediction is None:
            return ["What it costs was not measured."]
        return [
            f"To train, it costs {_times(training)} the time of the plain network; to predict, {_times(prediction)}."
        ]

    def _times(self, name: str) -> str:
        training, prediction = (self.prices[name][kind] for kind in ("train_seconds", "predict_seconds"))
        if training is None or prediction is None:
            return ""
        return f"{_times(training)} the time of the plain network to train and {_times(prediction)} to predict"


def _nlls(method: Mapping[str, Any]) -> dict[int, float]:
    """The NLL of each seed; one that is missing or was no number counts as NaN."""
    runs = [run for run in method.get("runs", []) if "nll" in run.get("metrics", {})]
    values = {run["seed"]: run["metrics"]["nll"] for run in runs}
    return {seed: math.nan if value is None else float(value) for seed, value in values.items()}


def _plain_kind(recipe: Mapping[str, Any]) -> str | None:
    """Whether a recipe is the plain network ("plain"), that with temperature ("tempered"), or neither.

    Conformal prediction on top changes no probability, so it changes no kind.
    """
    under = recipe.get("of")
    if recipe.get("name") == "conformal" and isinstance(under, Mapping):
        return _plain_kind(under)
    if recipe.get("name") == "deterministic":
        return "plain"
    inner = recipe.get("of")
    if recipe.get("name") == "temperature" and isinstance(inner, Mapping) and inner.get("name") == "deterministic":
        return "tempered"
    return None


def _costs(method: Mapping[str, Any]) -> dict[str, float | None]:
    """The mean times over seeds; None where a seed has none."""
    costs: dict[str, float | None] = {}
    for kind in ("train_seconds", "predict_seconds"):
        values = [run.get("cost", {}).get(kind) for run in method.get("runs", [])]
        usable = bool(values) and all(value is not None and math.isfinite(value) for value in values)
        costs[kind] = sum(values) / len(values) if usable else None
    return costs


def _ratio(value: float | None, unit: float | None) -> float | None:
    return value / unit if value is not None and unit is not None and unit > 0 else None


def _over_seeds(differences: Sequence[float], level: float) -> Gain:
    """Student's interval of the mean difference; none if all differences are equal, because they show no spread."""
    span = interval(differences, level)
    size = max(map(abs, differences))
    if max(differences) - min(differences) <= _ROUNDING * size:
        end = 0.0 if size == 0 else None
        return Gain(span.mean, end, end, "seeds", len(differences))
    return Gain(span.mean, span.low, span.high, "seeds", len(differences))


def _over_examples(
    differences: NDArray[np.float64], weights: NDArray[np.float64], level: float, unit: "Over" = "examples"
) -> Gain:
    """The percentiles of the weighted mean difference over resamples of the test inputs; none for too few inputs.

    The scores of a patient's inputs come as one, so that whole patients are drawn again.
    """
    n, products = len(differences), differences * weights
    mean = float(products.sum() / weights.sum())
    if n < _FEWEST:
        return Gain(mean, None, None, unit, n)
    source = np.random.default_rng(0)
    means = np.empty(max(1000, min(_RESAMPLES, _NUMBERS // n)))
    for index in range(len(means)):
        rows = source.integers(n, size=n)
        means[index] = products[rows].sum() / max(weights[rows].sum(), 1e-300)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Gain(mean, float(low), float(high), unit, n)


def _largest(name: str, gain: Gain, comparisons: int) -> list[str]:
    """What the largest gain is, where none is significant."""
    if not gain.mean > 0:
        alone = " Each method was trained with one seed only." if gain.over != "seeds" else ""
        return [f"No method has a lower NLL.{alone}"]
    largest = f"The largest gain in NLL is that of {name}: {_number(gain.mean, gain)} ({_interval(gain)})."
    return [largest, *_about_interval(gain, comparisons)]


def _about_interval(gain: Gain, comparisons: int) -> list[str]:
    """What the interval is taken over, and for how many comparisons it holds."""
    if gain.low is None and 0 < gain.n < _FEWEST and gain.over != "seeds":
        return [
            f"No interval can be given: the {gain.n} {_UNITS[gain.over]} are too few for a bootstrap, which needs "
            f"{_FEWEST}. Take several seeds."
        ]
    if gain.low is None:
        return ["No interval can be given: that needs several seeds, or test examples with a score each."]
    methods = "" if comparisons == 1 else f" for all {comparisons} methods together"
    if gain.over == "seeds":
        few = " With so few seeds only a large gain can be significant." if gain.n < 4 else ""
        return [f"The interval is one of 95 %{methods} over {gain.n} seeds.{few}"]
    return [
        f"The interval is one of 95 %{methods} over the {gain.n:,} {_UNITS[gain.over]} (bootstrap). Each method was "
        "trained with one seed only, so another seed may give another gain."
    ]


def _without(left_out: Sequence[str]) -> list[str]:
    return [f"Left out, because the NLL is not finite: {', '.join(left_out)}."] if left_out else []


def _interval(gain: Gain) -> str:
    if gain.low is None or gain.high is None:
        return "no interval"
    return f"interval {_number(gain.low, gain)} to {_number(gain.high, gain)}"


def _number(value: float, gain: Gain) -> str:
    """A number with two digits of the largest number that stands beside it, and a true minus sign."""
    largest = max(abs(number) for number in (gain.mean, gain.low, gain.high) if number is not None)
    decimals = min(max(1 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 0
    text = f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) else text.replace("-", "")


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:.0f} times"
