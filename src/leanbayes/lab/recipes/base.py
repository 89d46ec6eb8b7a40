"""What every recipe shares: a budget, a run, and the data loaders and plain nets that a run hands out."""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from leanbayes.errors import InputError
from leanbayes.evaluation.cost import Relative
from leanbayes.lab.data.task import Task
from leanbayes.likelihood import Likelihood
from leanbayes.train import Epoch, fit

__all__ = ["Budget", "Recipe", "Run", "Trained", "option", "prepare"]


def option(default: Any, help: str) -> Any:
    """A field of a configuration, with the line that the command line shows for it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Budget:
    """What every method may spend on one network."""

    epochs: int = option(40, "epochs for one network, whatever its stages")
    batch_size: int = option(64, "examples in a batch")
    optimizer: str = option("adam", "adam, adamw or sgd")
    lr: float = option(2e-3, "learning rate")
    schedule: str = option("constant", "of the learning rate: constant or cosine")
    weight_decay: float = option(0.0, "on means, not on scales")
    clip: float | None = option(None, "largest norm of the gradient")
    patience: int | None = option(None, "stop a stage after so many epochs without a better validation nll")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.lr > 0:
            raise InputError(f"lr must be positive, got {self.lr}")


Watcher = Callable[[str, int, int], None]
"""Told the stage under way, how many of its steps are done, and how many there are."""


@dataclass
class Run:
    """One training of one recipe: its budget, seed and folder, and how long it has taken.

    ``plain`` nets are kept in ``nets``, which several runs may share: recipes that start from the same trained net
    train it once, and each is charged its time. ``propagated`` is how noise, if any, passed through in training.
    """

    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    folder: Path | None = None
    watch: Watcher | None = None
    nets: dict[tuple[int, int], tuple[dict[str, torch.Tensor], float]] = field(default_factory=dict)
    seconds: float = 0.0
    propagated: str | None = None

    def new_model(self, task: Task, seed: int | None = None) -> nn.Module:
        """An untrained network of this seed; torch's random state is left as it was."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed if seed is None else seed)
            return task.model()

    def loader(self, data: Dataset[Any], shuffle: bool = False) -> DataLoader[Any]:
        """Batches."""
        return DataLoader(data, batch_size=self.budget.batch_size, shuffle=shuffle)

    def tracked(self, data: Dataset[Any], stage: str) -> "Tracked":
        """Batches for a step that is no training; whoever watches is told of each."""
        return Tracked(self.loader(data), lambda done, total: self.tell(stage, done, total))

    def tell(self, stage: str, done: int, total: int) -> None:
        """How far a stage is."""
        if self.watch is not None:
            self.watch(stage, done, total)

    def fit(self, model: nn.Module, task: Task, stage: str, epochs: int, **options: Any) -> None:
        """Train for a stage of the budget; a killed run goes on where it was."""
        budget = self.budget

        def told(epoch: Epoch) -> None:
            self.tell(stage, epoch.epoch + 1, epochs)

        settings: dict[str, Any] = {
            "likelihood": task.likelihood,
            "optimizer": budget.optimizer,
            "lr": budget.lr,
            "schedule": budget.schedule,
            "weight_decay": budget.weight_decay,
            "clip": budget.clip,
            "validate": self.loader(task.validation),
            "patience": budget.patience,
            "checkpoint": None if self.folder is None else self.folder / stage.replace(" ", "_"),
            "seed": self.seed,
        } | options
        callbacks = [*settings.pop("callbacks", ()), told]
        batches = self.loader(task.train, shuffle=True)
        history = fit(model, batches, epochs=epochs, callbacks=callbacks, **settings)
        self.seconds += sum(epoch.seconds for epoch in history.epochs)  # those before a kill too

    def plain(self, task: Task, epochs: int) -> nn.Module:
        """A network of this seed, trained without randomness."""
        model = self.new_model(task)
        if (self.seed, epochs) in self.nets:
            state, seconds = self.nets[self.seed, epochs]
            model.load_state_dict(state)
            self.seconds += seconds
            return model
        before = self.seconds
        self.fit(model, task, "plain", epochs)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        self.nets[self.seed, epochs] = (state, self.seconds - before)
        return model

    @contextmanager
    def charged(self) -> Iterator[None]:
        """What is done inside counts as training."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin

    def share(self, part: float) -> tuple[int, int]:
        """The epochs, cut in two: this part of them, and the rest; neither is empty unless the part is 0 or 1."""
        first = round(part * self.budget.epochs)
        if 0 < part < 1:
            if self.budget.epochs < 2:
                raise InputError(f"a recipe of two stages needs at least 2 epochs, got {self.budget.epochs}")
            first = min(max(first, 1), self.budget.epochs - 1)
        return first, self.budget.epochs - first

    def member(self, index: int, of: int) -> "Run":
        """The run of one member of an ensemble: seeds 0 to 4 for five members of seed 0."""
        folder = None if self.folder is None else self.folder / f"member{index}"
        return replace(self, seed=self.seed * of + index, folder=folder, nets={}, seconds=0.0)


@dataclass(frozen=True)
class Tracked:
    """Batches, each of which is told; they can be gone through again."""

    batches: DataLoader[Any]
    told: Callable[[int, int], None]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for done, batch in enumerate(self.batches, start=1):
            yield batch
            self.told(done, len(self.batches))


class Recipe(ABC):
    """How one predictor is built and trained: a frozen dataclass with a ``name`` and one method."""

    name: ClassVar[str]

    @abstractmethod
    def train(self, task: Task, run: Run) -> nn.Module:
        """The trained predictor."""

    def formula(self) -> Relative | None:
        """What 001's Table 1 says of one training step, if it has this method."""
        return None


@dataclass(frozen=True)
class Trained:
    """A predictor, what its outputs mean (noise may have been learnt), and its training's seconds and propagation."""

    predictor: nn.Module
    likelihood: Likelihood
    seconds: float
    propagated: str | None = None


def prepare(recipe: Recipe, task: Task, run: Run) -> Trained:
    """Train ``recipe`` on ``task``; the task is left as it was."""
    own = replace(task, likelihood=copy.deepcopy(task.likelihood))
    predictor = recipe.train(own, run)
    return Trained(predictor.eval(), own.likelihood, run.seconds, run.propagated)
