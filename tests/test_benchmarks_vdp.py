"""What a benchmark concludes follows from its numbers: runs made so that 002 is right, and so that it is wrong."""

import importlib
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
claims = importlib.import_module("vdp_claims")

SEEDS = 5


def seeds(count: int = SEEDS, noise: int = 0, **changed: Any) -> list[dict[str, Any]]:
    """Records of one method; each number is a little different for each seed."""
    source = random.Random(noise)
    variance = [1.0, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1]
    record = {
        "kl_weight": 0.1,
        "accuracy": 0.98,
        "accuracy_by_snr": [0.75, 0.9, 0.95, 0.97, 0.98, 0.98, 0.98],
        "variance_by_snr": variance,
        "accuracy_by_pruned": [0.98, 0.98, 0.98, 0.97, 0.8, 0.3, 0.1],
        "sensitivity_max": 0.5,
        "infidelity": 0.3,
        "infidelity_signed": 0.3,
    } | changed

    def near(value: float | list[float]) -> Any:
        return [near(each) for each in value] if isinstance(value, list) else value + source.gauss(0, 0.002)

    ways = {way: {"variance": variance, "accuracy": variance} for way in claims.WAYS}
    return [{name: near(value) for name, value in record.items()} | {"propagated": ways} for _ in range(count)]


GOOD = {
    "accuracy_by_snr": [0.9, 0.95, 0.97, 0.98, 0.98, 0.98, 0.98],
    "accuracy_by_pruned": [0.98, 0.98, 0.98, 0.98, 0.98, 0.8, 0.2],
    "sensitivity_max": 0.55,
    "infidelity": 0.1,
}
TRIED = [
    {"kl_weight": kl, "accuracy": a, "accuracy_at_-6dB": n, "accuracy_90%_pruned": p}
    for kl, a, n, p in ((0.001, 0.98, 0.75, 0.5), (0.1, 0.98, 0.9, 0.95), (10.0, 0.9, 0.8, 0.89))
]


def judged(vdp: list[dict[str, Any]], vi: list[dict[str, Any]], tried: Any = TRIED) -> dict[str, str]:
    runs = {"deterministic": seeds(), "vi": vi, "vdp": vdp}
    found = claims.verdicts(runs, {"vdp": vdp}, claims.tests(runs, {"vdp": vdp}), tried)
    json.dumps(found, allow_nan=False)
    assert all(verdict["why"] for verdict in found)
    return {verdict["claim"]: verdict["verdict"] for verdict in found}


def of(found: dict[str, str], words: str) -> str:
    (verdict,) = [verdict for claim, verdict in found.items() if words in claim]
    return verdict


def test_claims_hold_where_the_numbers_are_as_002_has_them() -> None:
    vi = seeds(noise=2, accuracy_by_snr=GOOD["accuracy_by_snr"], infidelity=0.4, sensitivity_max=0.8)
    vi = [row | {"accuracy_by_pruned": [0.98, 0.97, 0.96, 0.9, 0.7 + 0.01 * i, 0.2, 0.1]} for i, row in enumerate(vi)]
    found = judged(seeds(noise=1, **GOOD), vi)
    assert (
        of(found, "KL dominates") == of(found, "too small a KL weight") == "not testable here"
    )  # the search: one seed
    assert sum(verdict == "not testable here" for verdict in found.values()) == len(claims.NOT_HERE) + 2
    assert "does not hold" not in found.values()


def test_claims_fail_where_vdp_is_as_the_plain_network() -> None:
    found = judged(seeds(noise=1), seeds(noise=2, infidelity=0.1))
    assert of(found, "not significantly different") == "holds"
    for words in ("before the performance begins to drop", "superior self-compressing", "outperform the deterministic"):
        assert of(found, words) == "does not hold"
    assert of(found, "by Infidelity") == of(found, "by Sensitivity Max") == "does not hold"


def test_an_accuracy_apart_is_seen_and_so_is_a_variance_that_rises() -> None:
    rising = [0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0]
    found = judged(seeds(noise=1, accuracy=0.9, variance_by_snr=rising), seeds(noise=2))
    assert of(found, "not significantly different") == "does not hold"
    assert of(found, "falls as the SNR rises") == of(found, "small ViT") == "does not hold"


def test_one_seed_decides_nothing_that_needs_a_spread() -> None:
    runs = {name: seeds(1) for name in ("deterministic", "vi", "vdp")}
    tested = claims.tests(runs, {"vdp": runs["vdp"]})
    assert tested["anova_of_accuracy"] is None
    found = {v["claim"]: v["verdict"] for v in claims.verdicts(runs, {"vdp": runs["vdp"]}, tested, TRIED[:1])}
    assert of(found, "one-way ANOVA") == of(found, "by Infidelity") == of(found, "KL dominates") == "not testable here"
    assert of(found, "Spearman") == "holds"


def test_the_summary_has_the_mean_of_every_number_over_the_seeds() -> None:
    found = claims.summary({"lenet5": {"vdp": seeds(**GOOD)}})["lenet5"]["vdp"]
    assert math.isclose(found["accuracy"]["mean"], sum(r["accuracy"] for r in seeds(**GOOD)) / SEEDS)
    assert len(found["accuracy_by_pruned"]) == len(claims.FRACTIONS)
    assert found["accuracy"]["n"] == SEEDS
