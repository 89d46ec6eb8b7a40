"""What the studies of VDP++ share: networks by the weight of the KL, noise and pruning, and verdicts on both."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.lab.statistics import anova, paired_t, spearman
from leanbayes_papers.noise import SNRS, noise_curve
from leanbayes_papers.pruning import accuracy_on, pruning_curve
from leanbayes_papers.study import Claim, Results, Verdict
from leanbayes_papers.training import percent, repeatable
from leanbayes_papers.verdicts import within

__all__ = [
    "POINT", "TESTS", "by_noise", "by_pruning", "differ", "equal", "falls", "keeps", "recipes", "together",
    "under_noise", "when_pruned",
]  # fmt: skip

_ALPHA = 0.01
TESTS = 5  # intervals of 1 − 0.05/5 = 99 % make each verdict the paired t-test with α = 0.01 of VDP++
POINT = 0.01  # one percentage point of accuracy
_BATCH = 500


def recipes(method: str, weights: Mapping[str, float], prior: str = "fitted") -> dict[str, str]:
    """Return the recipes of a method that starts from random weights, for several weights of the KL.

    ``weights`` gives the weight of the KL by the text that is added to the name of the method.

    >>> recipes("vdp", {"": 0.1}, "normal")
    {'vdp': 'vdp:pretrain=0,prior=normal,init_scale=0.01,kl_start=0.1,kl_end=0.1'}
    """
    options = f"pretrain=0,prior={prior},init_scale=0.01"
    return {f"{method}{name}": f"{method}:{options},kl_start={kl},kl_end={kl}" for name, kl in weights.items()}


def under_noise(
    model: nn.Module, x: Tensor, y: Tensor, samples: int, what: str = "", batch: int = _BATCH
) -> dict[str, float]:
    """Return accuracy and output variance at each signal-to-noise ratio (SNR); ``what`` is added to their names."""
    curve = noise_curve(repeatable(model), x, y, samples=samples, batch_size=batch)
    columns = {"accuracy": curve.score.tolist(), "variance": curve.variance.tolist()}
    return {
        f"{name}{what}@{snr:g} dB": value
        for name, values in columns.items()
        for snr, value in zip(SNRS, values, strict=True)
    }


def when_pruned(model: nn.Module, x: Tensor, y: Tensor, samples: int, fractions: Sequence[float]) -> dict[str, float]:
    """Return the accuracy by the share of weights that is pruned by size, and the loss of accuracy at 90 %.

    For a network with random weights, shares from 90 % on are pruned by |μ|/σ too.
    """
    right = accuracy_on(x, y, samples=samples, batch_size=_BATCH)

    def accuracies(by: Literal["l1", "snr"], shares: Sequence[float], suffix: str) -> dict[str, float]:
        values = pruning_curve(model, lambda thin: right(repeatable(thin)), shares, by=by).values.tolist()
        return {f"accuracy@{percent(share)} {suffix}": value for share, value in zip(shares, values, strict=True)}

    metrics = accuracies("l1", fractions, "pruned")
    metrics["lost at 90 %"] = metrics["accuracy@0 % pruned"] - metrics["accuracy@90 % pruned"]
    if isinstance(model, Bayesian):
        metrics |= accuracies("snr", [fraction for fraction in fractions if fraction >= 0.9], "pruned by ratio")
    return metrics


def keeps(results: Results, claim: Claim, method: str) -> Verdict:
    """Judge whether pruning 90 % of the weights costs at most a point of accuracy."""
    values = list(results.column("lost at 90 %", method).values())
    return within(claim, values, -1, POINT, f"{method}: accuracy lost at 90 %")


def falls(results: Results, claim: Claim, method: str) -> Verdict:
    """Judge whether the output variance falls as the SNR rises: Spearman's ρ < 0 with p < α."""
    values = _curve(results, method, "variance")
    try:
        test = spearman(SNRS, values)
    except InputError as error:
        return _untestable(claim, error)
    unit = values[0] or 1.0
    curve = ", ".join(f"{snr:g} dB: {value / unit:.3f}" for snr, value in zip(SNRS, values, strict=True))
    why = f"output variance of {method} by SNR, relative to the first: {curve}; ρ {test.rho:.3f}, p {test.p:.2g}"
    return _answered(claim, test.rho < 0 and test.p < _ALPHA, why)


def together(results: Results, claim: Claim, method: str, measures: Mapping[str, str]) -> Verdict:
    """Judge whether two measures of a method rise and fall together with the SNR: Spearman's ρ > 0 with p < α.

    ``measures`` gives measures by the names that the verdict uses; the first two are compared.
    """
    curves = {name: _curve(results, method, measure) for name, measure in measures.items()}
    try:
        test = spearman(*list(curves.values())[:2])
    except InputError as error:
        return _untestable(claim, error)
    why = (
        f"{method}: ρ {test.rho:.3f}, p {test.p:.2g}; this shows that both fall together, not that they are equal: "
        f"the means over all SNRs are {_means(curves)}"
    )
    return _answered(claim, test.rho > 0 and test.p < _ALPHA, why)


def equal(results: Results, claim: Claim, measure: str, methods: Sequence[str]) -> Verdict:
    """Judge whether a one-way ANOVA finds no difference between the methods: p > α."""
    groups = {method: list(results.column(measure, method).values()) for method in methods}
    try:
        test = anova(groups)
    except InputError as error:
        return _untestable(claim, error)
    return _answered(claim, test.p > _ALPHA, f"{measure}: {_means(groups)}; F {test.F:.3g}, p {test.p:.2g}")


def differ(results: Results, claim: Claim, measures: Sequence[str], methods: Sequence[str]) -> Verdict:
    """Judge whether paired t-tests find a difference between every two methods in every measure: p < α."""
    reasons, p_values = [], []
    for measure in measures:
        for a, b in combinations(methods, 2):
            first, second = (results.column(measure, method) for method in (a, b))
            shared = [key for key in first if key in second]
            try:
                test = paired_t([first[key] for key in shared], [second[key] for key in shared])
            except InputError as error:
                return _untestable(claim, error)
            assert test.p is not None
            reasons.append(f"{measure}: {a} minus {b} {test.difference:.3g}, p {test.p:.2g}")
            p_values.append(test.p)
    return _answered(claim, max(p_values) < _ALPHA, "; ".join(reasons))


def _curve(results: Results, method: str, measure: str) -> list[float]:
    """Return the mean over seeds at each SNR."""
    columns = [list(results.column(f"{measure}@{snr:g} dB", method).values()) for snr in SNRS]
    return [sum(values) / len(values) for values in columns if values]


def _means(columns: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {sum(values) / len(values):.4g}" for name, values in columns.items() if values)


def _answered(claim: Claim, true: bool, why: str) -> Verdict:
    return Verdict(claim, "holds" if true else "does not hold", why)


def _untestable(claim: Claim, error: InputError) -> Verdict:
    return Verdict(claim, "not testable here", str(error))


def by_noise(results: Results, measure: str) -> dict[str, dict[float, list[float]]]:
    """Return a measure by SNR for a figure; a variance is relative to that at the lowest SNR (VDP++, figure 3)."""
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
    """Return the accuracy by the percentage of weights pruned by size, for a figure (VDP++, figure 2)."""
    return {
        method: {100 * f: list(results.column(f"accuracy@{percent(f)} pruned", method).values()) for f in fractions}
        for method in results.methods()
    }
