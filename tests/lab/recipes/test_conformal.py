"""Conformal prediction goes on top of every recipe, and its calibration examples serve nothing else."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.conformal import Intervals, RiskControl, Sets, coverage_of
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes import Recipe, Run, parse, prepare
from leanbayes.lab.recipes.conformal import ConformalRecipe
from tests import tasks
from tests.lab.recipes.cases import BUDGET

KINDS = {
    "classes": (tasks.classes, tasks.mlp, Sets),
    "regression": (tasks.regression, tasks.regressor, Intervals),
    "pixels": (tasks.pixels, tasks.fcn, RiskControl),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", ["deterministic+conformal:level=0.7", "vi+conformal:level=0.7,share=0.6"])
def test_it_is_calibrated_and_comes_back_from_a_file(spec: str, kind: str, tmp_path: Path) -> None:
    make, model, expected = KINDS[kind]
    task = make()
    trained = prepare(parse(spec), task, Run(BUDGET))
    assert isinstance(trained.predictor, expected)
    assert trained.predictor.calibrated
    x, y = task.test[:]
    if not isinstance(trained.predictor, RiskControl):
        assert coverage_of(trained.predictor, [(x, y)]).overall.share > 0.5
    lb.save(trained.predictor, tmp_path / "x.lb")
    again = lb.load(tmp_path / "x.lb", model())
    ask = {Sets: "sets", Intervals: "intervals", RiskControl: "masks"}[expected]
    one, two = (torch.as_tensor(torch.stack(list(getattr(p, ask)(x)))) for p in (trained.predictor, again))
    assert torch.equal(one, two)


def test_temperatures_and_conformal_prediction_compose() -> None:
    trained = prepare(parse("deterministic+temperature+conformal:level=0.6,score=lac"), tasks.classes(), Run(BUDGET))
    assert isinstance(trained.predictor, Sets)
    assert isinstance(trained.predictor.model, lb.baselines.Temperature)


@dataclass(frozen=True)
class Spy(Recipe):
    """Notes what the recipe on top lets it see."""

    name = "spy"

    def train(self, task: Task, run: Run) -> nn.Module:
        SEEN.append((task, run.nets))
        return run.new_model(task)


SEEN: list[tuple[Task, dict[object, object]]] = []


def test_calibration_examples_are_in_no_other_set() -> None:
    SEEN.clear()
    task, nets = tasks.classes(), {"shared": "nets"}
    seen = []
    recipe = ConformalRecipe(of=Spy(), level=0.6)
    for patience in (None, 3):
        run = Run(replace(BUDGET, patience=patience), nets=nets)  # type: ignore[arg-type]
        seen.append(prepare(recipe, task, run).predictor)
    (first, first_nets), (_, second_nets) = SEEN
    calibration, rest = recipe._split(task)
    assert not set(calibration.indices) & set(rest.indices)
    assert len(calibration) + len(rest) == len(task.validation)
    assert first.validation.indices == rest.indices
    assert first.train is task.train
    assert first.test is task.test
    assert len(seen[0].scores_seen) == len(calibration)
    assert first_nets is nets
    assert second_nets == {}  # a network that stopped early by the whole validation set is not taken over


@pytest.mark.parametrize(
    ("spec", "make", "words"),
    [
        ("deterministic+conformal:level=0.99", tasks.classes, "needs at least 99"),
        ("deterministic+conformal:score=nothing", tasks.classes, "unknown score of classes"),
        ("deterministic+conformal:score=lac", tasks.pixels, "is for classes and numbers"),
        ("deterministic+conformal:per=class", tasks.regression, "needs classes"),
        ("deterministic+conformal:per=group", tasks.classes, "groups=function"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(spec: str, make, words: str) -> None:
    run = Run(BUDGET)
    with pytest.raises(lb.errors.InputError, match=words):
        prepare(parse(spec), make(), run)
    assert run.seconds == 0


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_each_group_of_the_task_has_the_guarantee(kind: str) -> None:
    task = replace(KINDS[kind][0](), groups=lambda x: (x[:, 0] > 0).long())
    trained = prepare(parse("deterministic+conformal:per=group,level=0.5"), task, Run(BUDGET))
    assert isinstance(trained.predictor, Sets | Intervals)
    assert trained.predictor.per is task.groups
    assert trained.predictor.group_names.tolist() == [0, 1]
