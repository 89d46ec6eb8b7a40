"""Judge one trained predictor: its quality on the test set, its cost, and the arrays behind its figures."""

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import split_batch
from leanbayes.evaluation import evaluate
from leanbayes.evaluation.cost import cost_of, forward_flops
from leanbayes.evaluation.run import PredictedBatch
from leanbayes.lab.compare.arrays import FigureArrays, sigma_of_first_layer
from leanbayes.lab.compare.cases import CaseScores
from leanbayes.lab.compare.conformal import measure_guarantee
from leanbayes.lab.compare.doubt import chosen_doubt
from leanbayes.lab.compare.members import MemberScores, remembering
from leanbayes.lab.compare.shown import ShownCases
from leanbayes.lab.data.source import Examples
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes import Recipe, Run, Trained
from leanbayes.lab.recipes.budget import USUAL_BATCH
from leanbayes.lab.windows import Windowed

__all__ = ["Judgement", "judge"]

_DRAWS = 2**28  # bytes of what draws predict for the inputs of one batch
_PIXELS = 2**18  # of the inputs of one batch; a pass of moments keeps several times what a plain pass does
_MOST_DRAWS = 2**31  # bytes for one input; what the draws of a larger one predict is not kept


@dataclass(frozen=True)
class Judgement:
    """How good one trained predictor is, and what it costs.

    Attributes:
        metrics: the quality on the test set, by the full names of the metrics.
        cost: memory, time and arithmetic, by name.
        arrays: what the figures of the report draw; empty unless they were asked for.
        scales: for each stage of the training, the quantiles of σ at its start and end and how far σ moved.
        cases: the table of the test cases as CSV, one row for each.
        by_case: means over the cases with intervals over patients, and how well doubt finds the cases that fail.
        nll_by_members: for an ensemble of plain networks, the NLL with 1, 2, … of them; empty for other predictors.
    """

    metrics: dict[str, float]
    cost: dict[str, Any]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    nll_by_members: list[float] = field(default_factory=list)
    cases: str = ""
    by_case: dict[str, Any] = field(default_factory=dict)


def judge(
    recipe: Recipe, trained: Trained, task: Task, run: Run, *, samples: int = 32, figures: bool = False
) -> Judgement:
    """Measure the quality and the cost of a trained predictor on the test set and the shifted sets of a task.

    Each input is predicted once, and its prediction serves the metrics, the figures and the scores of single members.

    Args:
        recipe: how the predictor was trained.
        trained: the predictor and its likelihood.
        task: the data.
        run: the run that trained it. Its seed seeds the draws, its budget gives the size of a batch, and its watcher
            sees the stage "evaluate".
        samples: how many weight draws each prediction averages.
        figures: whether to collect the arrays behind the figures.
    """
    whose = getattr(task.test, "cases", None)
    patients = () if whose is None else whose.patients
    collector = FigureArrays(trained.likelihood, patients) if figures else None
    window = None if task.preparation is None else task.preparation.window
    predictor = trained.predictor if window is None else Windowed(trained.predictor, window)
    members = remembering(recipe, predictor)
    scores = MemberScores(trained.likelihood, lambda prediction: task.scored(prediction, None)[0])
    cases = CaseScores(task, trained.likelihood)
    shown = ShownCases(task) if figures else None
    size, keep = _batches(task, run, samples)
    cases.use_doubt(_doubt(predictor, trained, task, run, samples))
    test = run.loader(task.test, batch_size=size)
    shifted = {name: run.loader(data) for name, data in task.shifted.items()}
    steps = len(test) + sum(map(len, shifted.values())) + 1  # the last step measures the cost
    done, collecting = 0, 0.0

    def on_prediction(batch: PredictedBatch) -> None:
        nonlocal done, collecting
        begin = time.perf_counter()
        if collector is not None:
            collector.add(batch)
        if members is not None and batch.shifted is None:
            scores.add(members.last, batch.targets)
        before = len(cases.rows)
        cases.add(batch)
        if shown is not None:
            shown.add(batch, cases.rows[before:], cases.doubt_about)
        collecting += time.perf_counter() - begin
        done += 1
        run.tell("evaluate", done, steps)

    begin = time.perf_counter()
    evaluation = evaluate(
        predictor if members is None else members,
        test,
        likelihood=trained.likelihood,
        samples=samples,
        shifted=shifted,
        generator=torch.Generator().manual_seed(run.seed),
        in_units=task.scored,
        on_prediction=on_prediction,
        keep_samples=keep,
    )
    seconds = time.perf_counter() - begin - collecting
    cost = _cost(recipe, trained, task, run) | {"train_seconds": trained.seconds, "predict_seconds": seconds}
    arrays = {}
    if collector is not None:
        arrays = collector.arrays() | sigma_of_first_layer(trained.predictor) | cases.arrays()
    if shown is not None:
        arrays |= shown.arrays()
    run.tell("evaluate", steps, steps)
    scales = {stage: asdict(moved) for stage, moved in trained.scales.items()}
    guarantee = measure_guarantee(trained.predictor, test, task)
    arrays |= guarantee.arrays if figures else {}
    metrics = evaluation.metrics | cases.metrics() | guarantee.metrics
    return Judgement(metrics, cost, arrays, scales, scores.by_size(), cases.text(), cases.summary())


