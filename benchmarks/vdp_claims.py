"""The statistics of `vdp_mnist.py`: 002's tests on the runs, and what they say of its claims. Numbers in, JSON out.

Seeds are shared by the methods (initial weights, order of the images, noise), so tests are paired; 002 does not say
whether its were. As in 002 α = 0.01.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from leanbayes.errors import InputError
from leanbayes.evaluate.noise import SNRS
from leanbayes.evaluate.statistics import anova, interval, paired_t, paired_tests, spearman

ALPHA = 0.01
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
MEASURES = ("sensitivity_max", "infidelity", "infidelity_signed")
BAYESIAN = ("vi", "vdp")
WAYS = ("covariance", "moments", "sample")  # to propagate one trained network
_HIGH = (0.9, 0.95)
_POINT = 0.01  # of accuracy

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def tests(runs: Runs, vits: Runs) -> dict[str, Any]:
    """All of 002's tests; None where there are too few seeds, or no spread, to make one."""
    worst, low = SNRS.index(min(SNRS)), [f for f in FRACTIONS if f < 0.9]
    high = [f for f in FRACTIONS if f > 0.9]
    plain = _column(runs, "accuracy_by_snr", worst)["deterministic"]
    ranges = {name: (_pruned(rows, low), _pruned(rows, high)) for name, rows in runs.items()}
    return {
        "anova_of_accuracy": _tried(anova, _column(runs, "accuracy")),
        "accuracy_at_-6dB_minus_deterministic": {
            name: _tried(paired_t, _column(runs, "accuracy_by_snr", worst)[name], plain) for name in BAYESIAN
        },
        "below_90%_minus_above_90%_pruned": {name: _tried(paired_t, *both) for name, both in ranges.items()},
        "unpruned_minus_pruned": {
            name: {f: _tried(paired_t, _pruned(rows, [0.0]), _pruned(rows, [f])) for f in FRACTIONS[1:]}
            for name, rows in runs.items()
        },
        "vdp_minus_others_pruned": {
            other: {f: _tried(paired_t, _pruned(runs["vdp"], [f]), _pruned(runs[other], [f])) for f in FRACTIONS}
            for other in ("deterministic", "vi")
        },
        "explanations": {measure: _tried_all(paired_tests, _column(runs, measure)) for measure in MEASURES},
        "spearman_of_variance": {
            **{f"{one} and {two}": _ways(runs["vdp"], one, two) for one, two in combinations(WAYS, 2)},
            **{f"snr and {name}": _tried(spearman, SNRS, _mean_curve(runs[name])) for name in BAYESIAN},
            "snr and vit": _tried(spearman, SNRS, _mean_curve(vits["vdp"])),
        },
        "normalised_variance_by_snr": {
            **{name: _mean_curve(runs[name]) for name in BAYESIAN},
            "vit": _mean_curve(vits["vdp"]),
            **{f"vdp by {way}": _mean_curve(runs["vdp"], way) for way in WAYS},
        },
    }


def summary(runs: Mapping[str, Runs]) -> dict[str, Any]:
    """Mean and 95 % interval over seeds of each number, network by network and method by method."""
    return {
        network: {name: _over_seeds([dict(row) for row in rows]) for name, rows in methods.items()}
        for network, methods in runs.items()
    }


