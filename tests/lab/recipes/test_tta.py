"""``+tta`` on top of recipes for images, and its refusal of tables before any training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import leanbayes as lb
from leanbayes.baselines import Augmented, Temperature
from leanbayes.baselines.augmentation import FLIPS, SHIFTS
from leanbayes.errors import InputError
from leanbayes.lab.recipes import Run, parse, prepare, settings
from leanbayes.metrics import accuracy
from tests import tasks
from tests.lab.recipes.cases import BUDGET


@pytest.mark.parametrize(
    "spec",
    ["deterministic+tta", "partial+tta", "swa+tta:flips=horizontal,shift=0+temperature", "ensemble:members=2+tta"],
)
def test_it_goes_on_top_of_recipes_and_comes_back_from_a_file(spec: str, tmp_path: Path) -> None:
    task = tasks.pictures()
    trained = prepare(parse(spec), task, Run(BUDGET))
    inner = trained.predictor.model if isinstance(trained.predictor, Temperature) else trained.predictor
    assert isinstance(inner, Augmented)
    x, y = task.test[:]

    def ask(model: Any) -> lb.Prediction:
        return lb.predict(model, x, samples=8, method="loop", generator=torch.Generator().manual_seed(3))

    result = ask(trained.predictor)
    assert accuracy(result.mean, y) > 0.8
    lb.save(trained.predictor, tmp_path / "x.lb")
    torch.testing.assert_close(ask(lb.load(tmp_path / "x.lb", tasks.cnn())).mean, result.mean)


def test_the_validation_set_chooses_flips_that_suit_the_data() -> None:
    """Stripes lie at the top, in the middle or at the bottom: upside down is another class, and left right is not."""
    task, stages = tasks.pictures(), []
    run = Run(BUDGET, watch=lambda stage, done, total: stages.append((stage, done, total)))
    views = prepare(parse("deterministic+tta"), task, run).predictor.views
    assert not {"vertical", "both"} & set(views)
    assert ("views", 1, 1) in stages
    again = prepare(parse("partial+tta"), task, Run(BUDGET)).predictor.views
    assert again == prepare(parse("partial+tta"), task, Run(BUDGET)).predictor.views


@pytest.mark.parametrize(
    ("options", "views"),
    [
        ("flips=both", (*FLIPS, *SHIFTS)),
        ("flips=both,shift=0", tuple(FLIPS)),
        ("flips=none,shift=2", ("identity", *SHIFTS)),
        ("flips=vertical,shift=0", ("identity", "vertical")),
    ],
)
def test_options(options: str, views: tuple[str, ...]) -> None:
    predictor = prepare(parse(f"deterministic+tta:{options}"), tasks.pictures(), Run(BUDGET)).predictor
    assert predictor.views == views
    assert predictor.shift == (2 if "shift=2" in options else 1)


def test_segmentation_has_flips_and_no_shifts() -> None:
    task = tasks.pixels()
    for options in ("", ":flips=both", ":flips=horizontal,shift=3"):
        trained = prepare(parse(f"deterministic+tta{options}"), task, Run(BUDGET))
        assert not set(SHIFTS) & set(trained.predictor.views)
    x, y = task.test[:]
    assert (lb.predict(trained.predictor, x).mean.argmax(1) == y).float().mean() > 0.7


def test_tables_and_tiny_images_are_refused_before_training() -> None:
    def never(*_: object) -> None:
        raise AssertionError("training has begun")

    for make in (tasks.classes, tasks.regression):
        with pytest.raises(InputError, match="columns of a table cannot be flipped"):
            prepare(parse("deterministic+tta"), make(), Run(BUDGET, watch=never))
    with pytest.raises(InputError, match=r"images of \(6, 6\) pixels cannot be shifted by 6"):
        prepare(parse("deterministic+tta:shift=6"), tasks.pictures(), Run(BUDGET, watch=never))
    with pytest.raises(InputError, match="unknown flips"):
        parse("deterministic+tta:flips=diagonal")


def test_the_record_names_what_is_underneath() -> None:
    record = settings(parse("deterministic+tta:shift=2"))
    assert record == {"name": "tta", "of": {"name": "deterministic"}, "flips": "auto", "shift": 2}
    assert parse("tta").of.name == "deterministic"


def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "views":
            raise Stop

    task, budget = tasks.pictures(), replace(BUDGET, epochs=3)
    whole = prepare(parse("deterministic+tta"), task, Run(budget)).predictor
    with pytest.raises(Stop):
        prepare(parse("deterministic+tta"), task, Run(budget, folder=tmp_path, watch=stop))
    again = prepare(parse("deterministic+tta"), task, Run(budget, folder=tmp_path)).predictor
    assert again.views == whole.views
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in whole.state_dict().items())
