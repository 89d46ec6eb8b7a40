"""A training under way: its epochs, its optimizer steps and its checkpoints."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import batch_size, map_tensors, split_batch, take
from leanbayes._wrappers import gradients_averaged_by_hand
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite
from leanbayes.objective import Schedule
from leanbayes.train.batches import batches_after, mix, ordered
from leanbayes.train.checkpoint import Checkpoints, Training
from leanbayes.train.losses import Objective, culprit
from leanbayes.train.norms import fix_statistics
from leanbayes.train.processes import Engine
from leanbayes.train.random_states import seed_all, states_restored
from leanbayes.train.rewire import Rewirer

__all__ = ["TrainingRun", "new_progress"]


def new_progress(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of a training that has not begun; ``settings`` tell it from other trainings."""
    return {"epoch": 0, "batch": 0, "step": 0, "sums": [0.0] * 3, "epochs": [], "best": None, "run": settings}


@dataclass
class TrainingRun:
    """A training under way. All that changes is in ``training``, and so in every checkpoint.

    Attributes:
        objective: the loss as a module.
        wrapped: the objective as the engine wrapped it.
        training: the weights, the optimizer, the schedule and the progress.
        engine: where the training runs.
        data: the batches as the user gave them.
        kl_schedule: the weight of the KL as a function of the share of training that is done.
        parts: into how many micro-batches each batch is cut.
        clip: the largest norm of the gradient, or None.
        hold: whether batch norms keep their statistics.
        store: the checkpoints, or None.
        every: how many steps lie between two checkpoints, or None for one after each epoch.
        rewirer: what moves sparse weights, or None.
    """

    objective: Objective
    wrapped: nn.Module
    training: Training
    engine: Engine
    data: Iterable[Any]
    kl_schedule: Schedule
    parts: int
    clip: float | None
    hold: bool
    store: Checkpoints | None
    every: int | None
    rewirer: Rewirer | None

    def __post_init__(self) -> None:
        self.progress = self.training.progress
        self.settings = dict(self.progress["run"])
        self.loader = self.engine.share(self.data)
        self.steps: int = self.settings["epochs"] * self.settings["batches"]
        self.sums = self._new_sums()

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one. A checkpoint of another training is an error."""
        if self.store is None or not self.store.restore(self.training):
            return
        # Version 0.1 wrote fewer settings, and "rewire" only where there was one.
        stored = {"rewire": None} | self.progress["run"]
        different = [name for name, value in self.settings.items() if name in stored and stored[name] != value]
        if different:
            theirs, ours = ({name: run[name] for name in different} for run in (stored, self.settings))
            raise InputError(
                f"{self.store.folder} holds a training with {theirs}, this one has {ours}; choose another folder"
            )
        self.progress["run"] = self.settings
        self.sums = torch.tensor(self.progress["sums"], dtype=torch.float64, device=self.engine.device)
        self.engine.set_state(self.progress.get("engine", {}))

    def save(self) -> None:
        """Write a checkpoint; one process does it for all."""
        if self.store is not None and self.engine.index == 0:
            self.progress |= {"sums": self.sums.tolist(), "engine": self.engine.state()}
            self.store.save(self.training, self.progress["step"])
        self.engine.wait()

    def kl_weight(self) -> float:
        """Return the present weight of the KL."""
        return float(self.kl_schedule(self.progress["step"] / self.steps))

    def epoch(self) -> tuple[float, float, float]:
        """Train to the end of the present epoch. Return the means of loss, NLL and KL over all its batches."""
        progress, seed = self.progress, self.settings["seed"]
        self.wrapped.train()
        if self.hold:
            fix_statistics(self.objective)
        with ordered(self.data, mix(seed, "order", progress["epoch"])):
            seed_all(mix(seed, "model", progress["epoch"], self.engine.index))
            source = iter(self.loader)
            if progress["batch"]:
                for _ in range(progress["batch"]):
                    next(source)
                if self.store is not None:
                    self.store.set_random_states()  # reading the batches again has used random numbers
            for batch in source:
                self.sums += self.step(batch)
                progress["batch"] += 1
                progress["step"] += 1
                if self.every is not None and progress["step"] % self.every == 0:
                    self.save()
        loss, nll, kl = (self.sums / max(progress["batch"], 1)).tolist()
        if not self.objective.settings.with_kl:
            noise = self._generator("divergence", progress["epoch"])
            kl = self.objective.divergence(noise)
            loss = nll + self.kl_weight() * kl / self.objective.settings.n_data
        return loss, nll, kl

    def end_epoch(self) -> None:
        """Make the next epoch the present one."""
        self.progress |= {"epoch": self.progress["epoch"] + 1, "batch": 0}
        self.sums = self._new_sums()

    def step(self, batch: Any) -> Tensor:
        """Take one optimizer step. Return loss, NLL and KL as the means over parts and processes."""
        x, y = map_tensors(lambda leaf: leaf.to(self.engine.device), split_batch(batch))
        size, step, training = batch_size(x), self.progress["step"], self.training
        if size < self.parts:
            raise InputError(f"a batch of {size} cannot be cut into {self.parts} parts; lower micro_batches")
        training.optimizer.zero_grad()
        sums = self._new_sums()
        bounds = [size * part // self.parts for part in range(self.parts + 1)]
        for part in range(self.parts):
            rows = slice(bounds[part], bounds[part + 1])
            noise = self._generator("noise", step, self.engine.index * self.parts + part)
            try:
                values = self.wrapped(take(x, rows), take(y, rows), self.kl_weight(), noise)
            except NonFinite as error:
                position = f"step {step}, epoch {self.progress['epoch']}"
                raise NonFinite(f"{position}: {error}{culprit(training.modules)}") from error
            share = (bounds[part + 1] - bounds[part]) / size
            self.engine.backward(values[0] * share)
            sums += share * torch.stack([value.detach().double() for value in values])
        self._update()
        self._rewire(x, y, step + 1)
        return self.engine.mean(sums)

    def _update(self) -> None:
        """Let the optimizer and the schedule take their step on the gradients that are there."""
        optimizer, objective = self.training.optimizer, self.objective
        owns_scales = not objective.settings.with_kl
        if self.clip is not None:
            self.engine.clip(_clipped(objective, owns_scales), self.clip)
        if owns_scales:
            for group in optimizer.param_groups:
                group["kl_weight"] = self.kl_weight()
        optimizer.step()
        if self.training.schedule is not None:
            self.training.schedule.step()

    def _rewire(self, x: Any, y: Tensor, step: int) -> None:
        """Move the sparse weights, if they are due after so many steps. The batches tell which weights come."""
        if self.rewirer is None or not self.rewirer.how.due(step, self.steps):
            return
        pairs = [(x, y), *self._further_batches(self.rewirer.how.batches - 1)]

        def loss(draw: int) -> Tensor:
            noise = self._generator("rewire", step, draw, self.engine.index)
            with gradients_averaged_by_hand():
                values: tuple[Tensor, ...] = self.objective(*pairs[draw], self.kl_weight(), noise, one_draw=True)
            return values[0]

        self.rewirer.move(loss, self.rewirer.how.rate_at(step, self.steps))

    def _further_batches(self, count: int) -> list[Any]:
        """Return the batches that follow the present one in this epoch, for a move that needs several.

        They depend on the seed, the epoch and the position of the present batch alone, and reading them leaves every
        random state as it was. So a training that was killed has the same ones when it goes on.
        """
        if not count:
            return []
        progress, seed = self.progress, self.settings["seed"]
        with states_restored(), ordered(self.data, mix(seed, "order", progress["epoch"])):
            seed_all(mix(seed, "model", progress["epoch"], self.engine.index))
            batches = batches_after(self.loader, progress["batch"], count, self.settings["batches"])
        return [map_tensors(lambda leaf: leaf.to(self.engine.device), split_batch(batch)) for batch in batches]

    def _generator(self, *purpose: object) -> torch.Generator:
        """Return a generator whose seed depends on the training's seed and on the purpose alone."""
        return torch.Generator(device=self.engine.device).manual_seed(mix(self.settings["seed"], *purpose))

    def _new_sums(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64, device=self.engine.device)


def _clipped(objective: Objective, owns_scales: bool) -> list[nn.Parameter]:
    """The parameters whose gradients are clipped: without the scales, if these give the curvature."""
    model = objective.model
    scales = {id(parts.rho) for _, parts in model.parts()} if owns_scales and isinstance(model, Bayesian) else set()
    return [parameter for parameter in objective.parameters() if id(parameter) not in scales]
