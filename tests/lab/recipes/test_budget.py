"""The budget refuses what no training can spend, and fits its batches to the images."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import leanbayes as lb
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from tests import tasks


def test_bad_budgets() -> None:
    for values in ({"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"dice": -1.0}):
        with pytest.raises(lb.errors.InputError):
            Budget(**values)
    with pytest.raises(lb.errors.InputError, match="two stages"):
        prepare(parse("vi"), tasks.classes(), Run(Budget(epochs=1)))


@pytest.mark.parametrize(
    ("sides", "pixels", "size"),
    [((288, 384), True, 2), ((128, 128), True, 16), ((64, 64), True, 64), ((2000, 2000), True, 2), ((96,) * 3, True, 2),
     ((28, 28), False, 64), ((224, 224), False, 32), ((288, 384), False, 16)],
)  # fmt: skip
def test_batches_of_large_images_are_small(sides: tuple[int, ...], pixels: bool, size: int) -> None:
    x = torch.zeros(1, 1, *sides)
    data = TensorDataset(x, torch.zeros(1, *(sides if pixels else ()), dtype=torch.long))
    task = Task("zeros", data, data, data, nn.Identity, lb.Categorical(), ("a", "b"))
    assert Budget().fitting(task).batch_size == size
    assert Budget(batch_size=17).fitting(task).batch_size == 17


def test_features_have_the_usual_batches_and_nothing_is_drawn() -> None:
    state = torch.get_rng_state()
    assert Budget().fitting(tasks.classes()).batch_size == 64
    assert torch.equal(state, torch.get_rng_state())
    run = Run(Budget(epochs=1))
    prepare(parse("deterministic"), tasks.pixels(), run)
    assert run.budget.batch_size == 64


@pytest.mark.parametrize("spec", ["deterministic", "partial:rate=0.2", "lean", "ensemble:members=2", "dropout"])
def test_the_dice_loss_trains_every_kind_of_recipe(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    import leanbayes.lab.recipes.run as module

    plain = module.fit
    monkeypatch.setattr(
        module, "fit", lambda *args, **kwargs: (seen.append(kwargs["kl_weight"].dice), plain(*args, **kwargs))[1]
    )
    trained = prepare(parse(spec), tasks.pixels(), Run(Budget(epochs=2, dice=0.5)))
    assert seen
    assert all(term.weight == 0.5 for term in seen)
    x, _ = tasks.pixels().test[0]
    assert torch.isfinite(lb.predict(trained.predictor, x[None], likelihood=lb.Categorical()).mean).all()


def test_a_task_without_masks_has_no_dice() -> None:
    for task in (tasks.classes(), tasks.regression()):
        with pytest.raises(lb.errors.InputError, match="leave dice out"):
            prepare(parse("deterministic"), task, Run(Budget(epochs=1, dice=0.5)))
