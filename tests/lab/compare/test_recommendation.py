"""The rule of the recommendation on results that are made up: gains, ties, missing methods and bad numbers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leanbayes.lab.compare import Protocol, compare
from leanbayes.lab.compare.recommendation import Scores, recommend
from tests import tasks
from tests.lab.compare.cases import BUDGET, named

PLAIN = {"name": "deterministic"}
TEMPERED = {"name": "temperature", "of": PLAIN}


def method(name: str, nlls: Any, recipe: Any = None, cost: float | None = 1.0) -> dict[str, Any]:
    costs = {"train_seconds": cost and 10 * cost, "predict_seconds": cost and 2 * cost}
    runs = [{"seed": seed, "metrics": {"nll": nll}, "cost": costs} for seed, nll in enumerate(nlls)]
    return {"name": name, "recipe": recipe or {"name": name}, "runs": runs}


def results(*methods: dict[str, Any], kind: str = "classes") -> dict[str, Any]:
    return {"task": {"kind": kind}, "methods": list(methods)}


def nothing(name: str) -> Scores | None:
    return None


NOISE = np.array([0.000, 0.011, -0.004, 0.006, -0.013])
BASE = 0.4 + np.array([0.01, -0.02, 0.03, 0.0, -0.01])


def test_a_gain_over_seeds_has_the_interval_of_student_for_all_comparisons() -> None:
    rows = [
        method("plain", BASE + 0.2, PLAIN),
        method("tempered", BASE, TEMPERED),
        method("lean", BASE - 0.05 + NOISE, cost=1.2),
        method("vi", BASE + 0.01 - NOISE, cost=2.0),
    ]
    chosen = recommend(results(*rows), nothing)
    assert (chosen.take, chosen.reference, chosen.significant, chosen.comparisons) == ("lean", "tempered", True, 2)
    gains = 0.05 - NOISE
    half = stats.t.ppf(1 - 0.05 / 2 / 2, 4) * gains.std(ddof=1) / 5**0.5  # 97.5 % for each of two methods
    assert chosen.gain.mean == pytest.approx(gains.mean())
    assert (chosen.gain.low, chosen.gain.high) == pytest.approx((gains.mean() - half, gains.mean() + half))
    assert (chosen.training, chosen.prediction) == pytest.approx((1.2, 1.2))
    assert chosen.sentences[0] == (
        f"Take lean: its NLL is 0.050 lower than that of the plain network with temperature (interval "
        f"{gains.mean() - half:.3f} to {gains.mean() + half:.3f})."
    )
    assert "To train, it costs 1.2 times the time of the plain network; to predict, 1.2 times." in chosen.sentences
    assert "over 5 seeds" in chosen.sentences[-1]
    assert chosen.record()["gain"]["over"] == "seeds"


def test_many_comparisons_ask_for_more() -> None:
    """One method has p = 0.03. That is significant alone, and not as the best of ten."""
    gains = np.array([0.01, 0.03, 0.02, 0.04, 0.005])
    assert 0.01 < stats.ttest_1samp(gains, 0).pvalue < 0.05
    rows = [method("plain", BASE, PLAIN), method("x", BASE - gains)]
    assert recommend(results(*rows, kind="regression"), nothing).take == "x"
    others = [method(f"other{i}", BASE + 0.02 + NOISE) for i in range(9)]
    chosen = recommend(results(*rows, *others, kind="regression"), nothing)
    assert (chosen.take, chosen.significant, chosen.comparisons) == ("plain", False, 10)
    assert chosen.sentences[0] == "No significant gain: take the plain network."
    assert chosen.sentences[1].startswith("The largest gain in NLL is that of x: 0.02")


def test_by_chance_alone_a_method_is_rarely_recommended() -> None:
    """Twelve methods that are in truth equal to the plain network: at most 5 % of comparisons recommend one."""
    source = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        values = source.normal(0.4, 0.02, (13, 5))
        rows = [method("plain", values[0], PLAIN), *(method(f"m{i}", values[i]) for i in range(1, 13))]
        wrong += recommend(results(*rows), nothing).significant
    assert wrong / 400 < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_of_equally_good_methods_the_cheapest_is_taken_and_the_best_is_named() -> None:
    rows = [
        method("tempered", BASE, TEMPERED),
        method("ensemble", BASE - 0.052 + NOISE / 9, cost=5.0),
        method("lean", BASE - 0.050 + NOISE, cost=1.5),
        method("weak", BASE - 0.030 - NOISE / 9, cost=1.1),  # cheaper, but significantly worse than the best
    ]
    chosen = recommend(results(*rows), nothing)
    assert chosen.take == "lean"
    assert (
        "The NLL of ensemble is lower still, but not significantly, at 5.0 times the time of the plain network to "
        "train and 5.0 times to predict."
    ) in chosen.sentences
    unknown = [*rows[:2], method("lean", BASE - 0.050 + NOISE, cost=None)]
    assert recommend(results(*unknown), nothing).take == "ensemble"  # a price that nobody knows is not the lowest
    assert "What it costs was not measured." in recommend(results(rows[0], unknown[2]), nothing).sentences


def test_ties_are_no_gain() -> None:
    for shift in (0.0, 0.01):  # the same difference for every seed shows no spread to judge it by
        rows = [method("plain", BASE, PLAIN), method("x", [value - shift for value in [0.5] * 5])]
        rows[0] = method("plain", [0.5] * 5, PLAIN)
        chosen = recommend(results(*rows), nothing)
        assert (chosen.take, chosen.significant) == ("plain", False), shift
    assert chosen.gain.low is None
    assert any("No interval can be given" in sentence for sentence in chosen.sentences)
    worse = recommend(results(method("plain", BASE, PLAIN), method("x", BASE + 0.1 + NOISE)), nothing)
    assert worse.sentences == (
        "No significant gain: take the plain network (with temperature, which was not compared).",
        "No method has a lower NLL.",
    )


def test_one_seed_gives_an_interval_over_test_examples_and_says_so() -> None:
    source = np.random.default_rng(1)
    plain, weights = source.exponential(0.4, 500), np.ones(500)
    gains = source.normal(0.05, 0.2, 500)
    scores = {"plain": (plain, weights), "x": (plain - gains, weights)}
    rows = [method("plain", [plain.mean()], PLAIN), method("x", [(plain - gains).mean()], cost=3.0)]
    chosen = recommend(results(*rows), scores.get)
    assert chosen.take == "x"
    error = gains.std(ddof=1) / 500**0.5
    assert chosen.gain.low == pytest.approx(gains.mean() - 1.96 * error, abs=0.15 * error)
    assert chosen.gain.high == pytest.approx(gains.mean() + 1.96 * error, abs=0.15 * error)
    text = " ".join(chosen.sentences)
    assert "over the 500 test examples (bootstrap)" in text
    assert "one seed only" in text
    assert "add deterministic+temperature" in text  # a part of the gain may be a matter of temperature
    of_patients = recommend(results(*rows) | {"task": {"kind": "classes", "patients": 500}}, scores.get)
    assert "over the 500 patients of the test set (bootstrap)" in " ".join(of_patients.sentences)
    assert of_patients.gain.low == chosen.gain.low
    few = {name: (values[:12], weights[:12]) for name, (values, weights) in scores.items()}
    too_few = recommend(results(*rows) | {"task": {"kind": "classes", "patients": 12}}, few.get)
    assert too_few.gain.low is None
    assert "the 12 patients of the test set are too few for a bootstrap, which needs 30" in " ".join(too_few.sentences)
    assert recommend(results(*rows), scores.get) == chosen
    few = {name: (nll[:20], weight[:20]) for name, (nll, weight) in scores.items()}
    for too_little in (few, {}, {"plain": scores["plain"], "x": few["x"]}):
        chosen = recommend(results(*rows), too_little.get)
        assert (chosen.take, chosen.gain.low) == ("plain", None)


def test_inputs_count_by_the_number_of_their_targets() -> None:
    """Images whose pixels are mostly void must not decide."""
    gains, weights = np.tile([1.0, -0.1], 50), np.tile([1.0, 99.0], 50)
    scores = {"plain": (gains + 1, weights), "x": (np.ones(100), weights)}
    chosen = recommend(results(method("plain", [1.0], PLAIN), method("x", [1.0])), scores.get)
    assert chosen.gain.mean == pytest.approx((1 - 9.9) / 100)
    assert chosen.gain.high < 0
    assert chosen.take == "plain"


def test_missing_plain_networks_and_numbers() -> None:
    lonely = recommend(results(method("a", [0.3, 0.4]), method("b", [0.2, 0.3])), nothing)
    assert (lonely.take, lonely.gain) == (None, None)
    assert lonely.sentences == (
        "No plain network was compared, so no gain over it can be given: add deterministic+temperature to the methods.",
        "b has the lowest NLL, 0.25.",
    )
    for bad in (math.nan, None, math.inf):
        broken = recommend(results(method("plain", [0.3, bad], PLAIN), method("b", [0.2, 0.3])), nothing)
        assert broken.take is None
        assert broken.sentences[0] == "The plain network has no finite NLL, so no gain over it can be given."
        assert broken.sentences[-1] == "Left out, because the NLL is not finite: plain."
        rows = [method("plain", BASE, PLAIN), method("bad", [*BASE[:4] - 1, bad]), method("x", BASE - 0.05 + NOISE)]
        chosen = recommend(results(*rows), nothing)
        assert (chosen.take, chosen.comparisons) == ("x", 1)
        assert chosen.sentences[-1] == "Left out, because the NLL is not finite: bad."
    failed = {"name": "plain", "recipe": PLAIN, "runs": [], "error": "out of memory"}
    assert recommend(results(failed, method("x", [0.3])), nothing).take is None
    only = recommend(results(method("plain", BASE, PLAIN)), nothing)
    assert (only.take, only.comparisons) == ("plain", 0)
    assert recommend(results(failed), nothing) is None
    assert (
        recommend(results({"name": "x", "recipe": {}, "runs": [{"seed": 0, "metrics": {}, "cost": {}}]}), nothing)
        is None
    )


def test_few_seeds_are_called_few() -> None:
    rows = [method("plain", BASE[:2], PLAIN), method("x", BASE[:2] - 0.05 + NOISE[:2])]
    chosen = recommend(results(*rows), nothing)
    assert not chosen.significant
    assert "With so few seeds only a large gain can be significant." in chosen.sentences[-1]


def test_a_comparison_recommends_with_one_seed_and_with_several(tmp_path: Path) -> None:
    methods = named("deterministic", "deterministic+temperature", "swa")
    one = compare(tasks.classes(), methods, tmp_path, Protocol(budget=BUDGET))["recommendation"]
    assert one["reference"] == "deterministic+temperature"
    assert (one["gain"]["over"], one["gain"]["n"], one["comparisons"]) == ("examples", 60, 1)
    assert one["gain"]["low"] <= one["gain"]["mean"] <= one["gain"]["high"]
    two = compare(tasks.classes(), methods, tmp_path, Protocol((0, 1), BUDGET))["recommendation"]
    assert (two["gain"]["over"], two["gain"]["n"]) == ("seeds", 2)


def test_conformal_prediction_on_top_leaves_a_plain_network_plain() -> None:
    over = {"name": "conformal", "of": TEMPERED}
    rows = [
        method("sets", BASE, over),
        method("lean", BASE - 0.05 + NOISE, {"name": "conformal", "of": {"name": "vi"}}),
    ]
    chosen = recommend(results(*rows), nothing)
    assert (chosen.take, chosen.reference, chosen.comparisons) == ("lean", "sets", 1)
