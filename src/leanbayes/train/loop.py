"""`fit`: minimise the ELBO through Hugging Face accelerate, and go on exactly where a kill left it."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, RandomSampler

from leanbayes._calls import batch_size, call, map_tensors, prediction_tensor, split_batch, take
from leanbayes._files import read_tensors, write_tensors
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.likelihood import Likelihood
from leanbayes.objective import Schedule, constant, elbo
from leanbayes.subspace import Rewire
from leanbayes.train.checkpoint import FORMAT, Checkpoints, Training, module_state, seed_all
from leanbayes.train.norms import fix_statistics
from leanbayes.train.rewire import Rewirer

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["Epoch", "History", "fit"]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda groups, **options: torch.optim.SGD(groups, momentum=0.9, **options),
}
SCHEDULES: dict[str, Callable[[Optimizer, int], LRScheduler | None]] = {
    "constant": lambda optimizer, steps: None,  # noqa: ARG005
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, max(steps, 1)),
}


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to: means over its batches, in nats; ``validation`` is the mean nll of that set."""

    epoch: int
    loss: float
    nll: float
    kl: float
    kl_weight: float
    validation: float | None
    seconds: float


@dataclass
class History:
    """Every epoch, and which one was best on the validation set (None without one)."""

    epochs: list[Epoch] = field(default_factory=list)
    best: int | None = None

    @property
    def losses(self) -> list[float]:
        """The loss of each epoch."""
        return [epoch.loss for epoch in self.epochs]


Callback = Callable[[Epoch], None]


def fit(
    model: nn.Module,
    train: Iterable[Any],
    *,
    likelihood: Likelihood,
    epochs: int,
    optimizer: str | Optimizer | Callable[[list[dict[str, Any]]], Optimizer] = "adam",
    lr: float = 1e-3,
    scale_lr: float | None = None,
    weight_decay: float = 0.0,
    schedule: str | Callable[[Optimizer, int], LRScheduler | None] = "constant",
    kl_weight: float | Schedule = 1.0,
    samples: int = 1,
    n_data: int | None = None,
    validate: Iterable[Any] | None = None,
    patience: int | None = None,
    clip: float | None = None,
    micro_batches: int = 1,
    mixed_precision: str | None = None,
    hold_statistics: bool | None = None,
    rewire: Rewire | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    keep: int = 2,
    callbacks: Sequence[Callback] = (),
    seed: int = 0,
    output: Callable[[Any], Any] = prediction_tensor,
) -> History:
    """Train a `Bayesian` on the ELBO, or a plain module on its likelihood; the best epoch's weights are left in it.

    Under ``accelerate launch`` each process takes its share of every batch. Noise comes from no running state but
    from (seed, step, part of the batch), so a run on two processes is the run on one with ``micro_batches=2``.

    Args:
        model: on whatever device; accelerate moves it.
        train: batches (inputs, targets), usually a DataLoader; it is iterated once an epoch.
        likelihood: scores the targets; learned noise is trained too.
        epochs: how often through the data.
        optimizer: "adam", "adamw", "sgd", an Optimizer, or a function of parameter groups.
        lr: learning rate of the means.
        scale_lr: that of the scales; as ``lr`` by default.
        weight_decay: on the means only.
        schedule: of the learning rate, by step: "constant", "cosine", or a function of optimizer and number of steps.
        kl_weight: a number, or a schedule of the share of training done.
        samples: draws a step.
        n_data: examples in the training set; counted from the data set where it has a length.
        validate: batches whose mean nll is measured after each epoch, with one draw a batch.
        patience: stop after so many epochs without a better validation nll.
        clip: largest norm of the gradient.
        micro_batches: parts of each batch, one after the other, each with a draw of its own.
        mixed_precision: as accelerate takes it: "no", "fp16", "bf16".
        hold_statistics: hold batch-norm statistics (`fix_statistics`); by default for a `Bayesian`, unless its
            ``propagate`` is "mirrored" or "flipout", whose draws differ within a batch.
        rewire: how the sparse weights move, for a model that has some (004).
        checkpoint: a folder. If it holds a checkpoint of this training, that is where it goes on.
        checkpoint_every: steps between checkpoints; by default one at the end of each epoch.
        keep: how many checkpoints stay.
        callbacks: called with each `Epoch`, before its checkpoint is written: after a kill in between, once more.
        seed: of data order and noise.
        output: picks the tensor that matters from what the model returns.
    """
    _check(epochs, micro_batches, patience, validate, checkpoint_every)
    batches, count = _length(train), _size(train) if n_data is None else n_data
    accelerator = _accelerator(mixed_precision)
    objective = _Objective(model, likelihood, _Settings(count, samples, output))
    chosen = _optimizer(optimizer, model, likelihood, lr, scale_lr, weight_decay)
    rates = _schedule(schedule)(chosen, epochs * batches)
    wrapped, chosen = accelerator.prepare(objective, chosen)
    place: dict[str, Any] = {"epoch": 0, "batch": 0, "step": 0, "sums": [0.0] * 3, "epochs": [], "best": None}
    place["run"] = {"epochs": epochs, "batches": batches, "n_data": count, "seed": seed, "parts": micro_batches}
    if rewire is not None:
        place["run"]["rewire"] = asdict(rewire)
    run = _Run(
        objective=objective,
        wrapped=wrapped,
        training=Training(objective, chosen, rates, place),
        accelerator=accelerator,
        data=train,
        loader=_shared(train, accelerator),
        weight=constant(kl_weight) if isinstance(kl_weight, int | float) else kl_weight,
        clip=clip,
        hold=_must_hold(model) if hold_statistics is None else hold_statistics,
        store=None if checkpoint is None else Checkpoints(Path(checkpoint), keep),
        every=checkpoint_every,
        rewirer=None
        if rewire is None
        else Rewirer(model, rewire, chosen, partial(accelerator.reduce, reduction="mean")),
    )
    run.resume()
    best = _Best(objective, run.store)
    while place["epoch"] < epochs and not _settled(place, patience):
        begin = time.perf_counter()
        loss, nll, kl = run.epoch()
        epoch, score = place["epoch"], None
        if validate is not None:
            score = _validation(objective, validate, accelerator, _mix(seed, "validate", epoch))
        row = Epoch(epoch, loss, nll, kl, run.kl_weight(), score, time.perf_counter() - begin)
        place["epochs"].append(asdict(row))
        if score is not None and (place["best"] is None or score < place["epochs"][place["best"]]["validation"]):
            place["best"] = epoch
            best.keep()
        place |= {"epoch": epoch + 1, "batch": 0, "sums": [0.0] * 3}
        for callback in callbacks:  # before the checkpoint: what they change in the model is in it
            callback(row)
        run.save()
    if place["best"] is not None:
        best.bring_back()
    return History([Epoch(**row) for row in place["epochs"]], place["best"])


