"""Conformal prediction goes on top of every recipe, and its calibration examples serve nothing else."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.conformal import Intervals, RiskControl, Sets, coverage_of
from leanbayes.lab.compare.conformal import measure_guarantee
from leanbayes.lab.compare.judging import judge
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.division import divide_validation
from leanbayes.lab.data.source import Cases, Examples, Source
from leanbayes.lab.data.task import Task
from leanbayes.lab.data.windows import windowed
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


def scans(patients: int = 0, window: bool = False) -> Task:
    """Forty images of eight by eight, of which several belong to each patient."""
    plan = Preparation("pixels", (0.0,), (1.0,), ("ground", "speck"), size=(8, 8))

    def examples(seed: int) -> Examples:
        x = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        whose = tuple(f"p{i % patients}" for i in range(40)) if patients else ()
        subgroups = tuple("ab"[i % 2] for i in range(40))
        return Examples(x, (x[:, 0] > 0.5).long(), plan, Cases(tuple(map(str, range(40))), whose, subgroups))

    names = ("ground", "speck")
    source = Source("scans", examples(0), examples(1), examples(2), plan)
    if window:
        source = windowed(source, (4, 4), 2, 0)
    likelihood = lb.Categorical()
    parts = (source.train, source.validation, source.test)
    return Task("scans", *parts, tasks.fcn, likelihood, names, preparation=source.preparation)


def test_patients_are_the_units_of_masks() -> None:
    task = scans(patients=20)
    trained = prepare(parse("deterministic+conformal:level=0.8,inner=0.3"), task, Run(BUDGET))
    assert isinstance(trained.predictor, RiskControl)
    inner, outer = trained.predictor.nested(task.test[0][0][None])
    assert bool((outer | ~inner).all())  # an inner mask lies in the outer one
    assert trained.predictor.cases == 10  # patients, of 20 images
    with_confidence = parse("deterministic+conformal:level=0.5,risk=dice,confidence=0.1")
    trained = prepare(with_confidence, task, Run(replace(BUDGET, epochs=30)))
    assert isinstance(trained.predictor, RiskControl)
    assert (trained.predictor.risk.name, trained.predictor.confidence) == ("dice", 0.1)


def test_windows_are_calibrated_on_whole_images(tmp_path: Path) -> None:
    task = scans(window=True)
    recipe = parse("deterministic+conformal:level=0.8")
    trained = prepare(recipe, task, Run(BUDGET))
    control = trained.predictor
    assert isinstance(control, RiskControl)
    assert control.cases == 20  # images, not their 40 windows
    x = task.test[0][0][None]
    assert control.masks(x).shape == (1, 8, 8)
    lb.save(control, tmp_path / "x.lb")
    assert torch.equal(lb.load(tmp_path / "x.lb", tasks.fcn()).masks(x), control.masks(x))
    judgement = judge(recipe, trained, task, Run(BUDGET), samples=2, figures=True)
    assert 0 <= judgement.metrics["conformal_risk/low"] <= judgement.metrics["conformal_risk"]
    assert "conformal/risk" in judgement.arrays


def test_a_shared_network_that_saw_the_calibration_examples_is_not_taken_over() -> None:
    """The best epoch of a shared network was chosen by the whole validation set."""
    task, nets = tasks.classes(), {}
    for spec in ("deterministic", "deterministic+conformal:level=0.6"):
        prepare(parse(spec), task, Run(BUDGET, nets=nets))
    SEEN.clear()
    prepare(ConformalRecipe(of=Spy(), level=0.6), task, Run(BUDGET, nets=nets))
    assert nets
    assert SEEN[0][1] == {}


def test_each_subgroup_of_the_data_has_the_guarantee() -> None:
    source = Source("table", *(numbers(seed) for seed in range(3)), PLAN)
    task = replace(
        tasks.regression(), train=source.train, validation=source.validation, test=source.test, preparation=PLAN
    )
    trained = prepare(parse("deterministic+conformal:per=group,level=0.8"), task, Run(BUDGET))
    assert isinstance(trained.predictor, Intervals)
    assert trained.predictor.per == "group"
    assert trained.predictor.group_names.tolist() == [0, 1]
    measured = measure_guarantee(trained.predictor, Run(BUDGET).loader(task.test), task)
    assert {"conformal_group_coverage/clinic a", "conformal_group_coverage/clinic b"} < measured.metrics.keys()
    with pytest.raises(lb.errors.InputError, match=r"the subgroup 'clinic a' has \d+ calibration"):
        prepare(parse("deterministic+conformal:per=group,level=0.99,share=0.95"), task, Run(BUDGET))


PLAN = Preparation("regression", (0.0, 0.0), (1.0, 1.0), features=("a", "b"), target_mean=(0.0,), target_std=(1.0,))


def numbers(seed: int) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(120, 2, generator=generator)
    y = x[:, :1].sin() + 0.1 * torch.randn(120, 1, generator=generator)
    return Examples(
        x, y, PLAN, Cases(tuple(map(str, range(120))), (), tuple(f"clinic {'ab'[i % 2]}" for i in range(120)))
    )


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
    division = divide_validation(task, 0.5)
    calibration, rest = division.calibration, division.rest
    assert not set(calibration.indices) & set(rest.indices)
    assert len(calibration) + len(rest) == len(task.validation)
    assert first.validation.indices == rest.indices
    assert first.train is task.train
    assert first.test is task.test
    assert len(seen[0].scores_seen) == len(calibration)
    assert first_nets == {}  # the epoch of shared networks was chosen by the whole validation set
    assert second_nets == {}


@pytest.mark.parametrize(
    ("spec", "make", "words"),
    [
        ("deterministic+conformal:level=0.99", tasks.classes, "needs at least 99"),
        ("deterministic+conformal:score=nothing", tasks.classes, "unknown score of classes"),
        ("deterministic+conformal:score=lac", tasks.pixels, "is for classes and numbers"),
        ("deterministic+conformal:per=class", tasks.regression, "needs classes"),
        ("deterministic+conformal:per=group", tasks.classes, "--subgroups"),
        ("deterministic+conformal:risk=nothing", tasks.pixels, "unknown risk"),
        ("deterministic+conformal:risk=dice", tasks.pixels, "only be bounded with a confidence"),
        ("deterministic+conformal:confidence=0.9", tasks.classes, "are for masks and labels"),
        ("deterministic+conformal:inner=0.1", tasks.classes, "are for masks and labels"),
        ("deterministic+conformal:level=0.5,inner=0.05", lambda: scans(patients=10), "level 0.95 needs at least 19"),
        ("deterministic+conformal:level=0.95", lambda: scans(patients=10), "are 5 patients; .* needs at least 19"),
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
