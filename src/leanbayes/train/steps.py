"""A training under way: its epochs, its optimizer steps and its checkpoints."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import batch_size, take
from leanbayes._passes import exclusive
from leanbayes._sharding import local, same_for_all
from leanbayes._wrappers import gradients_averaged_by_hand
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, OtherTraining, UncheckedCheckpoint
from leanbayes.objective import Objective, Schedule
from leanbayes.train.batches import (
    batch_checksum,
    batches_after,
    endless,
    mix,
    number_of_batches,
    order_checksum,
    ordered,
    stream,
)
from leanbayes.train.callbacks import Callbacks, Step
from leanbayes.train.checkpoint import Checkpoints, Training
from leanbayes.train.data import Reading
from leanbayes.train.fingerprint import Fingerprint, differences
from leanbayes.train.history import Stop
from leanbayes.train.losses import culprit, divergence
from leanbayes.train.norms import fix_statistics, has_statistics, recompute_statistics
from leanbayes.train.processes import Engine
from leanbayes.train.random_states import RandomStates, seed_all, states_restored
from leanbayes.train.rewire import Rewirer
from leanbayes.train.unread import UnreadLosses

__all__ = ["TrainingRun", "new_progress"]


_STATISTICS_BATCHES = 100  # from which the statistics of averaged weights are computed
_RECORDED_BY_0_1 = ("epochs", "batches", "n_data", "seed", "parts", "rewire")


def new_progress() -> dict[str, Any]:
    """Return the progress of a training that has not begun."""
    counts = {"epoch": 0, "batch": 0, "step": 0, "pass": 0, "read": 0}
    return counts | {"sums": [0.0] * 3, "epochs": [], "best": None, "stopped": None}


@dataclass
class TrainingRun:
    """A training under way. All that changes is in ``training``, and so in every checkpoint.

    Attributes:
        objective: the loss as a module.
        wrapped: the objective as the engine wrapped it.
        training: the weights, the optimizer, the schedule and the progress.
        engine: where the training runs.
        data: the batches as the user gave them.
        epochs: how many epochs the training has.
        reading: how a batch becomes inputs and targets.
        batches: how many batches an epoch has.
        continues: whether an epoch goes on where the one before it ended, so that it is no pass over the data.
        seed: the seed of the training.
        kl_schedule: the weight of the KL as a function of the share of training that is done.
        parts: into how many micro-batches each batch is cut.
        clip: the largest norm of the gradient, or None.
        hold: whether batch norms keep their statistics.
        store: the checkpoints, or None.
        every: how many steps lie between two checkpoints, or None for one after each epoch.
        rewirer: what moves sparse weights, or None.
        callbacks: what watches the training.
        fingerprint: what tells this training from others, or None without checkpoints.
    """

    objective: Objective
    wrapped: nn.Module
    training: Training
    engine: Engine
    data: Iterable[Any]
    epochs: int
    reading: Reading
    batches: int
    continues: bool
    seed: int
    kl_schedule: Schedule
    parts: int
    clip: float | None
    hold: bool
    store: Checkpoints | None
    every: int | None
    rewirer: Rewirer | None
    callbacks: Callbacks
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        self.progress = self.training.progress
        self.loader = self.engine.share(self.data)
        self.steps: int = self.epochs * self.batches
        self.sums = self._new_sums()
        self.unread = UnreadLosses(self.engine.device)
        self.restored: RandomStates | None = None
        self.passes: Generator[tuple[int, Any]] | None = None

    def close(self) -> None:
        """Leave the data, so that their samplers have their own generators again."""
        if self.passes is not None:
            self.passes.close()
            self.passes = None

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one. A checkpoint of another training is an error."""
        if self.store is None:
            return
        self.restored = self.store.restore(self.training, self._check)
        if self.fingerprint is not None:
            self.progress |= {"run": self.fingerprint.settings, "information": self.fingerprint.information}
        if self.restored is not None:
            self.sums = torch.tensor(self.progress["sums"], dtype=torch.float64, device=self.engine.device)
            self.engine.set_state(self.progress.get("engine", {}))

    def _check(self, path: Path, progress: Mapping[str, Any]) -> None:
        """Raise an error if the checkpoint is one of another training."""
        assert self.fingerprint is not None
        ours, theirs = self.fingerprint.settings, dict(progress["run"])
        if theirs.get("version") != ours["version"]:
            # Version 0.1 wrote "rewire" only where there was one.
            theirs = {"rewire": None} | theirs
            missing = [name for name in ours if name not in (*_RECORDED_BY_0_1, "version")]
            theirs = {name: theirs.get(name) for name in _RECORDED_BY_0_1}
            ours = {name: ours[name] for name in _RECORDED_BY_0_1}
            warnings.warn(
                f"an older version of LeanBayes wrote {path}, and did not record {', '.join(missing)}. fit goes on "
                "from there, which is right only if all of them are what they were; otherwise choose another folder",
                UncheckedCheckpoint,
                stacklevel=5,
            )
        different = differences(theirs, ours)
        if different:
            shown = dict(list(different.items())[:5])
            before, now = ({name: pair[side] for name, pair in shown.items()} for side in (0, 1))
            others = f" (and {len(different) - 5} other differences)" if len(different) > 5 else ""
            raise OtherTraining(
                f"{path.parent} holds a training with {before}, this one has {now}{others}; choose another folder for "
                "another training, or go back to the settings of the old one"
            )

    def save(self) -> None:
        """Write a checkpoint; one process does it for all."""
        self.unread.read()
        if self.store is not None and (self.engine.index == 0 or self.engine.shards):
            self.progress |= {"sums": self.sums.tolist(), "engine": self.engine.state()}
            self.store.save(self.training, self.progress["step"], writes=self.engine.index == 0)
        self.engine.wait()

    def kl_weight(self) -> float:
        """Return the present weight of the KL."""
        return float(self.kl_schedule(self.progress["step"] / self.steps))

    def epoch(self) -> Stop | None:
        """Train to the end of the present epoch, or until a callback stops the training."""
        progress = self.progress
        self.wrapped.train()
        if self.hold:
            fix_statistics(self.objective)
        seed_all(mix(self.seed, "model", progress["epoch"], self.engine.index))
        stop = None
        with self._source() as source:
            if self.restored is not None and progress["batch"]:
                self.restored.restore()
            self.restored, first = None, True
            for number, batch in source:
                if progress["step"] == 0:
                    self._check_first(batch)
                if number != progress["pass"]:
                    progress |= {"pass": number, "read": 0}
                if first:
                    self._check_order()
                    first = False
                weight, rate = self.kl_weight(), self._rate_of_means()
                means = self.step(batch)
                self.sums += means
                self.unread.add(self._position(), means[0])  # the mean over processes, so that all of them raise
                progress["batch"] += 1
                progress["read"] += 1
                progress["step"] += 1
                stop = self._watched(means, weight, rate)
                if stop is not None:
                    break
                if self.every is not None and progress["step"] % self.every == 0:
                    self.save()
            self._check_order()
        self.unread.read()
        self._check_weights()
        self.engine.share_statistics(self.objective)
        return stop

    @torch.no_grad()
    def use_averages(self) -> None:
        """Give the model the averaged weights of an optimizer that keeps averages, with statistics that fit them."""
        optimizer: Any = self.training.optimizer
        use = getattr(getattr(optimizer, "optimizer", optimizer), "use_averages", None)  # accelerate wraps optimizers
        if use is None or not use() or self.hold or not has_statistics(self.objective.model):
            return
        self.close()
        self.wrapped.train()
        number, process = self.progress["pass"] + 1 if self.continues else self.epochs, self.engine.index
        seed_all(mix(self.seed, "statistics", process))

        def passes(source: Iterable[Any]) -> Iterator[Callable[[], object]]:
            for count, batch in enumerate(islice(source, _STATISTICS_BATCHES)):
                noise = self._generator("statistics", count, process)
                yield partial(self.objective, *self.reading(batch, self.engine.device), generator=noise)

        with closing(stream(self.loader, self.data, self.seed, number, process)) as source:
            recompute_statistics(self.objective.model, passes(source), self.engine.mean)

    def means(self) -> tuple[float, float, float]:
        """Return the means of loss, NLL and KL over the batches of the present epoch."""
        loss, nll, kl = (self.sums / max(self.progress["batch"], 1)).tolist()
        if not self.objective.with_kl:
            kl = divergence(self.objective, self._generator("divergence", self.progress["epoch"]))
            loss = nll + self.kl_weight() * kl / self.objective.n_data
        return loss, nll, kl

    def agreed(self, stop: Stop | None) -> Stop | None:
        """Return the same for all processes: if one of them stops, all of them do."""
        if self.engine.number == 1:
            return stop
        votes = torch.tensor([stop is not None, stop is not None and stop.final], device=self.engine.device)
        stops, final = self.engine.mean(votes.double()).tolist()
        if not stops:
            return None
        return replace(stop or Stop("a callback of another process stopped the training"), final=final > 0)

    def _watched(self, means: Tensor, weight: float, rate: float) -> Stop | None:
        """Show the step to the callbacks that want to see it; only then is the loss read."""
        step = self.progress["step"]
        stop = None
        if self.callbacks.due(step):
            loss, nll, kl = means.tolist()
            known = kl if self.objective.with_kl else None
            stop = self.callbacks.after_step(Step(step, self.progress["epoch"], loss, nll, known, weight, rate))
        return self.agreed(stop) if self.callbacks.may_stop(step) else None

    @contextmanager
    def _source(self) -> Iterator[Iterable[tuple[int, Any]]]:
        """Give the batches of the present epoch that are still to come, each with the number of its pass."""
        progress, process = self.progress, self.engine.index
        if self.continues:
            if self.passes is None:
                self.passes = endless(self.loader, self.data, self.seed, progress["pass"], progress["read"], process)
            yield islice(self.passes, self.batches - progress["batch"])
            return
        with closing(stream(self.loader, self.data, self.seed, progress["epoch"], process)) as source:
            for _ in range(progress["batch"]):
                next(source)
            yield ((progress["epoch"], batch) for batch in source)

    def end_epoch(self) -> None:
        """Make the next epoch the present one."""
        self.progress |= {"epoch": self.progress["epoch"] + 1, "batch": 0}
        self.sums = self._new_sums()

    def step(self, batch: Any) -> Tensor:
        """Take one optimizer step. Return loss, NLL and KL as the means over parts and processes."""
        x, y = self.reading(batch, self.engine.device)
        size, step, training = batch_size(x), self.progress["step"], self.training
        if size < self.parts:
            raise InputError(f"a batch of {size} cannot be cut into {self.parts} parts; lower micro_batches")
        training.optimizer.zero_grad()
        self.engine.share_statistics(self.objective)
        sums = self._new_sums()
        bounds = [size * part // self.parts for part in range(self.parts + 1)]
        for part in range(self.parts):
            rows = slice(bounds[part], bounds[part + 1])
            noise = self._generator("noise", step, self.engine.index * self.parts + part)
            try:
                values = self.wrapped(take(x, rows), take(y, rows), kl_weight=self.kl_weight(), generator=noise)
            except NonFinite as error:
                reason = culprit(training.modules, take(x, rows), take(y, rows), self._rates())
                raise NonFinite(f"{self._position()}: {error}; {reason}") from error
            share = (bounds[part + 1] - bounds[part]) / size
            self.engine.backward(values[0] * share)
            sums += share * torch.stack([value.detach().double() for value in values])
        self._update()
        self._rewire(x, y, step + 1)
        return self.engine.mean(sums)

    def _rates(self) -> list[float]:
        groups = self.training.optimizer.param_groups
        return [float(group.get("initial_lr", group.get("lr", 0.0))) for group in groups]

    def _rate_of_means(self) -> float:
        return float(self.training.optimizer.param_groups[0].get("lr", 0.0))

    def _position(self) -> str:
        progress = self.progress
        return f"step {progress['step']}, epoch {progress['epoch']}, batch {progress['batch']} of the epoch"

    def _check_first(self, batch: Any) -> None:
        """Raise an error if the first batch is another one than when it was read for the fingerprint."""
        data = None if self.fingerprint is None else self.fingerprint.settings["data"]
        if data is None or self.loader is not self.data or batch_checksum(batch) == data["first batch"]:
            return
        raise InputError(
            "a checkpoint promises the same weights bit for bit, and the training data gave another first batch when "
            "they were read again with the same random states. A sampler, a data set or an augmentation draws from a "
            "generator of its own; seed it from torch's, NumPy's or Python's global state, or allow another result "
            "after a kill: Checkpointing(..., exact=False)"
        )

    def _check_order(self) -> None:
        """Raise an error in all processes if a sampler has given them different orders of the examples."""
        value = order_checksum(self.loader)
        if value is None:
            return
        pair = torch.tensor([value, value**2], dtype=torch.float64, device=self.engine.device)
        mean, square = self.engine.mean(pair).tolist()
        if square - mean**2 > 1e-4:  # the variance over n processes is 0, or at least about 1 / n
            raise InputError(
                "the sampler of the training data gives each process another order of the examples, so that some would "
                "be used twice and others not at all. It draws from a generator that fit cannot seed; let it draw from "
                "torch's, NumPy's or Python's global state, or keep its torch.Generator as an attribute"
            )

    def _check_weights(self) -> None:
        """Raise an error if the last steps of an epoch, whose loss nobody has seen, spoiled the weights."""
        with exclusive(self.objective):  # the pass of another thread may have replaced the parameters
            parameters = list(self.objective.parameters())
        values = [piece for parameter in parameters if (piece := local(parameter.detach())).numel()]
        spoiled = bool(values) and not torch.stack([torch.isfinite(value).all() for value in values]).all()
        if same_for_all(spoiled, parameters):
            raise NonFinite(f"{self._position()}, after the update: {culprit(self.objective, rates=self._rates())}")

    def _update(self) -> None:
        """Let the optimizer and the schedule take their step on the gradients that are there."""
        optimizer, objective = self.training.optimizer, self.objective
        owns_scales = not objective.with_kl
        if self.clip is not None:
            self.engine.clip(_clipped(objective, owns_scales), self.clip)
        if owns_scales:
            for group in optimizer.param_groups:
                group["kl_weight"] = self.kl_weight()
        try:
            optimizer.step()
        except NonFinite as error:
            raise NonFinite(f"{self._position()}: {error}") from error
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
            reason = culprit(objective, rates=self._rates())
            raise NonFinite(f"{self._position()}: {error} in the update; {reason}") from error
        if self.training.schedule is not None:
            self.training.schedule.step()

    def _rewire(self, x: Any, y: Tensor, step: int) -> None:
        """Move the sparse weights, if they are due after so many steps. The batches tell which weights come."""
        if self.rewirer is None or not self.rewirer.how.due(step, self.steps):
            return
        pairs = [(x, y), *self._further_batches(self.rewirer.how.batches - 1)]
        terms = replace(self.objective.terms, kl_weight=self.kl_weight(), samples=1, last_layer_samples=1)

        def loss_of(draw: int) -> Tensor:
            noise = self._generator("rewire", step, draw, self.engine.index)
            with gradients_averaged_by_hand():
                loss: Tensor = self.objective(*pairs[draw], kl_weight=terms, generator=noise).loss
            return loss

        self.rewirer.move(loss_of, self.rewirer.how.rate_at(step, self.steps))

    def _further_batches(self, count: int) -> list[Any]:
        """Return the batches that follow the present one in this epoch, for a move that needs several.

        They depend on the seed, the epoch and the position of the present batch alone, and reading them leaves every
        random state as it was. So a training that was killed has the same ones when it goes on.
        """
        if not count:
            return []
        number, position, length = self.progress["epoch"], self.progress["batch"], self.batches
        if self.continues:
            number, position, length = self.progress["pass"], self.progress["read"], number_of_batches(self.data)
        with states_restored(), ordered(self.data, mix(self.seed, "order", number), number):
            seed_all(mix(self.seed, "data", number, self.engine.index))
            batches = batches_after(self.loader, position, count, length)
        return [self.reading(batch, self.engine.device) for batch in batches]

    def _generator(self, *purpose: object) -> torch.Generator:
        """Return a generator whose seed depends on the training's seed and on the purpose alone."""
        return torch.Generator(device=self.engine.device).manual_seed(mix(self.seed, *purpose))

    def _new_sums(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64, device=self.engine.device)


def _clipped(objective: Objective, owns_scales: bool) -> list[nn.Parameter]:
    """The parameters whose gradients are clipped: without the scales, if these give the curvature."""
    model = objective.model
    scales = {id(parts.rho) for _, parts in model.parts()} if owns_scales and isinstance(model, Bayesian) else set()
    with exclusive(objective):  # the pass of another thread may have replaced the parameters
        return [parameter for parameter in objective.parameters() if id(parameter) not in scales]