@dataclass
class _Run:
    """A training under way. All that changes is in ``training``, and so in every checkpoint."""

    objective: "_Objective"
    wrapped: nn.Module
    training: Training
    accelerator: "Accelerator"
    data: Iterable[Any]
    loader: Iterable[Any]
    weight: Schedule
    clip: float | None
    hold: bool
    store: Checkpoints | None
    every: int | None
    rewirer: Rewirer | None

    def __post_init__(self) -> None:
        self.place = self.training.progress
        self.settings = dict(self.place["run"])

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one and it is of this training."""
        if self.store is not None and self.store.restore(self.training) and self.place["run"] != self.settings:
            raise InputError(
                f"{self.store.folder} holds a training with {self.place['run']}, this one has {self.settings}; "
                "give another folder"
            )

    def save(self) -> None:
        """Write a checkpoint, by one process for all."""
        if self.store is not None and self.accelerator.is_main_process:
            self.store.save(self.training, self.place["step"])
        self.accelerator.wait_for_everyone()

    def kl_weight(self) -> float:
        """As the schedule has it now."""
        return self.weight(self.place["step"] / (self.settings["epochs"] * self.settings["batches"]))

    def epoch(self) -> list[float]:
        """The rest of an epoch, or all of it; the means of loss, nll and KL over all its batches."""
        place, seed = self.place, self.settings["seed"]
        self.wrapped.train()
        if self.hold:
            fix_statistics(self.objective)
        with _ordered(self.data, _mix(seed, "order", place["epoch"])):
            source = iter(self.loader)
            for _ in range(place["batch"]):
                next(source)
            if place["batch"] == 0:
                seed_all(_mix(seed, "model", place["epoch"], self.accelerator.process_index))
            elif self.store is not None:
                self.store.set_random_states()  # passing over the batches has used some
            for batch in source:
                found = self.step(batch)
                place["sums"] = [total + value for total, value in zip(place["sums"], found, strict=True)]
                place["batch"] += 1
                place["step"] += 1
                if self.every is not None and place["step"] % self.every == 0:
                    self.save()
        return [total / max(place["batch"], 1) for total in place["sums"]]

    def step(self, batch: Any) -> list[float]:
        """One optimizer step over the parts of a batch; loss, nll and KL, the means over parts and processes."""
        x, y = map_tensors(lambda leaf: leaf.to(self.accelerator.device), split_batch(batch))
        size, parts, step = batch_size(x), self.settings["parts"], self.place["step"]
        if size < parts:
            raise InputError(f"a batch of {size} cannot be cut in {parts} parts; lower micro_batches")
        training, accelerator = self.training, self.accelerator
        training.optimizer.zero_grad()
        sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
        bounds = [size * part // parts for part in range(parts + 1)]
        for part in range(parts):
            rows = slice(bounds[part], bounds[part + 1])
            noise = torch.Generator(device=accelerator.device)
            noise.manual_seed(_mix(self.settings["seed"], "noise", step, accelerator.process_index * parts + part))
            try:
                found = self.wrapped(take(x, rows), take(y, rows), self.kl_weight(), noise)
            except NonFinite as error:
                where = f"step {step}, epoch {self.place['epoch']}"
                raise NonFinite(f"{where}: {error}{_culprit(training.modules)}") from error
            share = (bounds[part + 1] - bounds[part]) / size
            accelerator.backward(found[0] * share)
            sums += share * torch.stack([value.detach().double() for value in found])
        if self.clip is not None:
            accelerator.clip_grad_norm_(training.modules.parameters(), self.clip)
        training.optimizer.step()
        if training.schedule is not None:
            training.schedule.step()
        self.rewire(x, y, step + 1)
        means: Tensor = accelerator.reduce(sums, reduction="mean")
        return [float(value) for value in means]

    def rewire(self, x: Any, y: Tensor, step: int) -> None:
        """Move the sparse weights, if it is time after so many steps; the batch tells which ones are asked for."""
        steps = self.settings["epochs"] * self.settings["batches"]
        if self.rewirer is None or not self.rewirer.how.due(step, steps):
            return

        def loss(draw: int) -> Tensor:
            noise = torch.Generator(device=self.accelerator.device)
            noise.manual_seed(_mix(self.settings["seed"], "rewire", step, draw, self.accelerator.process_index))
            found: Tensor = self.objective(x, y, self.kl_weight(), noise, samples=1)[0]
            return found

        self.rewirer.move(loss, self.rewirer.how.rate_at(step, steps))


@dataclass(frozen=True)
class _Settings:
    n_data: int
    samples: int
    output: Callable[[Any], Any]


class _Objective(nn.Module):
    """Model and likelihood as one module, so that what wraps it for several processes sees every parameter."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, settings: _Settings) -> None:
        super().__init__()
        self.model, self.likelihood, self.settings = model, likelihood, settings

    def forward(
        self, x: Any, y: Tensor, kl_weight: float, generator: torch.Generator, samples: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, nll and KL of one part of a batch."""
        found = elbo(
            self.model,
            x,
            y,
            self.likelihood,
            n_data=self.settings.n_data,
            samples=samples or self.settings.samples,
            kl_weight=kl_weight,
            generator=generator,
            output=self.settings.output,
        )
        return found.loss, found.nll, found.kl


@torch.no_grad()
def _validation(objective: _Objective, batches: Iterable[Any], accelerator: "Accelerator", seed: int) -> float:
    """Mean nll of an example, one draw a batch."""
    objective.eval()
    noise = torch.Generator(device=accelerator.device).manual_seed(seed)
    total, count = 0.0, 0
    for batch in batches:
        x, y = map_tensors(lambda leaf: leaf.to(accelerator.device), split_batch(batch))
        options = {"generator": noise} if isinstance(objective.model, Bayesian) else {}
        out = objective.settings.output(call(lambda *a, **k: objective.model(*a, **k, **options), x))  # noqa: B023
        total += objective.likelihood.nll(out, y).item()
        count += batch_size(x)
    if not count:
        raise InputError("the validation set is empty")
    return total / count


class _Best:
    """The weights of the best epoch: in the checkpoint folder, where a kill does not reach them, or in memory."""

    def __init__(self, module: nn.Module, store: Checkpoints | None) -> None:
        self.module = module
        self.path = None if store is None else store.folder / "best.safetensors"
        self.memory: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Remember the weights as they are."""
        tensors = {name: value.detach().clone() for name, value in module_state(self.module).items()}
        if self.path is None:
            self.memory = tensors
        else:
            write_tensors(self.path, tensors, {"kind": "best", "format": FORMAT})

    def bring_back(self) -> None:
        """Put the remembered weights into the module."""
        tensors = self.memory if self.path is None else read_tensors(self.path, "best", FORMAT)[1]
        self.module.load_state_dict(tensors, strict=False)


def _must_hold(model: nn.Module) -> bool:
    return isinstance(model, Bayesian) and model.propagate not in ("mirrored", "flipout")


def _accelerator(mixed_precision: str | None) -> "Accelerator":
    from accelerate import Accelerator, DataLoaderConfiguration  # here, for it takes longer to import than all of ours

    sharing = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=False)
    return Accelerator(mixed_precision=mixed_precision, dataloader_config=sharing)


