"""A predictor is judged by one pass of predictions, and its cost is that of the training it had."""

import pytest
import torch

import leanbayes as lb
from leanbayes.evaluation import run as evaluation_run
from leanbayes.evaluation.cost import training_flops
from leanbayes.lab.compare import judge
from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.compare.cases import BUDGET


def test_each_input_is_predicted_once_for_metrics_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    task, recipe = tasks.pictures(), parse("partial:rate=0.2")
    run = Run(BUDGET)
    trained = prepare(recipe, task, run)
    counts: list[int] = []
    predict = evaluation_run.predict
    monkeypatch.setattr(
        evaluation_run, "predict", lambda model, x, **options: (counts.append(len(x)), predict(model, x, **options))[1]
    )
    judged = judge(recipe, trained, task, run, samples=3, figures=True)
    assert sum(counts) == 45
    assert judged.metrics["accuracy"] == pytest.approx(judged.arrays["correct"].mean().item())
    assert judged.metrics["entropy"] == pytest.approx(judged.arrays["entropy"].mean().item(), rel=1e-5)
    assert judged.arrays["certain/entropy"].max() <= judged.arrays["uncertain/entropy"].min()


def test_figures_change_no_score() -> None:
    task, recipe = tasks.classes(), parse("partial:rate=0.2")
    run = Run(BUDGET, seed=3)
    trained = prepare(recipe, task, run)
    with_figures = judge(recipe, trained, task, run, samples=3, figures=True)
    without = judge(recipe, trained, task, run, samples=3)
    expected = lb.evaluate(
        trained.predictor, run.loader(task.test), likelihood=trained.likelihood, samples=3,
        shifted={"far": run.loader(task.shifted["far"])}, generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    assert with_figures.metrics == without.metrics == expected.metrics
    assert without.arrays == {}


def test_a_training_step_is_counted_as_it_was_made_and_not_as_predictions_are() -> None:
    task, recipe = tasks.pictures(), parse("partial:propagate=flipout,predict=sample")
    run = Run(BUDGET)
    trained = prepare(recipe, task, run)
    bnn = trained.predictor
    assert (bnn.propagate, bnn.predict_by) == (lb.propagate.Flipout(), lb.propagate.Sample())
    x, y = task.test[:30]
    counted = judge(recipe, trained, task, run, samples=2).cost["flops_train"]
    by_flipout = training_flops(bnn, x, y, trained.likelihood)
    bnn.propagate = "sample"
    assert counted == by_flipout > training_flops(bnn, x, y, trained.likelihood)
