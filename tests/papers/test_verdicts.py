"""Verdicts against scipy's paired t-test and intervals, and in every case that a claim can be in."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leanbayes.errors import InputError
from leanbayes_papers import Claim, Job, Outcome, Results, Size, Study, Verdict, cite
from leanbayes_papers.verdicts import all_of, beats, exceeds, gains, judged, matches, ratios, summary, within
from tests.papers import stub

CLAIM = Claim(cite.SUBNETWORKS, "figure 1", "words")


def results(measure: str = "nll", **methods: list[float]) -> Results:
    return Results(
        [
            (Job(name, "vi", "x", seed), {"metrics": {measure: value}})
            for name, values in methods.items()
            for seed, value in enumerate(values)
        ]
    )


def test_the_interval_is_that_of_the_paired_test_and_covers_at_once_with_bonferroni() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 6))
    gain = b - a  # of nll, low is better
    verdict = beats(results(a=list(a), b=list(b)), CLAIM, "nll", "a", "b", tests=4)
    low, high = stats.ttest_rel(b, a).confidence_interval(1 - 0.05 / 4)
    assert f"{gain.mean():.3g} (98.75 % interval {low:.3g} to {high:.3g}, n = 6)" in verdict.why


def test_a_claim_of_more_holds_fails_or_cannot_be_told() -> None:
    better, same = [1.0, 1.1, 1.2, 1.3], [1.0, 1.1, 1.2001, 1.3001]
    worse, noisy = [1.5, 1.61, 1.7, 1.81], [0.5, 2.0, 0.7, 1.9]
    numbers = results(better=better, same=same, worse=worse, noisy=noisy)

    def answer(a: str, b: str) -> str:
        return beats(numbers, CLAIM, "nll", a, b, margin=0.01).answer

    assert answer("better", "worse") == "holds"
    assert answer("worse", "better") == "does not hold"
    assert answer("same", "better") == "does not hold"  # a gain so small is none
    assert answer("better", "noisy") == "not testable here"
    assert "does not decide" in beats(numbers, CLAIM, "nll", "better", "noisy").why


def test_a_claim_of_no_less_allows_the_margin() -> None:
    best = [0.90, 0.91, 0.92, 0.93]
    close, far = [x - 0.004 + d for x, d in zip(best, (0, 1e-4, 0, -1e-4), strict=True)], [x - 0.1 for x in best]
    wild = [0.5, 1.3, 0.6, 1.2]
    numbers = results("accuracy", best=best, close=close, far=far, wild=wild)

    def answer(a: str) -> str:
        return matches(numbers, CLAIM, "accuracy", a, "best").answer

    assert [answer(a) for a in ("close", "far", "wild", "best")] == [
        "holds", "does not hold", "not testable here", "holds",
    ]  # fmt: skip
    assert matches(numbers, CLAIM, "accuracy", "close", "best", margin=0.001).answer == "does not hold"


def test_runs_are_paired_by_seed_whatever_their_order_and_lone_ones_left_out() -> None:
    runs = [
        (Job(m, "vi", "x", seed), {"metrics": {"nll": value}})
        for m, seed, value in (("a", 2, 3.0), ("a", 0, 1.0), ("a", 7, 9.0), ("b", 0, 1.5), ("b", 2, 3.5), ("b", 1, 0.0))
    ]
    assert gains(Results(runs), "nll", "a", "b") == {("x", 0): 0.5, ("x", 2): 0.5}
    assert beats(Results(runs), CLAIM, "nll", "a", "b").answer == "holds"


def test_several_data_sets_give_one_number_each() -> None:
    rows = []
    for number, data in enumerate(("x", "y", "z")):
        for seed in range(5):
            rows += [
                (Job("a", "vi", data, seed), {"metrics": {"nll": 0.0}}),
                (Job("b", "vi", data, seed), {"metrics": {"nll": number + 0.01 * seed}}),
            ]
    low, high = stats.t.interval(0.95, 2, loc=1.02, scale=1 / 3**0.5)  # of 0.02, 1.02, 2.02
    why = beats(Results(rows), CLAIM, "nll", "a", "b").why
    assert f"interval {low:.3g} to {high:.3g}, n = 3" in why
    assert "n = 5" in beats(Results(rows), CLAIM, "nll", "a", "b", data="y").why


@pytest.mark.parametrize("count", [0, 1])
def test_less_than_two_pairs_have_no_interval(count: int) -> None:
    numbers = results(a=[1.0, 2.0][:count], b=[1.0, 2.0])
    for judge in (beats, matches):
        verdict = judge(numbers, CLAIM, "nll", "a", "b")
        assert verdict.answer == "not testable here"
        assert f"{count} pairs" in verdict.why
    assert within(CLAIM, [1.0] * count, 0, 2, "x").answer == "not testable here"


def test_directions_and_margins_are_known_or_asked_for() -> None:
    numbers = results("colour", a=[1.0, 2.1], b=[3.0, 4.0])
    with pytest.raises(InputError, match="colour"):
        beats(numbers, CLAIM, "colour", "a", "b")
    with pytest.raises(InputError, match="margin"):
        beats(numbers, CLAIM, "colour", "a", "b", direction="high")
    assert beats(numbers, CLAIM, "colour", "a", "b", direction="low", margin=0.1).answer == "holds"
    shifted = results("accuracy@30°", a=[0.9, 0.91], b=[0.5, 0.511])
    assert beats(shifted, CLAIM, "accuracy@30°", "a", "b").answer == "holds"
    unseen = results("ood/unseen/auroc", a=[0.9, 0.91], b=[0.5, 0.511])
    assert beats(unseen, CLAIM, "ood/unseen/auroc", "b", "a").answer == "does not hold"


def test_within_asks_for_the_whole_interval() -> None:
    values = [3.9, 4.0, 4.1, 4.05]
    assert [within(CLAIM, values, low, high, "x").answer for low, high in ((2, 8), (5, 8), (4, 8), (0, 3))] == [
        "holds", "does not hold", "not testable here", "does not hold",
    ]  # fmt: skip


def test_all_of_is_as_weak_as_its_weakest_part() -> None:
    numbers = results(a=[1.0, 1.1], b=[2.0, 2.1], c=[0.0, 9.0])
    good, bad = beats(numbers, CLAIM, "nll", "a", "b"), beats(numbers, CLAIM, "nll", "b", "a")
    open_ = beats(numbers, CLAIM, "nll", "a", "c")
    assert all_of(CLAIM, [good, good]).answer == "holds"
    assert all_of(CLAIM, [good, open_]).answer == "not testable here"
    both = all_of(CLAIM, [good, open_, bad])
    assert both.answer == "does not hold"
    assert all(part.why in both.why for part in (good, open_, bad))
    with pytest.raises(InputError, match="part"):
        all_of(CLAIM, [])


def test_a_summary_has_a_row_for_each_method_and_no_cell_for_what_is_missing() -> None:
    rows = summary(results(a=[1.0, 2.0, 3.0], b=[5.0]), ["nll", "ece"])
    assert [row["method"] for row in rows] == ["a", "b"]
    assert all("ece" not in row for row in rows)
    assert rows[0]["nll"]["mean"] == 2.0
    assert rows[0]["nll"]["high"] == pytest.approx(2 + stats.t.ppf(0.975, 2) / 3**0.5)
    assert rows[1]["nll"]["high"] is None


def test_measures_of_one_run_are_compared_in_pairs() -> None:
    claim = Claim(cite.OURS, "here", "a measure is above another")
    rows = [(Job("a", "vi", "x", seed), {"metrics": {"p": 1.0 + seed, "q": 0.5 + 1.01 * seed}}) for seed in range(4)]
    results = Results([*rows, (Job("b", "vi", "x", 0), {"metrics": {"p": 0.0, "q": 9.0}})])
    assert exceeds(results, claim, "a", "p", "q", margin=0.1).answer == "holds"
    assert exceeds(results, claim, "a", "q", "p", margin=0.1).answer == "does not hold"
    assert exceeds(results, claim, "a", "q", "none", margin=0.1).answer == "not testable here"
    assert ratios(results, "p", "b", "a") == [0.0]
    assert ratios(results, "p", "a", "b") == []


def moving(moved: dict[str, float | None]) -> Results:
    """Runs of a and b, where a is clearly better, with the movement of the scales of each method."""
    runs = []
    for seed in range(5):
        for method, nll in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
            result: dict[str, Any] = {"metrics": {"nll": nll + seed / 10}}
            if (far := moved.get(method)) is not None:
                result["scales"] = [{"stage": "vi", "start": [0.01] * 5, "end": [0.01] * 5, "moved": far}]
            runs.append((Job(method, "vi", "numbers", seed), result))
    return Results(runs)


def made_up(**changes: Any) -> Study:
    """A study whose second verdict is made without the functions of this package."""

    def conclude(results: Results, size: Size) -> Outcome:
        worst = list(results.column("nll", "c").values())
        plain = Verdict(stub.OTHER, "holds" if worst else "not testable here", f"{len(worst)} runs")
        return Outcome({}, [beats(results, stub.BETTER, "nll", "a", "b"), plain])

    return stub.study(conclude=conclude, **changes)


@pytest.mark.parametrize(
    ("moved", "answers"),
    [
        ({}, ["holds", "holds"]),
        ({"a": 0.5, "b": 0.5, "c": 0.5}, ["holds", "holds"]),
        ({"a": 0.0, "b": 0.5, "c": 0.5}, ["not testable here", "holds"]),
        ({"b": 0.009}, ["not testable here", "holds"]),
        ({"c": 0.0}, ["holds", "not testable here"]),
        ({"a": math.nan, "c": math.nan}, ["not testable here", "not testable here"]),
    ],
)
def test_no_verdict_rests_on_scales_that_did_not_move(moved: dict[str, float | None], answers: list[str]) -> None:
    """Before, three published studies judged networks whose scales SGD had left where they began."""
    study = made_up()
    outcome = judged(study, moving(moved), study.sizes["cpu"])
    assert [verdict.answer for verdict in outcome.verdicts] == answers
    for verdict in outcome.verdicts:
        assert verdict.answer == "holds" or "the scales did not move" in verdict.why
    counting = made_up(rests_on_scales=False)
    plain = judged(counting, moving({"c": 0.0}), study.sizes["cpu"]).verdicts[1]
    assert plain.answer == "holds"


@pytest.mark.parametrize("judge", [beats, matches])
def test_a_comparison_refuses_scales_that_did_not_move(judge: Any) -> None:
    assert judge(moving({"b": 0.3}), stub.BETTER, "nll", "a", "b").answer == "holds"
    verdict = judge(moving({"b": 0.0}), stub.BETTER, "nll", "a", "b")
    assert verdict.answer == "not testable here"
    assert verdict.why.endswith("the scales did not move in training: b")


def test_an_average_over_two_data_sets_decides_nothing() -> None:
    """Before, the breast study at the size of the paper would have judged an interval over two data sets."""

    def runs(sets: int) -> Results:
        return Results(
            [
                (Job(method, "vi", f"set {index}", seed), {"metrics": {"nll": nll + index / 9}})
                for index in range(sets)
                for seed in range(5)
                for method, nll in (("a", 1.0), ("b", 2.0 + index / 50))
            ]
        )

    verdict = beats(runs(2), stub.BETTER, "nll", "a", "b")
    assert verdict.answer == "not testable here"
    assert "judge each data set by itself" in verdict.why
    assert beats(runs(2), stub.BETTER, "nll", "a", "b", data="set 1").answer == "holds"
    assert beats(runs(3), stub.BETTER, "nll", "a", "b").answer == "holds"
