"""The table of cases: its rows are those of the test set, and its summary agrees with the metrics."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from leanbayes.evaluation import evaluate
from leanbayes.lab.compare.cases import CaseScores, case_sentences, referral
from leanbayes.lab.data import lesions
from leanbayes.lab.statistics import interval_over_groups


def test_rated_cases_have_scores_of_raters_and_intervals_over_patients() -> None:
    task = lesions(patients=20, size=16, raters=3).task()
    task = replace(task, likelihood=task.likelihood)
    collector = CaseScores(task, task.likelihood)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = task.model()
    evaluation = evaluate(
        model, DataLoader(task.test, 7), likelihood=task.likelihood, samples=2, on_prediction=collector.add,
        keep_samples=True,
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(collector.text())))
    assert len(rows) == 20
    assert len({row["patient"] for row in rows}) == 5
    assert {"dice", "ged", "rater_dice", "entropy_correlation", "volume_error", "total", "epistemic"} <= rows[0].keys()
    summary = collector.summary()
    assert summary["over"] == "patients"
    means = summary["means"]
    assert means["dice"]["mean"] == pytest.approx(evaluation.metrics["dice"])
    assert means["nll"]["mean"] == pytest.approx(evaluation.metrics["nll"], rel=1e-5)
    values = [float(row["dice"]) for row in rows]
    assert means["dice"]["high"] == pytest.approx(
        interval_over_groups(values, [r["patient"] for r in rows]).high, abs=1e-4
    )
    assert "over 5 patients" in case_sentences(summary)[0]


def test_referral_by_perfect_and_by_useless_doubt() -> None:
    quality = np.linspace(0, 1, 21)
    perfect = referral(quality, -quality)
    assert perfect["after"] == perfect["best"] == pytest.approx(quality[2:].mean())
    assert perfect["curve"] == pytest.approx([quality[n:].mean() for n in range(21)])
    assert referral(quality, quality)["after"] == pytest.approx(quality[:-2].mean())


def test_a_network_without_random_weights_has_no_disagreement_of_draws() -> None:
    """Its draws are equal to the last bit: no interval of the volume, and another score of doubt is reported."""
    task = lesions(patients=24, size=16, raters=3).task()
    scores = CaseScores(task, task.likelihood)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = task.model()
    loader = DataLoader(task.test, 4)
    evaluate(model, loader, likelihood=task.likelihood, samples=3, on_prediction=scores.add, keep_samples=True)
    for row in scores.rows:
        assert not {"draw_disagreement", "volume_low", "volume_high"} & row.keys()
        assert row["ged"] >= 0
        assert scores.doubt_about(row) == row["expected_dice_loss"]
    summary = scores.summary()
    assert summary["doubt_score"]["name"] == "expected_dice_loss"
    assert not {"epistemic", "edge_epistemic", "draw_disagreement"} & summary["doubt"].keys()
    scores.rows[1]["draw_disagreement"] = 0.5  # one case of many that has it
    assert torch.equal(scores.arrays()["case/doubt"], scores.arrays()["case/expected_dice_loss"])
    rank = summary["doubt_score"]["rank"]
    assert rank["low"] <= rank["mean"] <= rank["high"]
    assert f"over {rank['n']} patients)" in case_sentences(summary)[1]
