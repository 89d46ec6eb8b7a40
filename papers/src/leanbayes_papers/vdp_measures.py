"""What the experiments of 002 share: networks by the weight of the KL, noise and pruning, and what they say."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.evaluation import accuracy_on, pruning_curve
from leanbayes.lab.statistics import anova, paired_t, spearman
from leanbayes_papers.base import Claim, Results, Verdict
from leanbayes_papers.judge import within
from leanbayes_papers.noise import SNRS, noise_curve
from leanbayes_papers.training import percent, repeatable

__all__ = [
    "POINT", "TESTS", "by_noise", "by_pruning", "differ", "equal", "falls", "keeps", "recipes", "together",
    "under_noise", "when_pruned",
]  # fmt: skip

_ALPHA = 0.01
TESTS = 5  # of a verdict: its intervals are of 1 − 0.05/5 = 99 %, so it is 002's paired t-test with α = 0.01
POINT = 0.01  # of accuracy
_BATCH = 500


def recipes(method: str, weights: Mapping[str, float], prior: str = "fitted") -> dict[str, str]:
    """A method trained from random weights, by what is added to its name for each weight of the KL.

    >>> recipes("vdp", {"": 0.1}, "normal")
    {'vdp': 'vdp:pretrain=0,prior=normal,init_scale=0.01,kl_start=0.1,kl_end=0.1'}
    """
    options = f"pretrain=0,prior={prior},init_scale=0.01"
    return {f"{method}{name}": f"{method}:{options},kl_start={kl},kl_end={kl}" for name, kl in weights.items()}


def under_noise(
    model: nn.Module, x: Tensor, y: Tensor, samples: int, what: str = "", batch: int = _BATCH
) -> dict[str, float]:
    """Accuracy and output variance at each SNR; ``what`` is added to their names."""
    found = noise_curve(repeatable(model), x, y, samples=samples, batch_size=batch)
    columns = {"accuracy": found.score.tolist(), "variance": found.variance.tolist()}
    return {
        f"{name}{what}@{snr:g} dB": value
        for name, values in columns.items()
        for snr, value in zip(SNRS, values, strict=True)
    }


def when_pruned(model: nn.Module, x: Tensor, y: Tensor, samples: int, fractions: Sequence[float]) -> dict[str, float]:
    """Accuracy by the share pruned by L1 norm, from 90 % on also by |μ|/σ where it is known; what is lost at 90 %."""
    right = accuracy_on(x, y, samples=samples, batch_size=_BATCH)

    def accuracies(by: Literal["l1", "snr"], some: Sequence[float], told: str) -> dict[str, float]:
        values = pruning_curve(model, lambda thin: right(repeatable(thin)), some, by=by).values.tolist()
        return {f"accuracy@{percent(f)} {told}": value for f, value in zip(some, values, strict=True)}

    found = accuracies("l1", fractions, "pruned")
    found["lost at 90 %"] = found["accuracy@0 % pruned"] - found["accuracy@90 % pruned"]
    if isinstance(model, Bayesian):
        found |= accuracies("snr", [fraction for fraction in fractions if fraction >= 0.9], "pruned by ratio")
    return found


def keeps(results: Results, claim: Claim, method: str) -> Verdict:
    """Whether at most a point of accuracy is lost when 90 % are pruned."""
    values = list(results.column("lost at 90 %", method).values())
    return within(claim, values, -1, POINT, f"{method}: accuracy lost at 90 %")


def falls(results: Results, claim: Claim, method: str) -> Verdict:
    """Whether the output variance falls as the SNR rises: Spearman's ρ < 0 with p < α."""
    values = _curve(results, method, "variance")
    try:
        found = spearman(SNRS, values)
    except InputError as error:
        return _untestable(claim, error)
    one = values[0] or 1.0
    told = ", ".join(f"{snr:g} dB: {value / one:.3f}" for snr, value in zip(SNRS, values, strict=True))
    return _answered(claim, found.rho < 0 and found.p < _ALPHA, f"{method}: {told}; ρ {found.rho:.3f}, p {found.p:.2g}")


def together(results: Results, claim: Claim, method: str, measures: Mapping[str, str]) -> Verdict:
    """Whether the first two of a method's measures by SNR, here by names, rise and fall together: ρ > 0 with p < α."""
    curves = {name: _curve(results, method, measure) for name, measure in measures.items()}
    try:
        found = spearman(*list(curves.values())[:2])
    except InputError as error:
        return _untestable(claim, error)
    why = (
        f"{method}: ρ {found.rho:.3f}, p {found.p:.2g}, which says that both fall together, not that they are equal: "
        f"the mean over SNRs is {_means(curves)}"
    )
    return _answered(claim, found.rho > 0 and found.p < _ALPHA, why)


def equal(results: Results, claim: Claim, measure: str, methods: Sequence[str]) -> Verdict:
    """Whether a one-way ANOVA finds no difference between the methods: p > α."""
    groups = {method: list(results.column(measure, method).values()) for method in methods}
    try:
        found = anova(groups)
    except InputError as error:
        return _untestable(claim, error)
    return _answered(claim, found.p > _ALPHA, f"{measure}: {_means(groups)}; F {found.F:.3g}, p {found.p:.2g}")


def differ(results: Results, claim: Claim, measures: Sequence[str], methods: Sequence[str]) -> Verdict:
    """Whether paired t-tests tell every two methods apart by every measure: p < α."""
    told, least = [], []
    for measure in measures:
        for a, b in combinations(methods, 2):
            first, second = (results.column(measure, method) for method in (a, b))
            shared = [key for key in first if key in second]
            try:
                found = paired_t([first[key] for key in shared], [second[key] for key in shared])
            except InputError as error:
                return _untestable(claim, error)
            assert found.p is not None
            told.append(f"{measure}, {a} and {b}: apart by {found.difference:.3g}, p {found.p:.2g}")
            least.append(found.p)
    return _answered(claim, max(least) < _ALPHA, "; ".join(told))


def _curve(results: Results, method: str, measure: str) -> list[float]:
    """The mean over seeds at each SNR."""
    columns = [list(results.column(f"{measure}@{snr:g} dB", method).values()) for snr in SNRS]
    return [sum(values) / len(values) for values in columns if values]


def _means(columns: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {sum(values) / len(values):.4g}" for name, values in columns.items() if values)


def _answered(claim: Claim, true: bool, why: str) -> Verdict:
    return Verdict(claim, "holds" if true else "does not hold", why)


def _untestable(claim: Claim, error: InputError) -> Verdict:
    return Verdict(claim, "not testable here", str(error))


def by_noise(results: Results, measure: str) -> dict[str, dict[float, list[float]]]:
    """The series of a figure: a measure by SNR; the variance relative to that at the lowest (002, figure 3)."""
    series: dict[str, dict[float, list[float]]] = {}
    for method in results.methods():
        scale = _curve(results, method, measure)[:1] if measure == "variance" else [1.0]
        if scale and scale[0] > 0:
            series[method] = {
                snr: [value / scale[0] for value in results.column(f"{measure}@{snr:g} dB", method).values()]
                for snr in SNRS
            }
    return series


def by_pruning(results: Results, fractions: Sequence[float]) -> dict[str, dict[float, list[float]]]:
    """The series of a figure: accuracy by the share pruned by L1 norm, in percent (002, figure 2)."""
    return {
        method: {100 * f: list(results.column(f"accuracy@{percent(f)} pruned", method).values()) for f in fractions}
        for method in results.methods()
    }
