"""`fit`: train a model on the evidence lower bound, and go on exactly where a kill left off."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from leanbayes._calls import Split, prediction_tensor, require_function
from leanbayes._passes import exclusive
from leanbayes._sharding import whole
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian
from leanbayes.dice import DiceTerm
from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.objective import Objective, Schedule, Terms, constant
from leanbayes.optim import OPTIMIZERS, OptimizerBuilder, Problem
from leanbayes.subspace import Rewire
from leanbayes.train.batches import describe_data, mix, number_of_batches, number_of_examples, refuse_unrepeatable
from leanbayes.train.callbacks import Callback, Callbacks
from leanbayes.train.checkpoint import Best, Checkpoints, Training, module_state
from leanbayes.train.data import Reading, as_batches
from leanbayes.train.fingerprint import (
    Fingerprint,
    describe_model,
    describe_optimizer,
    describe_rates,
    describe_weights,
    described,
)
from leanbayes.train.history import Epoch, History
from leanbayes.train.losses import validation_loss
from leanbayes.train.norms import must_hold_statistics
from leanbayes.train.options import Checkpointing, Optimization, OptimizerChoice
from leanbayes.train.processes import engine
from leanbayes.train.random_states import states_restored
from leanbayes.train.rewire import Rewirer
from leanbayes.train.scales import log_scales, movement, warn_if_still
from leanbayes.train.schedules import kl_schedule, rate_schedule
from leanbayes.train.steps import TrainingRun, new_progress
from leanbayes.train.unread import reading_waits

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["fit"]

_USUAL_RATE = 1e-3  # the learning rate of optimizers that state none of their own


def fit(
    model: nn.Module,
    train: Any,
    *,
    likelihood: Likelihood,
    epochs: int,
    optimizer: OptimizerChoice | Optimization = "adam",
    kl_weight: float | str | Schedule | Terms = 1.0,
    samples: int = 1,
    n_data: int | None = None,
    batch: Split | None = None,
    steps_per_epoch: int | None = None,
    validate: Any = None,
    checkpoint: str | Path | Checkpointing | None = None,
    rewire: Rewire | None = None,
    callbacks: Sequence[Callback] = (),
    seed: int = 0,
    output: Callable[[Any], Any] = prediction_tensor,
    accelerator: "Accelerator | None" = None,
) -> History:
    """Train a `Bayesian` on the evidence lower bound, or a plain module on its likelihood.

    With a validation set, the model has the weights of its best epoch afterwards. An optimizer that averages weights,
    such as `leanbayes.optim.NaturalGradients` with ``average=0.5``, leaves the average in the model, and the statistics
    of batch norms are computed anew for it. Apart from the weights of the model
    and of the likelihood, `fit` leaves everything as it found it: the global random states of torch (CPU and CUDA),
    NumPy and Python, the training or evaluation mode of every module, and the generators of the data loaders. This also
    holds if it raises an error.

    In one process and full precision `fit` uses torch alone and trains on the device where the model lies. With several
    processes (``accelerate launch``, ``torchrun``) or in mixed precision it uses Hugging Face accelerate, which chooses
    the device: ``pip install 'leanbayes[distributed]'``. Each process then takes its share of every batch. The noise
    depends only on the seed, the step and the part of the batch, so training on two processes is the same as training
    on one with ``Optimization(micro_batches=2)``.

    Args:
        model: the model to train. Of a wrapper, `fit` trains the module inside, and makes wrappers of its own.
        train: the batches, usually a DataLoader, or a whole data set in memory: an `leanbayes.train.Arrays`, or a tuple
            (inputs, targets) of NumPy arrays, pandas frames or tensors. Fractions of NumPy and pandas get the floating
            type of the model, and whole numbers become int64; tensors stay as they are.
        likelihood: what the outputs of the model mean. `fit` also trains the parameters that the likelihood has.
        epochs: how many times `fit` goes through the data.
        optimizer: an `Optimization` with all settings of the optimizer, or only its ``optimizer``: the name of one, an
            optimizer, or a function of parameter groups. An optimizer that owns the scales (`leanbayes.optim.protocol`)
            gets the loss without the KL.
        kl_weight: the weight of the KL, as a number, as a function of the share of training that is done (from 0 to
            1), or as the name of such a function: "constant", "anneal" or "warm_up". 1 is the evidence lower bound. A
            `Terms` holds this weight and everything else that concerns the loss: the draws of the last layer, the
            temperature of the posterior, what the KL is divided by, and a Dice loss for segmentations.
        samples: how many draws of the weights each step averages, if ``kl_weight`` is no `Terms`.
        n_data: the number of examples in the training set. By default `fit` counts them, but it cannot for a stream.
        batch: a function that takes a batch and returns the pair (inputs, targets), such as ``lambda b: b[:2]``. By
            default a batch is such a pair, or a dictionary of MONAI ("image" and "label") or of Hugging Face (the
            arguments of the model, and "labels").
        steps_per_epoch: how many batches make an epoch. Streams without a length need it. An epoch then begins where
            the one before it ended, and the data are read from the beginning again only after their end.
        validate: data on which `fit` measures the negative log-likelihood after each epoch, with one draw for each
            batch, in the form of the training data.
        checkpoint: a folder, or a `Checkpointing`. If the folder holds a checkpoint of the same training, `fit` goes on
            from there, and ends with the same weights bit for bit.
        rewire: how sparse weights move during training, for a model that has sparse weights (SSVI, Li et al. 2024).
        callbacks: functions that are called with each `Epoch`, before its checkpoint is written. After a kill between
            the two, they are called with that epoch again. Also `leanbayes.train.EachStep`, a function of steps, and
            `leanbayes.train.Tracking`, which writes to TensorBoard and its like. A function that returns a
            `leanbayes.train.Stop` ends the training.
        seed: the seed of the order of the data and of all noise.
        output: picks the tensor that matters from what the model returns.
        accelerator: an ``accelerate.Accelerator`` of your own, which then decides the device, the precision and the
            processes. `fit` leaves it as it was.

    Returns:
        A `History` with one `Epoch` for each pass over the data.

    >>> bnn = Bayesian(nn.Linear(2, 3))
    >>> batches = [(torch.randn(8, 2), torch.randint(3, (8,)))]
    >>> from leanbayes.likelihood import Categorical
    >>> history = fit(bnn, batches, likelihood=Categorical(), epochs=2, optimizer=Optimization(lr=0.01))
    >>> len(history.losses)
    2
    """
    optimization = optimizer if isinstance(optimizer, Optimization) else Optimization(optimizer)
    if isinstance(checkpoint, str | Path):
        checkpoint = Checkpointing(checkpoint)
    if checkpoint is not None and not isinstance(checkpoint, Checkpointing):
        raise InputError(f"checkpoint must be the path of a folder, or a Checkpointing, got {checkpoint!r}")
    _check_seed(seed)
    terms = Terms.of(kl_weight, samples=samples)
    _check({"epochs": epochs, "n_data": n_data, "steps_per_epoch": steps_per_epoch}, optimization, validate)
    weights = _kl_schedule(terms.kl_weight)
    owns_scales = _owns_scales(optimization.optimizer)
    if owns_scales:
        _check_owned(terms)
    model = unwrap(model)
    require_likelihood(likelihood)
    require_function("output", output)
    reading = Reading.of(batch, model)
    train = as_batches(train, reading)
    if validate is not None:
        validate = as_batches(validate, reading, name="validate", like=train)
    continues = steps_per_epoch is not None
    if continues and validate is train and getattr(train, "persistent_workers", False):
        raise InputError("with steps_per_epoch, a loader with persistent workers cannot serve training and validation")
    if continues and rewire is not None and rewire.batches > 1:
        number_of_batches(train)  # raises for a stream, whose further batches nobody can read ahead
    precision = optimization.mixed_precision
    with (
        states_restored(),
        _modes_restored(model, likelihood),
        engine(model, precision, accelerator) as runner,
    ):
        watching = Callbacks(callbacks, writes=runner.index == 0)
        batches = number_of_batches(train, steps_per_epoch)
        objective = Objective(
            model,
            likelihood,
            n_data=number_of_examples(train, reading) if n_data is None else n_data,
            kl_weight=terms,
            with_kl=not owns_scales,
            output=output,
            check=not reading_waits(runner.device),
        )
        with exclusive(model):  # the pass of another thread may have replaced the parameters
            chosen = _optimizer(objective, optimization, epochs * batches, float(weights(0.0)))
        getattr(chosen, "forget_averages", lambda: None)()  # the optimizer may come from another training
        schedule = optimization.schedule
        rates = (rate_schedule(schedule) if isinstance(schedule, str) else schedule)(chosen, epochs * batches)
        fingerprint = None
        if checkpoint is not None:
            settings: dict[str, Any] = {"epochs": epochs, "batches": batches, "seed": seed, "processes": runner.number}
            settings |= _settings(objective, optimization, chosen, rates, weights, rewire, epochs * batches)
            settings |= {"precision": runner.precision} | ({"sharded": True} if runner.shards else {})
            if batch is not None or continues:  # left out otherwise, as in the checkpoints of earlier versions
                settings |= {"batch": described(batch), "steps_per_epoch": steps_per_epoch}
            fingerprint = Fingerprint.of(settings | _data(train, validate, seed, checkpoint), runner.device)
        trained = objective
        wrapped: nn.Module
        with exclusive(model):
            if runner.shards:  # the optimizer holds pieces, so it is built of them
                _refuse_whole_weights(optimization, rewire)
                trained = runner.shard(objective)
                wrapped = trained
                chosen = _optimizer(trained, optimization, epochs * batches, float(weights(0.0)))
                rates = (rate_schedule(schedule) if isinstance(schedule, str) else schedule)(chosen, epochs * batches)
            else:
                wrapped, chosen = runner.prepare(objective, chosen)
        notes = {} if (start := log_scales(model)) is None else {"scales": start}
        hold = optimization.hold_statistics
        run = TrainingRun(
            objective=trained,
            wrapped=wrapped,
            training=Training(trained, chosen, rates, new_progress(), notes),
            engine=runner,
            data=train,
            epochs=epochs,
            reading=reading,
            batches=batches,
            continues=continues,
            seed=seed,
            kl_schedule=weights,
            parts=optimization.micro_batches,
            clip=optimization.clip,
            hold=must_hold_statistics(model) if hold is None else hold,
            store=None if checkpoint is None else Checkpoints(Path(checkpoint.folder), checkpoint.keep),
            every=None if checkpoint is None else checkpoint.every,
            rewirer=None if rewire is None else Rewirer(model, rewire, chosen, runner.mean),
            callbacks=watching,
            fingerprint=fingerprint,
        )
        run.resume()
        noted: dict[str, Any] = {"epochs": epochs, "batches": batches, "n_data": objective.n_data, "seed": seed}
        noted |= {"optimizer": type(chosen).__name__, "precision": runner.precision}
        try:
            with watching.opened(noted):
                history = _train(run, epochs, optimization.patience, validate)
            if trained is not objective:
                _write_back(trained, objective)
            return history
        finally:
            run.close()


def _train(run: TrainingRun, epochs: int, patience: int | None, validate: Iterable[Any] | None) -> History:
    """Go through the epochs, and leave the weights of the best one in the model."""
    progress, runner = run.progress, run.engine
    best = Best(run.objective, run.store, writes=runner.index == 0)
    while progress["epoch"] < epochs and not _settled(progress, patience) and progress["stopped"] is None:
        begin = time.perf_counter()
        stop = run.epoch()
        if stop is not None and not stop.final:
            return _paused(run, stop.reason)
        loss, nll, kl = run.means()
        epoch, score = progress["epoch"], None
        if validate is not None:
            seed = mix(run.seed, "validate", epoch)
            position = f"epoch {epoch}, step {progress['step']}"
            score = validation_loss(run.objective, validate, runner.device, seed, position, run.reading)
        row = Epoch(epoch, loss, nll, kl, run.kl_weight(), score, time.perf_counter() - begin)
        progress["epochs"].append(asdict(row))
        least = None if progress["best"] is None else progress["epochs"][progress["best"]]["validation"]
        if score is not None and (least is None or score < least):
            progress["best"] = epoch
            best.remember(epoch)
        run.end_epoch()
        # Before the checkpoint, which then holds what the callbacks change in the model.
        answer = run.callbacks.after_epoch(row, progress["step"])
        if run.callbacks.of_epochs:
            answer = run.agreed(answer)
        if stop is None and answer is not None and not answer.final:
            return _paused(run, answer.reason)
        stop = stop or answer
        progress["stopped"] = None if stop is None else stop.reason
        run.save()
    steps = progress["step"]
    run.use_averages()
    if progress["best"] is not None:
        best.bring_back(progress["best"])
        steps = min(steps, (progress["best"] + 1) * run.batches)
    start, end = run.training.notes.get("scales"), log_scales(run.objective.model)
    scales = None if start is None or end is None else movement(start, end, steps)
    if scales is not None and progress["stopped"] is None:
        warn_if_still(scales, owned=not run.objective.with_kl)
    rows = [Epoch(**row) for row in progress["epochs"]]
    return History(rows, progress["best"], scales, progress["stopped"])


@torch.no_grad()
def _write_back(trained: Objective, objective: Objective) -> None:
    """Write the weights of a sharded copy into the model of the user, one tensor after the other."""
    theirs = module_state(trained)
    with exclusive(objective):
        for name, value in module_state(objective).items():
            value.copy_(whole(theirs[name]))


def _refuse_whole_weights(optimization: Optimization, rewire: Rewire | None) -> None:
    """Raise if a setting needs whole weights in every process, which a sharded training does not have."""
    if isinstance(optimization.optimizer, Optimizer):
        raise InputError(
            "fit shards the weights and must build the optimizer afterwards, from the pieces; give its name, such as "
            'optimizer="ivon", its settings, such as lb.optim.NaturalGradients(...), or a function of parameter groups'
        )
    if rewire is not None:
        raise InputError("sparse weights that move need whole weights in every process; train without FSDP")


def _paused(run: TrainingRun, reason: str) -> History:
    """Write a checkpoint, and return what is known before the training goes on; the weights are those of now."""
    run.save()
    return History([Epoch(**row) for row in run.progress["epochs"]], run.progress["best"], None, reason)


def _settings(
    objective: Objective,
    optimization: Optimization,
    optimizer: Optimizer,
    rates: Any,
    weights: Schedule,
    rewire: Rewire | None,
    steps: int,
) -> dict[str, Any]:
    """Describe all that shapes the result of a training, apart from its data."""
    hold = optimization.hold_statistics
    return {
        "n_data": objective.n_data,
        "parts": optimization.micro_batches,
        "rewire": None if rewire is None else asdict(rewire),
        "terms": _described_terms(objective.terms),
        "kl_weight": describe_weights(weights),
        "optimizer": describe_optimizer(optimizer, objective),
        "schedule": describe_rates(rates, steps),
        "clip": optimization.clip,
        "hold_statistics": must_hold_statistics(objective.model) if hold is None else hold,
        "patience": optimization.patience,
        "model": describe_model(objective.model, moving=rewire is not None),
        "likelihood": described(objective.likelihood),
        "output": described(objective.output),
    }


def _described_terms(terms: Terms) -> dict[str, Any]:
    """Describe all terms but the weight of the KL; no Dice term is left out, as in checkpoints of earlier versions."""
    others = {name: value for name, value in vars(terms).items() if name not in ("kl_weight", "dice")}
    return others | ({"dice": asdict(terms.dice)} if isinstance(terms.dice, DiceTerm) else {})


def _data(train: Iterable[Any], validate: Iterable[Any] | None, seed: int, checkpoint: Checkpointing) -> dict[str, Any]:
    """Describe the data of a training, and refuse those that cannot be read again in the same order."""
    if not checkpoint.exact:
        return {"data": None, "validation": None}
    refuse_unrepeatable(train)
    validation = None
    if validate is not None and not isinstance(validate, Iterator):
        validation = describe_data(validate, seed, "validation set")
    return {"data": describe_data(train, seed, "training set"), "validation": validation}


def _settled(progress: dict[str, Any], patience: int | None) -> bool:
    """Whether so many epochs have passed without a better validation loss."""
    best = progress["best"]
    return patience is not None and best is not None and progress["epoch"] - 1 - best >= patience


def _kl_schedule(weight: float | str | Schedule) -> Schedule:
    if isinstance(weight, str):
        return kl_schedule(weight)
    return constant(weight) if isinstance(weight, int | float) else weight


def _owns_scales(choice: OptimizerChoice) -> bool:
    return bool(getattr(OPTIMIZERS.named(choice) if isinstance(choice, str) else choice, "owns_scales", False))


def _optimizer(objective: Objective, optimization: Optimization, steps: int, kl_weight: float) -> Optimizer:
    """Return the optimizer that the user chose, or build it."""
    choice, model = optimization.optimizer, objective.model
    if isinstance(choice, Optimizer):
        return choice
    builder = OPTIMIZERS.named(choice) if isinstance(choice, str) else choice
    lr = getattr(builder, "default_lr", _USUAL_RATE) if optimization.lr is None else optimization.lr
    scale_lr = optimization.scale_lr or getattr(builder, "default_scale_lr", None)
    if isinstance(model, Bayesian):
        groups = model.parameter_groups(lr=lr, scale_lr=scale_lr, weight_decay=optimization.weight_decay)
        if not objective.with_kl:
            scales = {id(parts.rho) for _, parts in model.parts()}
            groups = [group for group in groups if not any(id(parameter) in scales for parameter in group["params"])]
    else:
        means = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [{"params": means, "lr": lr, "weight_decay": optimization.weight_decay}]
    learned = list(objective.likelihood.parameters())
    if learned:
        groups.append({"params": learned, "lr": lr, "weight_decay": 0.0})
    if isinstance(builder, OptimizerBuilder):
        n_data = objective.n_data
        return builder.build(Problem(model, groups, lr, optimization.weight_decay, n_data, steps, kl_weight))
    return builder(groups)


@contextmanager
def _modes_restored(*modules: nn.Module) -> Iterator[None]:
    """Leave every module in the mode, training or evaluation, that it had before."""
    modes = [(module, module.training) for whole in modules for module in whole.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _check_owned(terms: Terms) -> None:
    """Refuse settings of the KL that an optimizer with its own scales would silently leave out of its update."""
    if terms.temperature != 1 or terms.kl_per != "data":
        raise InputError(
            f"this optimizer has the KL in its own update, so it cannot follow temperature={terms.temperature} and "
            f"kl_per={terms.kl_per!r}; leave them 1 and 'data', and give the optimizer its temperature itself, such as "
            "optimizer=leanbayes.optim.IVON(bnn, temperature=0.5, ...)"
        )


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise InputError(f"seed must be a whole number, got {seed!r}")


def _check(counts: Mapping[str, Any], optimization: Optimization, validate: Any) -> None:
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    if validate is not None and getattr(optimization.optimizer, "average", 0.0) > 0:
        raise InputError(
            "the optimizer leaves the average of the last steps in the model, and with a validation set fit leaves the "
            "best epoch; leave out validate=, or set average=0"
        )
    if optimization.patience is not None and validate is None:
        raise InputError("patience needs a validation set; give one: validate=")
