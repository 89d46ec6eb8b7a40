"""Do the promises of `leanbayes.conformal` hold for tiny calibration sets? Writes docs/results/conformal_promise.json.

    python benchmarks/conformal_promise.py [--calibrations 2000] [--only sets parts intervals shift risk referral]

Each promise is simulated with thousands of calibrations on data whose law is known, with networks that are wrong about
it. With n continuous scores, the number of 100 new examples that one calibration covers is beta-binomial with the
parameters k and n + 1 − k, k = ⌈(n + 1)·level⌉. The record compares the mean with that of the law or with the promise,
in standard errors, and the counts with the law by a χ² test. No data set is needed.
"""

import argparse
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from scipy.stats import betabinom, chi2
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.conformal import APS, RAPS, Intervals, Quantiles, Referral, RiskControl, Sets
from leanbayes.conformal.quantiles import rank_of
from leanbayes.metrics.nested_masks import GRID, count_masks

NEW = 100
Pair = tuple[Tensor, Tensor]
Row = dict[str, Any]


def seeded(seed: int) -> torch.Generator:
    """Return a source of random numbers."""
    return torch.Generator().manual_seed(seed)


def classes(source: torch.Generator, count: int, shift: float = 0.0, tied: bool = False) -> Pair:
    """Draw logits of four classes, and classes that fit to weaker logits: the network is too sure."""
    logits = 1.5 * torch.randn(count, 4, generator=source)
    logits[:, 0] += shift
    logits = (2 * logits).round() / 2 if tied else logits
    true = (0.6 * logits + torch.tensor([0.5, 0.0, 0.0, -0.5])).softmax(1)
    return logits, torch.multinomial(true, 1, generator=source)[:, 0]


def hits(sets: Tensor, y: Tensor) -> Tensor:
    """Return whether each set holds the class."""
    return sets.gather(1, y[:, None])[:, 0]


def compared(counts: list[int], new: int, level: float, law: tuple[int, int] | None) -> Row:
    """Compare how many of the new examples each calibration covered with the promise, and with the exact law."""
    covered = torch.tensor(counts, dtype=torch.float64)
    mean, error = (covered.mean() / new).item(), (covered.std() / new / math.sqrt(len(counts))).item()
    row: Row = {"coverage": mean, "error": error, "promised": level, "errors_above_promise": (mean - level) / error}
    if law is not None:
        exact = betabinom(new, *law)
        edges = sorted({-1, *(int(exact.ppf(tenth / 10)) for tenth in range(1, 10)), new})
        expected = [len(counts) * (exact.cdf(b) - exact.cdf(a)) for a, b in pairwise(edges)]
        seen = [((covered > a) & (covered <= b)).sum().item() for a, b in pairwise(edges)]
        distance = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
        row |= {"law": exact.mean() / new, "errors_from_law": (mean - exact.mean() / new) / error}
        row["p_of_law"] = float(chi2.sf(distance, len(edges) - 2))
    return row


def law_of(count: int, level: float) -> tuple[int, int]:
    """Return the parameters of the beta-binomial law of coverage."""
    rank = rank_of(count, level)
    return rank, count + 1 - rank


# ---------------------------------------------------------------- sets


def sets(repeats: int) -> dict[str, Row]:
    """Simulate sets over all inputs; scores with ties promise at least the level, the others the exact law."""
    cases: dict[str, tuple[int, float, bool, bool, dict[str, Any]]] = {
        "lac, n = 9": (9, 0.9, False, True, {"score": "lac"}),
        "lac, n = 12": (12, 0.9, False, True, {"score": "lac"}),
        "lac, n = 1, level 0.5": (1, 0.5, False, True, {"score": "lac"}),
        "aps, randomised, n = 9": (9, 0.9, False, True, {"score": "aps"}),
        "aps, not randomised, n = 9": (9, 0.9, False, True, {"score": APS(randomised=False)}),
        "raps, n = 9": (9, 0.9, False, True, {"score": RAPS(penalty=0.1, free=1)}),
        "top_k, n = 9": (9, 0.9, False, False, {"score": "top_k"}),
        "lac, tied, n = 9": (9, 0.9, True, False, {"score": "lac"}),
        "aps, tied, n = 5, level 0.8": (5, 0.8, True, False, {"score": APS(randomised=False)}),
        "lac, no set empty, n = 9": (9, 0.9, False, False, {"score": "lac", "empty": "top"}),
    }
    rows = {}
    for name, (count, level, tied, continuous, settings) in cases.items():
        counts = []
        for seed in range(repeats):
            x, y = classes(seeded(seed), count + NEW, tied=tied)
            predictor = Sets(nn.Identity(), level, **settings).calibrate([(x[:count], y[:count])])
            counts.append(int(hits(predictor.sets(x[count:]), y[count:]).sum()))
        rows[f"sets, {name}"] = compared(counts, NEW, level, law_of(count, level) if continuous else None)
    return rows