def _shared(train: Iterable[Any], accelerator: "Accelerator") -> Iterable[Any]:
    """Each process's share of the batches.

    On one process the loader stays as it is: accelerate's reads a batch ahead, under random states that are then gone.
    """
    if accelerator.num_processes == 1 or not isinstance(train, DataLoader):
        return train
    prepared: Iterable[Any] = accelerator.prepare(train)
    return prepared


def _mix(*parts: object) -> int:
    """A seed from any number of parts, without the correlations of sums."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


@contextmanager
def _ordered(loader: Iterable[Any], seed: int) -> Iterator[None]:
    """Give a shuffling loader its order for this epoch; its own generators are put back after."""
    if not isinstance(loader, DataLoader):
        yield
        return
    holders = [holder for holder in (loader, loader.sampler) if holder is loader or isinstance(holder, RandomSampler)]
    before = [holder.generator for holder in holders]
    for holder in holders:  # one each: what the loader draws for its workers must not shift the order
        holder.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        for holder, own in zip(holders, before, strict=True):
            holder.generator = own


def _culprit(module: nn.Module) -> str:
    for name, parameter in module.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"; {name.removeprefix('model.')!r} has NaN or infinite values already"
    return "; all parameters are finite, so the data or the loss is to blame"


def _settled(place: dict[str, Any], patience: int | None) -> bool:
    return patience is not None and place["best"] is not None and place["epoch"] - 1 - place["best"] >= patience


def _optimizer(
    chosen: Any, model: nn.Module, likelihood: Likelihood, lr: float, scale_lr: float | None, weight_decay: float
) -> Optimizer:
    if isinstance(chosen, Optimizer):
        return chosen
    if isinstance(model, Bayesian):
        groups = model.parameter_groups(lr=lr, scale_lr=scale_lr, weight_decay=weight_decay)
    else:
        means = [p for p in model.parameters() if p.requires_grad]
        groups = [{"params": means, "lr": lr, "weight_decay": weight_decay}]
    learned = list(likelihood.parameters())
    if learned:
        groups.append({"params": learned, "lr": lr, "weight_decay": 0.0})
    if isinstance(chosen, str):
        if chosen not in OPTIMIZERS:
            raise UnknownName.of("optimizer", chosen, OPTIMIZERS)
        return OPTIMIZERS[chosen](groups, lr=lr)
    made: Optimizer = chosen(groups)
    return made


def _schedule(chosen: Any) -> Callable[[Optimizer, int], LRScheduler | None]:
    if isinstance(chosen, str):
        if chosen not in SCHEDULES:
            raise UnknownName.of("schedule", chosen, SCHEDULES)
        return SCHEDULES[chosen]
    found: Callable[[Optimizer, int], LRScheduler | None] = chosen
    return found


def _length(batches: Iterable[Any]) -> int:
    if not isinstance(batches, Sized):
        raise InputError(
            "the training data must have a length (a DataLoader, a list of batches) to know when an epoch ends"
        )
    count = len(batches)
    if not count:
        raise InputError("there are no training batches")
    return count


def _size(batches: Iterable[Any]) -> int:
    if isinstance(batches, DataLoader):
        return len(batches.dataset)  # type: ignore[arg-type]
    return sum(batch_size(split_batch(batch)[0]) for batch in batches)


def _check(epochs: int, parts: int, patience: int | None, validate: Any, every: int | None) -> None:
    for name, value in (
        ("epochs", epochs),
        ("micro_batches", parts),
        ("patience", patience),
        ("checkpoint_every", every),
    ):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if patience is not None and validate is None:
        raise InputError("patience needs a validation set: validate=")
    if not math.isfinite(epochs):
        raise InputError("epochs must be finite")
