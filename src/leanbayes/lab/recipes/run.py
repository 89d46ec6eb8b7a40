"""A run: one training of one recipe, with the data loaders, plain networks and timing that recipes share."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from leanbayes._calls import split_batch
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.processes import release_memory
from leanbayes.lab.recipes.budget import USUAL_BATCH, Budget
from leanbayes.objective import Terms
from leanbayes.train import Epoch, Optimization, Scales, fit

__all__ = ["EpochWatcher", "Run", "Tracked", "Watcher"]

Watcher = Callable[[str, int, int], None]
"""Is called with the stage that is under way, how many of its steps are done, and how many there are."""

EpochWatcher = Callable[[Epoch], None]
"""Is called with what an epoch of a training has given, before the `Watcher` hears of its end."""


@dataclass(frozen=True)
class Plain:
    """A trained plain network.

    Args:
        state: its weights and buffers.
        learnt: the parameters of the likelihood, such as a noise, that were trained with it.
        seconds: how long the training took.
    """

    state: dict[str, torch.Tensor]
    learnt: list[torch.Tensor]
    seconds: float


@dataclass
class Run:
    """One training of one recipe.

    Args:
        budget: what the training may spend.
        seed: the seed of the weights, the order of the data and the noise.
        folder: where checkpoints go, so that a killed run can continue; None keeps no checkpoints.
        watch: is called after each step of a stage.
        nets: the plain networks trained so far, by seed and epochs. Several runs may share this dictionary: recipes
            that start from the same plain network then train it once, and each of them is charged its time.
        seconds: how long the training has taken so far.
        scales: how the scales of the random weights moved, by stage.
        watch_epochs: is called with the loss of each epoch, before ``watch``.
    """

    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    folder: Path | None = None
    watch: Watcher | None = None
    nets: dict[tuple[int, int], "Plain"] = field(default_factory=dict)
    seconds: float = 0.0
    scales: dict[str, Scales] = field(default_factory=dict)
    watch_epochs: EpochWatcher | None = None

    def new_model(self, task: Task, seed: int | None = None) -> nn.Module:
        """Make an untrained network from a seed, and leave torch's random state as it was."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed if seed is None else seed)
            return task.model()

    def loader(self, data: Dataset[Any], shuffle: bool = False, batch_size: int | None = None) -> DataLoader[Any]:
        """Cut a data set into batches of the budget's size, or of another size."""
        return DataLoader(data, batch_size=batch_size or self.budget.batch_size or USUAL_BATCH, shuffle=shuffle)

    def tracked(self, data: Dataset[Any], stage: str) -> "Tracked":
        """Cut a data set into batches for a stage that is not training, and report each of them to the watcher."""
        return Tracked(self.loader(data), lambda done, total: self.tell(stage, done, total))

    def tell(self, stage: str, done: int, total: int) -> None:
        """Tell the watcher how far a stage is."""
        if self.watch is not None:
            self.watch(stage, done, total)

    def weighed(self, task: Task) -> Task:
        """Return the task as training sees it: with the budget's class weights in its likelihood."""
        chosen = self.budget.class_weights
        if chosen is None:
            return task
        weights = self.budget.weights_of_classes()
        if weights is None:
            targets = torch.cat([split_batch(batch)[1] for batch in self.loader(task.train)])
            balanced = task.likelihood.balanced_weights(targets, len(task.classes))
            return replace(task, likelihood=task.likelihood.weighed(balanced))
        if task.classes and len(weights) != len(task.classes):
            raise InputError(
                f"{task.name} has {len(task.classes)} classes, and class_weights={chosen!r} are {len(weights)} numbers"
                "; give one number for each class"
            )
        return replace(task, likelihood=task.likelihood.weighed(torch.tensor(weights)))

    def fit(
        self,
        model: nn.Module,
        task: Task,
        stage: str,
        epochs: int,
        *,
        optimization: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Train a model for one stage of the budget; a run that was killed in this stage continues from its checkpoint.

        Args:
            model: the network to train.
            task: the data and the likelihood.
            stage: the name of the stage, which the watcher and the checkpoint see.
            epochs: how many epochs of the budget this stage takes.
            optimization: fields of `leanbayes.Optimization` that replace those of the budget.
            **options: parameters of `leanbayes.fit` that replace those of the run.
        """
        budget = self.budget
        how: dict[str, Any] = {
            "optimizer": budget.optimizer,
            "lr": budget.lr,
            "schedule": budget.schedule,
            "weight_decay": budget.weight_decay,
            "clip": budget.clip,
            "patience": budget.patience,
        } | dict(optimization or {})

        def on_epoch(epoch: Epoch) -> None:
            if self.watch_epochs is not None:
                self.watch_epochs(epoch)
            self.tell(stage, epoch.epoch + 1, epochs)

        settings: dict[str, Any] = {
            "likelihood": self.weighed(task).likelihood,
            "optimizer": Optimization(**how),
            "validate": self.loader(task.validation),
            "checkpoint": None if self.folder is None else self.folder / stage.replace(" ", "_"),
            "seed": self.seed,
        } | options
        if budget.dice:
            settings["kl_weight"] = replace(Terms.of(settings.get("kl_weight", 1.0)), dice=budget.dice)
        callbacks = [*settings.pop("callbacks", ()), on_epoch]
        batches = self.loader(task.train, shuffle=True)
        history = fit(model, batches, epochs=epochs, callbacks=callbacks, **settings)
        release_memory()
        self.seconds += sum(epoch.seconds for epoch in history.epochs)  # with the epochs before a kill
        if history.scales is not None:
            self.scales[stage] = history.scales

    def plain(self, task: Task, epochs: int) -> nn.Module:
        """Return a network of this run's seed that was trained without randomness; train it if nobody has."""
        model = self.new_model(task)
        known = self.nets.get((self.seed, epochs))
        if known is not None:
            model.load_state_dict(known.state)
            for parameter, value in zip(task.likelihood.parameters(), known.learnt, strict=True):
                parameter.data.copy_(value)
            self.seconds += known.seconds
            return model
        before = self.seconds
        self.fit(model, task, "plain", epochs)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        learnt = [parameter.detach().clone() for parameter in task.likelihood.parameters()]
        self.nets[self.seed, epochs] = Plain(state, learnt, self.seconds - before)
        return model

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Count the time of the block as training time."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin

    def share(self, part: float) -> tuple[int, int]:
        """Cut the epochs of the budget in two; neither part is empty unless ``part`` is 0 or 1.

        >>> Run(Budget(epochs=10)).share(0.3)
        (3, 7)
        """
        first = round(part * self.budget.epochs)
        if 0 < part < 1:
            if self.budget.epochs < 2:
                raise InputError(f"a recipe of two stages needs at least 2 epochs, got {self.budget.epochs}")
            first = min(max(first, 1), self.budget.epochs - 1)
        return first, self.budget.epochs - first

    def member(self, index: int, of: int) -> "Run":
        """Make the run of one member of an ensemble; five members of seed 0 get the seeds 0 to 4, of seed 1 5 to 9."""
        folder = None if self.folder is None else self.folder / f"member{index}"
        return replace(self, seed=self.seed * of + index, folder=folder, nets={}, seconds=0.0, scales={})


@dataclass(frozen=True)
class Tracked:
    """Batches that report each of themselves; one can go through them several times.

    Args:
        batches: the batches.
        on_batch: is called after each batch with the number of batches done and the number of all.
    """

    batches: DataLoader[Any]
    on_batch: Callable[[int, int], None]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for done, batch in enumerate(self.batches, start=1):
            yield batch
            self.on_batch(done, len(self.batches))
