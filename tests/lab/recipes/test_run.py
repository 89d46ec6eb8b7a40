"""A run: what it shares, what it spends, where it continues, and what it reports."""

from pathlib import Path

import pytest
import torch

from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def test_a_start_that_two_recipes_share_is_trained_once_and_charged_twice() -> None:
    task, nets = tasks.classes(), {}
    stages: list[str] = []
    for spec in ("vi", "layers"):
        run = Run(BUDGET, nets=nets, watch=lambda stage, epoch, epochs: stages.append(stage))
        prepare(parse(spec), task, run)
        assert run.seconds > next(iter(nets.values()))[1]
    assert stages == ["plain"] * 4 + ["vi"] * 4 + ["layers"] * 4


def test_every_recipe_spends_the_epochs_of_the_budget() -> None:
    task = tasks.classes()
    for spec in ("deterministic", "dropout", "vi", "vdp", "partial:pretrain=0.25", "layers:pretrain=0", "swag:draws=2"):
        stages: list[str] = []
        prepare(parse(spec), task, Run(BUDGET, watch=lambda stage, epoch, epochs, to=stages: to.append(stage)))
        own = ("plain", parse(spec).name)
        assert len([stage for stage in stages if stage in own]) == BUDGET.epochs, spec


def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    task = tasks.classes()

    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == wanted and done == 3:
            raise Stop

    for spec, wanted in (("partial", "plain"), ("partial", "partial"), ("swag:draws=2", "swag")):
        whole = prepare(parse(spec), task, Run(BUDGET)).predictor.state_dict()
        folder = tmp_path / f"{spec[:4]}{wanted}"
        with pytest.raises(Stop):
            prepare(parse(spec), task, Run(BUDGET, folder=folder, watch=stop))
        again = prepare(parse(spec), task, Run(BUDGET, folder=folder)).predictor.state_dict()
        assert all(torch.equal(whole[name], again[name]) for name in whole), (spec, wanted)


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        ("partial:rate=0.1", "sensitivity"),
        ("laplace", "curvature"),
        ("swag:draws=2", "batch norms of the draws"),
        ("deterministic+temperature", "temperature"),
    ],
)
def test_steps_that_are_no_training_are_told_too(spec: str, stage: str) -> None:
    task = tasks.pictures() if "swag" in spec else tasks.classes()
    told: list[tuple[str, int, int]] = []
    prepare(parse(spec), task, Run(BUDGET, watch=lambda *event: told.append(event)))
    steps = [(done, total) for name, done, total in told if name == stage]
    assert steps
    assert steps[-1][0] == steps[-1][1]
    assert all(1 <= done <= total for done, total in steps)


def test_the_same_seed_trains_the_same_net_and_another_another() -> None:
    task = tasks.classes()
    nets = [prepare(parse("partial"), task, Run(BUDGET, seed)).predictor.state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])
    assert not torch.equal(nets[0]["model.0.weight"], nets[2]["model.0.weight"])