def parts(repeats: int) -> dict[str, Row]:
    """Simulate guarantees for each class and for each group, with nine calibration examples of each."""

    def by_class(x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
        return y

    def by_group(x: Tensor, y: Tensor | None = None) -> Tensor:  # noqa: ARG001
        return (x[:, 0] > 1).long()

    ways: dict[str, tuple[Callable[..., Tensor], Any, int]] = {
        "class": (by_class, "class", 4),
        "group": (by_group, by_group, 2),
    }
    rows = {}
    for word, (part_of, per, number) in ways.items():
        counts: list[list[int]] = [[] for _ in range(number)]
        for seed in range(repeats):
            x, y = classes(seeded(seed), 600)
            places = [(part_of(x, y) == part).nonzero()[:, 0] for part in range(number)]
            chosen = torch.cat([place[:9] for place in places])
            predictor = Sets(nn.Identity(), 0.9, "lac", per).calibrate([(x[chosen], y[chosen])])
            for part, place in enumerate(places):
                new = place[9:39]
                counts[part].append(int(hits(predictor.sets(x[new]), y[new]).sum()))
        for part in range(number):
            rows[f"sets, lac, {word} {part}, n = 9"] = compared(counts[part], 30, 0.9, law_of(9, 0.9))
    return rows


# ---------------------------------------------------------------- intervals


class _Noisy(nn.Module):
    """Predicts the first input, and from the second one a noise that is too small."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], 2 * (x[:, 1].abs() / 2 + 0.1).log()], 1)


def numbers(source: torch.Generator, count: int) -> Pair:
    """Draw inputs, and targets with skewed noise."""
    x = torch.randn(count, 2, generator=source)
    noise = (x[:, 1:].abs() + 0.1) * torch.empty(count, 1).exponential_(generator=source)
    return x, x[:, :1] + noise


def intervals(repeats: int) -> dict[str, Row]:
    """Simulate all intervals. Those with two thresholds miss each side with probability 1/20, exactly if n = 19."""
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        str(score): (9, {"score": score}) for score in ("absolute", "scaled", "quantiles", Quantiles("draws"))
    }
    cases |= {
        f"{score}, asymmetric": (19, {"score": score, "asymmetric": True})
        for score in ("absolute", "scaled", "quantiles")
    }
    rows = {}
    for name, (count, settings) in cases.items():
        counts = []
        for seed in range(repeats):
            x, y = numbers(seeded(seed), count + NEW)
            predictor = Intervals(_Noisy(), 0.9, likelihood=lb.Gaussian("input"), **settings)
            lower, upper = predictor.calibrate([(x[:count], y[:count])]).intervals(x[count:])
            counts.append(int(((y[count:] >= lower) & (y[count:] <= upper)).sum()))
        law = None if "asymmetric" in settings else law_of(count, 0.9)
        rows[f"intervals, {name}, n = {count}"] = compared(counts, NEW, 0.9, law)
    return rows


# ---------------------------------------------------------------- known shift


def shift(repeats: int) -> dict[str, Row]:
    """Simulate weights: the first logit of new inputs has another mean, for which the ratio of densities is known."""
    amount, variance, rows = -2.0, 1.5**2, {}

    def ratio(x: Tensor) -> Tensor:
        return (x[:, 0] * amount / variance).exp()

    for count in (10, 40):
        counts: dict[str, list[int]] = {"with weights": [], "without weights": []}
        for seed in range(repeats):
            source = seeded(seed)
            (x, y), (new, labels) = classes(source, count), classes(source, NEW, shift=amount)
            for name in counts:
                weight = ratio if name == "with weights" else None
                predictor = Sets(nn.Identity(), 0.9, "lac").calibrate([(x, y)], weight=weight)
                counts[name].append(int(hits(predictor.sets(new), labels).sum()))
        for name, of in counts.items():
            rows[f"shift, {name}, n = {count}"] = compared(of, NEW, 0.9, None)
    return rows


# ---------------------------------------------------------------- masks and referral


def cases_of(source: torch.Generator, count: int) -> Pair:
    """Draw logits of 6x6 pixels and masks with one or two lesions, of which some are hard to see."""
    noise = 3 * torch.rand(count, 1, 1, generator=source)
    truth = torch.zeros(count, 6, 6)
    truth[:, 1:4, 1:4] = 1
    truth[:, 5, 5] = (torch.rand(count, generator=source) < 0.5).float()
    score = 1.2 * (2 * truth - 1) + noise * torch.randn(count, 6, 6, generator=source)
    return torch.stack([-score, score], 1), truth.long()


def risk(repeats: int) -> dict[str, Row]:
    """Simulate risk control. The true risk of each threshold is the mean over 10,000 cases."""
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "false negatives, n = 9": (9, {}),
        "false negatives by uncertainty, n = 12": (12, {"by": "total"}),
        "missed lesions, n = 9": (9, {"risk": "missed_lesions"}),
        "false positives, n = 9": (9, {"risk": "false_positives"}),
        "false negatives with confidence 0.9, n = 30": (30, {"confidence": 0.9}),
        "false positives with confidence 0.9, n = 30": (30, {"risk": "false_positives", "confidence": 0.9}),
    }
    x, y = cases_of(seeded(10**6), 10_000)
    rows = {}
    for name, (count, settings) in ways.items():
        control = RiskControl(nn.Identity(), level=0.1, **settings)
        prediction = control.prediction(x)
        truth, counted = control._truth(prediction, y)
        curve = control.risk.losses(count_masks(control._scores(prediction), truth, counted)).mean(0)
        risks = []
        for seed in range(repeats):
            control.calibrate([cases_of(seeded(seed), count)])
            risks.append(curve[int(torch.searchsorted(GRID, control.thresholds[0]))])
        each = torch.stack(risks)
        rows[f"risk, {name}"] = {
            "mean_risk": each.mean().item(),
            "error": (each.std() / math.sqrt(repeats)).item(),
            "promised": 0.1,
            "share_of_calibrations_above": (each > 0.1).double().mean().item(),
        }
    return rows


def referral(repeats: int) -> dict[str, Row]:
    """Simulate referral: how often is the true error among what is decided alone above the promise?"""
    rows = {}
    for by, width in (("confidence", 2.5), ("confidence", 4.0), ("total", 4.0)):

        def draw(source: torch.Generator, count: int, width: float = width) -> Pair:
            logits = width * torch.randn(count, 3, generator=source)
            return logits, torch.multinomial((0.7 * logits).softmax(1), 1, generator=source)[:, 0]

        x, y = draw(seeded(10**6), 100_000)
        rule = Referral(nn.Identity(), error=0.1, confidence=0.9, by=by)  # type: ignore[arg-type]
        doubt, wrong = rule._doubt(rule.prediction(x)), x.argmax(1) != y
        broken, shares = 0, []
        for seed in range(repeats):
            rule.calibrate([draw(seeded(seed), 400)])
            alone = doubt <= rule.threshold
            broken += bool(wrong[alone].double().mean() > 0.1)
            shares.append(rule.share_referred)
        rows[f"referral by {by}, width {width:g}, n = 400"] = {
            "share_of_calibrations_above": broken / repeats,
            "promised_at_most": 0.1,
            "error": math.sqrt(0.09 / repeats),
            "mean_share_referred": sum(shares) / repeats,
        }
    return rows


PARTS = {"sets": sets, "parts": parts, "intervals": intervals, "shift": shift, "risk": risk, "referral": referral}


def main() -> None:
    """Simulate the parts that the command names, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calibrations", type=int, default=2000)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", type=Path, default=RESULTS / "conformal_promise.json")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.only:
        for title, row in PARTS[name](options.calibrations).items():
            results[title] = row
            print(f"{title}: {', '.join(f'{key} {value:.4f}' for key, value in row.items())}", flush=True)
    write(options.out, results, {"calibrations": options.calibrations, "new_examples": NEW})


if __name__ == "__main__":
    main()
