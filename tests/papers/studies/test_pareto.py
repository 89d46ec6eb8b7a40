from typing import Any

import numpy as np
import pytest

from leanbayes.lab.recipes import RECIPES, parse
from leanbayes_papers import STUDIES, Job, Results
from leanbayes_papers.studies import pareto
from leanbayes_papers.studies.pareto import dominated
from tests.papers.made_up import made_up

SIZE = STUDIES["pareto"].sizes["cpu"]
OURS, ONE_PASS = "partial 1 %", "partial 1 % by moments"


NEWER = {"lean", "swa", "snapshot", "tta", "conformal"}  # recipes that came after the published record


def test_every_recipe_is_there() -> None:
    for size in ("cpu", "paper"):
        methods = STUDIES["pareto"].sizes[size].methods
        assert {parse(spec).name for spec in methods.values()} == set(RECIPES) - NEWER


def test_dominated_counts_what_is_left_and_below() -> None:
    random = np.random.default_rng(0)
    points = np.round(random.random((60, 2)), 1)  # many ties
    counts = dominated({str(i): tuple(point) for i, point in enumerate(points.tolist())})
    for i, (x, y) in enumerate(points):
        below = (points[:, 0] <= x) & (points[:, 1] <= y)
        equal = (points[:, 0] == x) & (points[:, 1] == y)
        assert counts[str(i)] == below.sum() - equal.sum()
    assert dominated({}) == {}
    assert dominated({"a": (1.0, 1.0), "b": (1.0, 1.0)}) == {"a": 0, "b": 0}


def test_the_front_of_many_points_is_the_running_minimum() -> None:
    points = np.random.default_rng(1).random((200, 2))
    order = points[:, 1].argsort()
    lowest = np.minimum.accumulate(points[order, 0])
    front = {str(i) for i, best in zip(order, lowest, strict=True) if points[i, 0] == best}
    counts = dominated({str(i): tuple(point) for i, point in enumerate(points.tolist())})
    assert {name for name, count in counts.items() if not count} == front


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and change no verdict."""
    monkeypatch.setattr(pareto, "summary", lambda *arguments: [])


CASES: list[tuple[Any, dict[tuple[str, str], float], dict[tuple[str, str], float]]] = [
    (pareto.MATCHES, {("nll", "ensemble"): 0.49}, {("ece", "ensemble"): 0.45}),
    (pareto.TRAINING, {("flops", "ensemble"): 2.5}, {("flops", "ensemble"): 1.2}),
    (pareto.PREDICTION, {("passes", OURS): 0.1}, {("passes", OURS): 1.6}),
    (pareto.ONE_PASS, {("passes", ONE_PASS): 0.1}, {("passes", ONE_PASS): 0.7}),
    (pareto.FRONT, {("nll", "vdp"): 0.1, ("flops", "vdp"): 0.9}, {("nll", "vdp"): 0.1, ("flops", "vdp"): 0.4}),
    (pareto.FRONT, {("nll", "vdp"): 0.485, ("flops", "vdp"): 0.4}, {("nll", OURS): 0.6, ("flops", OURS): 0.6}),
    (
        pareto.FRONT_PREDICTION,
        {("nll", "swag"): 0.1, ("passes", "swag"): 0.9},
        {("nll", "swag"): 0.1, ("passes", "swag"): 0.1},
    ),
]


@pytest.mark.parametrize(("claim", "good", "bad"), CASES)
@pytest.mark.usefixtures("no_tables")
def test_verdicts_follow_the_numbers(claim: Any, good: Any, bad: Any) -> None:
    assert made_up("pareto", "cpu", good)[claim.text] == "holds"
    assert made_up("pareto", "cpu", bad)[claim.text] == "does not hold"


def timed(rows: dict[str, tuple[float, float, float]], seeds: int = 4, noise: float = 0.01) -> Results:
    """Methods with an NLL and seconds of training and prediction, each with noise; counts that say the contrary."""
    random = np.random.default_rng(3)

    def noisy(value: float, noise: float = noise) -> float:
        return float(value * (1 + noise * random.normal()))

    runs = []
    for seed in range(seeds):
        for name, (nll, train, test) in rows.items():
            metrics = dict.fromkeys(("brier", "ece", "ood/unseen/auroc"), 0.5) | {"nll": noisy(nll, noise / 10)}
            metrics |= {"flops": 1 / train, "passes": 1 / test}
            seconds = {"train": noisy(train), "predict": noisy(test)}
            runs.append((Job(name, "partial", "fashion-mnist", seed), {"metrics": metrics, "seconds": seconds}))
    return Results(runs)


def verdicts(results: Results) -> dict[Any, Any]:
    outcome = pareto._conclude(results, SIZE)
    return {verdict.claim: verdict for verdict in outcome.verdicts}


ROWS = {
    "deterministic": (0.6, 1.0, 1.0), OURS: (0.5, 1.2, 16.0), ONE_PASS: (0.5, 1.2, 3.0), "ensemble": (0.45, 5.0, 5.0),
    "vi": (0.9, 2.0, 16.0),
}  # fmt: skip


def test_seconds_decide_where_there_are_any() -> None:
    by_claim = verdicts(timed(ROWS))
    assert by_claim[pareto.TRAINING].answer == "holds"
    assert "0.24 (" in by_claim[pareto.TRAINING].why
    assert "this machine" in by_claim[pareto.TRAINING].why
    assert by_claim[pareto.PREDICTION].answer == "does not hold"
    assert by_claim[pareto.ONE_PASS].answer == "holds"
    assert by_claim[pareto.FRONT].answer == "holds"
    assert "vi (3)" in by_claim[pareto.FRONT].why


def test_what_is_cheaper_and_better_dominates() -> None:
    by_claim = verdicts(timed(ROWS | {"swag": (0.4, 1.0, 1.0)}))
    for claim in (pareto.FRONT, pareto.FRONT_PREDICTION):
        assert by_claim[claim].answer == "does not hold"
        assert "for swag" in by_claim[claim].why
        assert "for vi" not in by_claim[claim].why


def test_better_for_what_may_be_the_same_time_is_not_told() -> None:
    by_claim = verdicts(timed(ROWS | {"swag": (0.4, 1.2, 3.0)}, noise=0.02))
    assert by_claim[pareto.FRONT].answer == "not testable here"
    assert by_claim[pareto.FRONT_PREDICTION].answer == "not testable here"


def test_one_seed_or_missing_methods_tell_nothing() -> None:
    for results in (timed(ROWS, seeds=1), timed({"vi": ROWS["vi"]}), Results([])):
        assert {verdict.answer for verdict in verdicts(results).values()} == {"not testable here"}


def test_figures_name_every_method_and_draw_the_front() -> None:
    figures = pareto._conclude(timed(ROWS, noise=0.0), SIZE).figures
    assert set(figures) == {"train", "predict"}
    (axes,) = figures["predict"].axes
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named == [f"{number} {name}" for number, name in enumerate(ROWS, start=1)]
    (stairs,) = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert list(stairs.get_xdata()) == [1.0, 3.0, 5.0]
    assert list(stairs.get_ydata()) == [0.6, 0.5, 0.45]


def test_passes_of_a_prediction() -> None:
    wanted = {"vi": 16, "vi:predict=moments": 1, "vdp": 1, "ensemble:members=3": 3, "dropout": None}
    assert {spec: pareto._passes(parse(spec), 16) for spec in wanted} == wanted
