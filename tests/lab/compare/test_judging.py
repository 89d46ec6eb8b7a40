"""A predictor is judged by one pass of predictions, and its cost is that of the training it had."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

import leanbayes as lb
from leanbayes.evaluation import run as evaluation_run
from leanbayes.evaluation.cost import training_flops
from leanbayes.lab.compare import judge
from leanbayes.lab.compare.cases import case_sentences
from leanbayes.lab.data import Preparation, read
from leanbayes.lab.recipes import Budget, Run, parse, prepare
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


def test_scores_of_a_regression_are_in_the_unit_of_the_target(tmp_path: Path) -> None:
    """They were those of standardised targets, although the page says "in the target's unit"."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    y = 1000 + 50 * (0.9 * x[:, 0] + np.sqrt(1 - 0.9**2) * generator.normal(size=200))
    table = tmp_path / "table.csv"
    table.write_text(
        "a,b,y\n" + "\n".join(f"{a!r},{b!r},{c!r}" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True)) + "\n"
    )
    source = read(table, target="y", kind="regression")
    run = Run(Budget(epochs=3, batch_size=40))
    recipe = parse("vi")
    trained = prepare(recipe, source.task(), run)
    result = judge(recipe, trained, source.task(), run, samples=4, figures=True)

    plan = source.preparation
    assert plan.target_mean[0] == pytest.approx(1000, abs=20)
    assert plan.target_std[0] == pytest.approx(50, rel=0.2)
    batches = [torch.stack([source.test[i][0] for i in rows]) for rows in torch.arange(len(source.test)).split(40)]
    draws = torch.Generator().manual_seed(run.seed)
    options: dict[str, Any] = {"likelihood": trained.likelihood, "samples": 4, "generator": draws}
    predictions = [lb.predict(trained.predictor, batch, **options) for batch in batches]
    mean = np.concatenate([p.mean.double().numpy() for p in predictions])[:, 0]
    mean = mean * plan.target_std[0] + plan.target_mean[0]
    deviation = np.sqrt(np.concatenate([p.total.double().numpy() for p in predictions])[:, 0]) * plan.target_std[0]
    standardised = np.array([float(source.test[i][1]) for i in range(len(source.test))])
    near = standardised * plan.target_std[0] + plan.target_mean[0]
    truth = y[np.abs(near[:, None] - y).argmin(1)]  # as the file has it
    np.testing.assert_allclose(truth, near, atol=1e-3)
    z = (truth - mean) / deviation
    normal = stats.norm
    # Gneiting and Raftery 2007
    crps = deviation * (z * (2 * normal.cdf(z) - 1) + 2 * normal.pdf(z) - 1 / np.sqrt(np.pi))
    assert result.metrics["rmse"] == pytest.approx(np.sqrt(np.mean((truth - mean) ** 2)), rel=1e-5)
    assert result.metrics["nll"] == pytest.approx(-normal.logpdf(truth, mean, deviation).mean(), rel=1e-5)
    assert result.metrics["crps"] == pytest.approx(crps.mean(), rel=1e-5)
    assert result.metrics["coverage@0.9"] == pytest.approx(np.mean(np.abs(z) <= normal.ppf(0.95)))
    assert result.metrics["rmse"] > 10
    for name, values in (("predicted", mean), ("deviation", deviation), ("truth", truth)):
        np.testing.assert_allclose(np.sort(result.arrays[name].numpy()), np.sort(values), rtol=1e-5)


def test_a_large_target_that_varies_little_keeps_its_digits() -> None:
    """In float32, 10⁸ ± 1 would be rounded to multiples of 8."""
    plan = Preparation("regression", (0.0,), (1.0,), features=("a",), target_mean=(1e8,), target_std=(1.0,))
    task = replace(tasks.regression(), preparation=plan)
    zero = torch.zeros(3, 1)
    prediction = lb.Prediction(zero + 0.5, zero + 1, zero + 1, zero, torch.zeros(3), torch.ones(3))
    scored, targets = task.scored(prediction, zero)
    assert (scored.mean - targets).tolist() == [[0.5]] * 3
    assert task.scored(prediction, torch.zeros(7))[1].tolist() == [0.0] * 7  # targets that are not scored


def test_memory_does_not_grow_with_the_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of all living tensors after the last batch of the test set are those after an early one.

    The page keeps small pictures of at most 96 cases, which are bounded, too; here they are those of 2 cases.
    """
    monkeypatch.setattr("leanbayes.lab.compare.shown._CANDIDATES", 2)
    task = tasks.pixels()
    x = torch.randn(40, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0.5).long())
    task = replace(task, train=data, validation=data, test=data)
    bytes_alive: dict[int, int] = {}

    def watch(stage: str, done: int, total: int) -> None:
        if stage == "evaluate" and done in (10, 20):  # a look at all objects takes seconds
            gc.collect()
            tensors = [value for value in gc.get_objects() if type(value) is torch.Tensor]
            tensors = [value for value in tensors if not torch._C._functorch.is_functorch_wrapped_tensor(value)]
            storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in tensors}
            bytes_alive[done] = sum(storages.values())

    run = Run(Budget(epochs=2, batch_size=2), watch=watch)
    recipe = parse("partial:rate=0.2")
    trained = prepare(recipe, task, run)
    judge(recipe, trained, task, run, samples=8, figures=True)
    of_one_batch = 2 * 32 * 32 * 4 * 2 * 8  # what the draws predict
    assert bytes_alive[20] - bytes_alive[10] < of_one_batch


def test_segmentations_choose_their_doubt_on_validation_cases() -> None:
    run, recipe, task = Run(Budget(epochs=2)), parse("partial:rate=0.2"), tasks.pixels()
    x = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    task = replace(task, validation=TensorDataset(x, (x[:, 0] > 0.5).long()))
    judgement = judge(recipe, prepare(recipe, task, run), task, run, samples=4, figures=True)
    used = judgement.by_case["doubt_score"]
    assert used["chosen_on"]["cases"] == 12
    assert used["name"] == used["chosen_on"]["name"] in judgement.by_case["doubt"]
    assert any("ranked the 12 validation cases best" in line for line in case_sentences(judgement.by_case))
    chosen = judgement.arrays[f"case/{used['name']}"]
    assert torch.equal(judgement.arrays["case/doubt"], chosen)
    assert {"boundary_ece", "lesion_sensitivity", "lesion_false_positives"} <= judgement.metrics.keys()
    columns = judgement.cases.splitlines()[0].split(",")
    assert {"error_auroc", "boundary_ece", "lesions_found", "hd95", "expected_dice_loss", "edge_total"} <= set(columns)