def _doubt(predictor: nn.Module, trained: Trained, task: Task, run: Run, samples: int) -> dict[str, Any] | None:
    """Choose the score of doubt of a segmentation on whole validation cases; None if the data are no segmentation."""
    data = task.validation
    if _has_windows(task) and isinstance(data, Examples):
        data = Examples(data.inputs, data.targets, data.preparation, data.cases)  # whole images instead of windows
    target = torch.as_tensor(split_batch(data[0])[1])
    if task.likelihood.kind(target[None]) != "pixels" or not task.classes:
        return None
    size, keep = _batches(task, run, samples)
    cases = CaseScores(replace(task, test=data), trained.likelihood)
    batches = run.loader(data, batch_size=size)
    done = 0

    def on_prediction(batch: PredictedBatch) -> None:
        nonlocal done
        cases.add(batch)
        done += 1
        run.tell("validation cases", done, len(batches))

    evaluate(
        predictor,
        batches,
        likelihood=trained.likelihood,
        samples=samples,
        generator=torch.Generator().manual_seed(run.seed),
        in_units=task.scored,
        on_prediction=on_prediction,
        keep_samples=keep,
    )
    return chosen_doubt(cases.rows)


def _batches(task: Task, run: Run, samples: int) -> tuple[int, bool]:
    """Return how many test inputs are predicted at a time, and whether what each draw predicts can be kept.

    Only segmentations keep draws: their scores by case need them. Whole batches of them may be too large.
    """
    whole = 1 if _has_windows(task) else run.budget.batch_size or USUAL_BATCH  # whole images may differ in size
    target = torch.as_tensor(split_batch(task.test[0])[1])
    if task.likelihood.kind(target[None]) != "pixels":
        return whole, False
    of_one = 4 * samples * len(task.classes) * target.numel()
    return max(1, min(whole, _DRAWS // of_one, _PIXELS // target.numel())), of_one <= _MOST_DRAWS


def _cost(recipe: Recipe, trained: Trained, task: Task, run: Run) -> dict[str, Any]:
    data = task.validation if _has_windows(task) else task.test  # what the network itself sees
    x, y = split_batch(next(iter(run.loader(data))))
    cost = asdict(cost_of(trained.predictor, x, y, trained.likelihood))
    relative = recipe.relative_cost()
    if relative is not None:
        cost["flops_formula"] = relative.flops * forward_flops(run.new_model(task), x)
    return cost


def _has_windows(task: Task) -> bool:
    return task.preparation is not None and task.preparation.window is not None
