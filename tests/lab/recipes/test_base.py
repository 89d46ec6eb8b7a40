"""Every recipe trains a predictor that works, within its budget, and can be kept in a file."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.baselines import Ensemble, LaplaceApproximation, MCDropout, Swag, Temperature
from leanbayes.conformal import Sets
from leanbayes.lab.recipes import Budget, Recipe, Run, parse, prepare
from leanbayes.metrics import accuracy
from tests import tasks
from tests.lab.recipes.cases import BUDGET

SPECS = {
    "deterministic": nn.Sequential,
    "ensemble:members=3": Ensemble,
    "dropout:rate=0.1": MCDropout,
    "vi": lb.Bayesian,
    "partial:rate=0.1": lb.Bayesian,
    "layers": lb.Bayesian,
    "vdp": lb.Bayesian,
    "radial": lb.Bayesian,
    "ssvi:density=0.4": lb.Bayesian,
    "rigl:density=0.4": nn.Sequential,
    "variational_dropout:kl_end=0.1": lb.Bayesian,
    "vdp:likelihood=moment,per=filter": lb.Bayesian,
    "vi:predict=moments": lb.Bayesian,
    "partial:rate=0.1,predict=moments": lb.Bayesian,
    "layers:predict=moments": lb.Bayesian,
    "vdp+temperature": Temperature,
    "swag:rank=3,draws=4": Swag,
    "swa": nn.Sequential,
    "swa:schedule=cyclical,cycle=2,pretrain=0.5": nn.Sequential,
    "snapshot:members=3": Ensemble,
    "swa+temperature": Temperature,
    "laplace": LaplaceApproximation,
    "laplace:subset=subnetwork,rate=0.3": LaplaceApproximation,
    "vi+temperature": Temperature,
    "vi+temperature+conformal:level=0.7": Sets,
    "ensemble:members=2+temperature": Temperature,
}


@pytest.mark.parametrize("spec", SPECS)
def test_it_learns_and_comes_back_from_a_file(spec: str, tmp_path: Path) -> None:
    task = tasks.classes()
    trained = prepare(parse(spec), task, Run(BUDGET))
    assert isinstance(trained.predictor, SPECS[spec])
    assert trained.seconds > 0
    x, y = task.test[:]

    def ask(model: nn.Module) -> lb.Prediction:
        return lb.predict(model, x, samples=8, method="loop", generator=torch.Generator().manual_seed(3))

    result = ask(trained.predictor)
    assert accuracy(result.mean, y) > 0.85
    lb.save(trained.predictor, tmp_path / "x.lb", about={"spec": spec})
    again = ask(lb.load(tmp_path / "x.lb", tasks.mlp()))
    torch.testing.assert_close(again.mean, result.mean)
    torch.testing.assert_close(again.total, result.total)
    assert lb.about(tmp_path / "x.lb") == {"spec": spec}


@pytest.mark.parametrize(
    "spec", ["swag:rank=3,draws=4", "partial", "dropout", "ensemble:members=2", "vdp", "swa", "snapshot"]
)
def test_batch_norm_passes_through_and_comes_back(spec: str, tmp_path: Path) -> None:
    task = tasks.pictures()
    predictor = prepare(parse(spec), task, Run(BUDGET)).predictor
    x, y = task.test[:]
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    result = lb.predict(predictor, x, samples=4, method="loop", generator=generators[0])
    assert accuracy(result.mean, y) > 0.8
    lb.save(predictor, tmp_path / "x.lb")
    again = lb.predict(lb.load(tmp_path / "x.lb", tasks.cnn()), x, samples=4, method="loop", generator=generators[1])
    torch.testing.assert_close(again.mean, result.mean)


@pytest.mark.parametrize(
    "spec",
    [
        "deterministic",
        "partial:rate=0.1",
        "ensemble:members=2",
        "dropout",
        "layers:predict=moments",
        "vdp",
        "swa",
        "snapshot:members=2,lr=0.05",
    ],
)
@pytest.mark.parametrize("make", [tasks.pixels, tasks.regression])
def test_pixels_and_regression(spec: str, make) -> None:
    task = make()
    trained = prepare(parse(spec), task, Run(BUDGET))
    x, y = task.test[:]
    result = lb.predict(trained.predictor, x, likelihood=trained.likelihood, samples=4)
    score = (
        (result.mean.argmax(1) == y).float().mean() if y.dim() > 2 else 1 - (result.mean - y).square().mean() / y.var()
    )
    assert score > 0.7


def test_noise_is_learnt_in_a_copy() -> None:
    task = tasks.regression()
    trained = prepare(parse("deterministic"), task, Run(dataclasses.replace(BUDGET, epochs=40)))
    assert task.likelihood.noise == 1
    assert 0.05 < trained.likelihood.noise < 0.4


def test_a_new_recipe_is_one_class() -> None:
    @dataclasses.dataclass(frozen=True)
    class Nothing(Recipe):
        name = "nothing"

        def train(self, task: object, run: Run) -> nn.Module:
            return run.new_model(task)

    assert isinstance(prepare(Nothing(), tasks.classes(), Run()).predictor, nn.Module)


@pytest.mark.parametrize(
    "spec", [*SPECS, "lean", "lean:rate=0.1", "ensemble:of=lean:rate=0.1,members=2", "swa:cycle=3"]
)
def test_a_recipe_knows_how_few_epochs_it_can_be_trained_for(spec: str) -> None:
    """The training begins with as many epochs as the recipe says, and not with one less."""
    recipe = parse(spec)
    least = recipe.least_epochs()
    with pytest.raises(Reached):
        recipe.train(tasks.classes(), Counted(Budget(epochs=least)))
    if least > 1:
        with pytest.raises(lb.errors.InputError, match="epochs"):
            recipe.train(tasks.classes(), Counted(Budget(epochs=least - 1)))


class Reached(Exception):
    """The training has begun, so the epochs suffice."""


class Counted(Run):
    """A run in which no network is trained."""

    def fit(self, *_: object, **__: object) -> None:
        raise Reached

    def member(self, index: int, of: int) -> Run:
        return self