def verdicts(runs: Runs, vits: Runs, tested: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[Any]:
    """002's claims that MNIST can decide, each with what the numbers say."""
    found = [
        _equal(runs, tested),
        _prunes(runs, tested),
        _prunes_better(tested),
        _bbb_does_not_compress(tested),
        _robust(runs, tested),
        _same_variance(runs, tested),
        _variance_falls(runs, tested, "snr and vdp", "Figure 3: the normalised output variance falls as the SNR rises"),
        _explanations_differ(tested),
        _sensitivity(runs, tested),
        _infidelity(runs, tested),
        _variance_falls(
            vits,
            tested,
            "snr and vit",
            "section 4: “we trained a small ViT on MNIST and confirmed noise robustness using the variance vs SNR "
            "experiment”",
        ),
        *_balance(tried),
    ]
    for claim, why in NOT_HERE:
        found.append(_verdict(claim, None, why))
    return found


NOT_HERE = (
    (
        "section 4: VDP Cov “takes nearly 10x longer” and 10x the memory; VDP++ “reduces the average epoch time by "
        "about 4x”, memory by 10x",
        "a matter of cost, not of these runs: measured by benchmarks/moments_cost.py",
    ),
    (
        "section 4: “The VDP Cov and VDP++ approaches perform similarly on MNIST” when pruned",
        "training with full covariance takes about half a second an image here; only predictions are compared",
    ),
    ("section 4 and Figure 5: CIFAR-10 with ResNet-18, ImageNet-1k with ViT-S/16", "only MNIST is measured here"),
)


def _equal(runs: Runs, tested: Mapping[str, Any]) -> Any:
    test = tested["anova_of_accuracy"]
    claim = "section 4: test accuracies “were not significantly different from one another (p>0.01)”, one-way ANOVA"
    return _verdict(claim, test and test["p"] > ALPHA, f"{_means(_column(runs, 'accuracy'))}; {_p(test)}")


def _prunes(runs: Runs, tested: Mapping[str, Any]) -> Any:
    ranges = tested["below_90%_minus_above_90%_pruned"]["vdp"]
    at_90 = tested["unpruned_minus_pruned"]["vdp"][0.9]
    claim = (
        "section 4: “VDP++ is able to prune > 90% of its parameters before the performance begins to drop "
        "significantly”, by a t-test of < 90 % against > 90 %"
    )
    kept = (
        at_90 and at_90["difference"] < _POINT
    )  # few seeds make a large loss "not significant": it is one all the same
    dropped_late = ranges and at_90 and _significant(ranges) and kept
    curve = ", ".join(f"{f:.0%}: {_mean(_pruned(runs['vdp'], [f])):.4f}" for f in FRACTIONS)
    why = (
        f"accuracy by share pruned: {curve}; below against above 90 %: {_p(ranges)}; unpruned against 90 %: {_p(at_90)}"
        "; it holds if at most a point is lost at 90 %"
    )
    return _verdict(claim, dropped_late, why)


def _prunes_better(tested: Mapping[str, Any]) -> Any:
    rows = {(other, f): tested["vdp_minus_others_pruned"][other][f] for other in ("deterministic", "vi") for f in _HIGH}
    claim = "Figure 2: VDP types “have superior self-compressing properties” to DET and BBB with 90 % and more removed"
    better = all(row and _significant(row) and row["difference"] > 0 for row in rows.values())
    told = "; ".join(f"at {f:.0%} against {other}: {_p(row)}" for (other, f), row in rows.items())
    return _verdict(claim, None if not all(rows.values()) else better, told)


def _bbb_does_not_compress(tested: Mapping[str, Any]) -> Any:
    rows = {name: tested["unpruned_minus_pruned"][name][0.9] for name in ("deterministic", "vi")}
    claim = "section 2: Bayes by Backprop “appear[s] to lack this property” of self-compression"
    known = all(row and row["p"] is not None for row in rows.values())
    lacks = known and rows["vi"]["difference"] >= rows["deterministic"]["difference"]
    why = "; ".join(f"{name} loses at 90 % pruned: {_p(row)}" for name, row in rows.items())
    return _verdict(claim, lacks if known else None, f"{why}; it lacks it if it loses as much as the deterministic one")


def _robust(runs: Runs, tested: Mapping[str, Any]) -> Any:
    rows = tested["accuracy_at_-6dB_minus_deterministic"]
    claim = (
        "section 4, Figure 1c: at -6 dB “the Bayesian models (BBB, VDP Cov, VDP++) all significantly outperform the "
        "deterministic network”"
    )
    holds = all(row and _significant(row) and row["difference"] > 0 for row in rows.values())
    means = _means(_column(runs, "accuracy_by_snr", SNRS.index(min(SNRS))))
    told = "; ".join(f"{name}: {_p(row)}" for name, row in rows.items())
    return _verdict(claim, holds if all(rows.values()) else None, f"{means}; {told}; VDP Cov is not trained here")


def _same_variance(runs: Runs, tested: Mapping[str, Any]) -> Any:
    test = tested["spearman_of_variance"]["covariance and moments"]
    sizes = {way: [_mean(row["propagated"][way]["variance"]) for row in runs["vdp"]] for way in WAYS}
    claim = "section 4: of variance against SNR of VDP Cov and VDP++ “no significant difference (Spearman … p < 0.01)”"
    why = (
        f"{_p(test)}; a small p says that two curves fall together, not that they are equal: the variance of the same "
        f"networks on the same few images, mean over SNRs, is by {_means(sizes)}. VDP Cov is not trained here"
    )
    return _verdict(claim, test and test["rho"] > 0 and test["p"] < ALPHA, why)


def _variance_falls(runs: Runs, tested: Mapping[str, Any], key: str, claim: str) -> Any:
    test, curve = tested["spearman_of_variance"][key], _mean_curve(runs["vdp"])
    told = ", ".join(f"{snr:g} dB: {value:.3f}" for snr, value in zip(SNRS, curve, strict=True))
    noisy = _means(_column(runs, "accuracy_by_snr", SNRS.index(min(SNRS))))
    why = f"{told}; {_p(test)}; accuracy {_means(_column(runs, 'accuracy'))}, at -6 dB {noisy}"
    return _verdict(claim, test and test["rho"] < 0 and test["p"] < ALPHA, why)


def _explanations_differ(tested: Mapping[str, Any]) -> Any:
    pairs = {
        f"{measure}, {pair}": test
        for measure in ("sensitivity_max", "infidelity")
        for pair, test in (tested["explanations"][measure] or {}).items()
    }
    told = "; ".join(f"{name}: {_p(test)}" for name, test in pairs.items())
    known = bool(pairs) and all(test["p"] is not None for test in pairs.values())
    claim = "section 4: explanations: “significant differences between methods for all experiments (p < 0.01)”"
    return _verdict(claim, all(map(_significant, pairs.values())) if known else None, told)


def _sensitivity(runs: Runs, tested: Mapping[str, Any]) -> Any:
    test = (tested["explanations"]["sensitivity_max"] or {}).get("deterministic vs vdp")
    claim = "section 4: “The deterministic method narrowly outperformed VDP++ by Sensitivity Max” (lower is better)"
    holds = test and _significant(test) and test["difference"] < 0
    return _verdict(claim, holds, f"{_means(_column(runs, 'sensitivity_max'))}; {_p(test)}")


def _infidelity(runs: Runs, tested: Mapping[str, Any]) -> Any:
    pairs = [(tested["explanations"]["infidelity"] or {}).get(f"{other} vs vdp") for other in ("deterministic", "vi")]
    signed = [
        (tested["explanations"]["infidelity_signed"] or {}).get(f"{other} vs vdp") for other in ("deterministic", "vi")
    ]
    claim = "section 4: “VDP++ significantly outperformed all methods by Infidelity” (lower is better)"
    holds = all(test and _significant(test) and test["difference"] > 0 for test in pairs)
    why = (
        f"of absolute gradients, as 002's code: {_means(_column(runs, 'infidelity'))}; {'; '.join(map(_p, pairs))}. "
        f"With their signs: {_means(_column(runs, 'infidelity_signed'))}; {'; '.join(map(_p, signed))}"
    )
    return _verdict(claim, holds if all(pairs) else None, why)


def _balance(tried: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What the search showed: one seed and no test, so numbers without a judgement."""
    rows = sorted(tried, key=lambda row: row["kl_weight"])
    names = ("accuracy", "accuracy_at_-6dB", "accuracy_90%_pruned")
    told = "; ".join(f"KL weight {row['kl_weight']:g}: " + _list(row[name] for name in names) for row in rows)
    why = f"the search has one seed; there the validation accuracy, that at -6 dB and that at 90 % pruned were: {told}"
    claims = (
        "section 5: when the KL dominates, “the model compresses itself at the cost of performance”",
        "section 5: with too small a KL weight models “lack the inherent properties like self-compression and noise "
        "robustness”",
    )
    return [_verdict(claim, None, why) for claim in claims]


def _verdict(claim: str, holds: Any, why: str) -> dict[str, str]:
    words = "not testable here" if holds is None else "holds" if holds else "does not hold"
    return {"claim": claim, "verdict": words, "why": why}


def _column(runs: Runs, name: str, place: int | None = None) -> dict[str, list[float]]:
    return {method: [row[name] if place is None else row[name][place] for row in rows] for method, rows in runs.items()}


def _pruned(rows: Sequence[Mapping[str, Any]], fractions: Sequence[float]) -> list[float]:
    """Of each seed, the mean accuracy over these fractions."""
    return [_mean([row["accuracy_by_pruned"][FRACTIONS.index(f)] for f in fractions]) for row in rows]


def _mean_curve(rows: Sequence[Mapping[str, Any]], way: str | None = None) -> list[float]:
    """The variance by SNR, the mean over seeds, normalised by that at the lowest (002, Figure 3)."""
    curves = [row["variance_by_snr"] if way is None else row["propagated"][way]["variance"] for row in rows]
    means = [_mean(values) for values in zip(*curves, strict=True)]
    return [mean / means[SNRS.index(min(SNRS))] for mean in means]


def _ways(rows: Sequence[Mapping[str, Any]], one: str, two: str) -> Any:
    return _tried(spearman, _mean_curve(rows, one), _mean_curve(rows, two))


def _tried(test: Callable[..., Any], *values: Any) -> dict[str, Any] | None:
    try:
        return asdict(test(*values))
    except InputError:
        return None


def _tried_all(test: Callable[..., Mapping[str, Any]], groups: Any) -> dict[str, Any] | None:
    try:
        return {pair: asdict(found) for pair, found in test(groups).items()}
    except InputError:
        return None


def _over_seeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, list):
            found[name] = [asdict(interval(column)) for column in zip(*values, strict=True)]
        elif isinstance(first, float):
            found[name] = asdict(interval(values))
    return found


def _significant(test: Mapping[str, Any]) -> bool:
    return test["p"] is not None and test["p"] < ALPHA


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _means(columns: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {_mean(values):.4g}" for name, values in columns.items())


def _list(values: Any) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def _p(test: Mapping[str, Any] | None) -> str:
    """What a test found, in a few words."""
    if test is None or test["p"] is None:
        return "no test (too few seeds, or no spread)"
    parts = [f"{name} {test[name]:+.4g}" for name in ("difference", "rho") if name in test]
    return " ".join([*parts, f"p {test['p']:.2g}"])
