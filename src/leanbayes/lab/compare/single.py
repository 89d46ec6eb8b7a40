"""One run of a comparison: one method is trained with one seed, judged, and kept; and what others hear of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from leanbayes.lab.compare.arrays import bayesian_inside
from leanbayes.lab.compare.judging import judge
from leanbayes.lab.compare.record import Record, is_main_process
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes import Recipe, Run, prepare
from leanbayes.storage import save
from leanbayes.train import Epoch

__all__ = ["Event", "Watch", "Watching", "train_and_judge"]

Watch = Callable[["Event"], None]


@dataclass(frozen=True)
class Event:
    """How far a comparison is: ``done`` of ``total`` steps of one stage of one method.

    ``epoch`` is what the last epoch of a training gave; None in other stages. ``run_done`` says that the method has
    been trained and judged with this seed, or that it failed or was there already.
    """

    method: str
    seed: int
    stage: str
    done: int
    total: int
    epoch: Epoch | None = None
    run_done: bool = False


class Watching:
    """Tells a watcher of one run what happens in it: it is the `Watcher` of the run.

    Args:
        watch: is called with each event; None hears nothing.
        method: the name of the method.
        seed: the seed of the run.
    """

    def __init__(self, watch: Watch | None, method: str, seed: int) -> None:
        self.watch = watch if is_main_process() else None
        self.method, self.seed = method, seed
        self.epoch: Epoch | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Pass on how far a stage is."""
        epoch, self.epoch = self.epoch, None
        if self.watch is not None:
            self.watch(Event(self.method, self.seed, stage, done, total, epoch))

    def remember(self, epoch: Epoch) -> None:
        """Take in what an epoch gave, for the next event."""
        self.epoch = epoch

    def end(self) -> None:
        """Say that the run is over."""
        if self.watch is not None:
            self.watch(Event(self.method, self.seed, "end", 1, 1, run_done=True))


def train_and_judge(
    record: Record,
    name: str,
    recipe: Recipe,
    task: Task,
    run: Run,
    samples: int,
    about: Mapping[str, Any] | None,
) -> None:
    """Train a method with one seed, judge it, and keep its model and its scores in the record."""
    trained = prepare(recipe, task, run)
    if not is_main_process():
        return
    judgement = judge(recipe, trained, task, run, samples=samples, figures=record.needs_arrays(name))
    save(trained.predictor, record.model_file(name, run.seed), about=about)
    record.add(name, recipe, run.seed, judgement, _layers(trained.predictor))


def _layers(predictor: nn.Module) -> list[dict[str, Any]]:
    bnn = bayesian_inside(predictor)
    if bnn is None:
        return []
    return [{"name": part.name, "random": part.random, "size": part.size} for part in bnn.summary()]
