"""Lightning: callbacks for a ``LightningModule`` of your own that has a `Bayesian` in it.

The module stays as it is, apart from one line, ``self.net = lb.Bayesian(net)``. Its ``training_step`` returns the loss
of a plain network. `VariationalTraining` makes an evidence lower bound of it, and `PredictionWithUncertainty` makes
``trainer.predict`` return what `leanbayes.predict` returns.

A callback cannot change what a step returns. So both put a function around the step while the trainer runs, and take it
away afterwards, also after an exception.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, prediction_tensor, require_function
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite
from leanbayes.integrations._checks import checked_weight, require_count, seeded
from leanbayes.integrations._optional import optional
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.objective import Constant, Schedule, Terms
from leanbayes.prediction import Prediction, Predictor, predict
from leanbayes.propagate import OnePass
from leanbayes.train.norms import fix_statistics, must_hold_statistics
from leanbayes.train.scales import log_scales, movement, warn_if_still
from leanbayes.train.schedules import kl_schedule

with optional("leanbayes.integrations.lightning", "lightning", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["PredictionWithUncertainty", "VariationalTraining"]


class VariationalTraining(Callback):
    """Adds the KL divergence to the loss that ``training_step`` returns, so that the module trains on the ELBO.

    The loss of the module must be the mean negative log-likelihood of an example in nats, such as a cross-entropy. The
    callback adds kl_weight · KL / n_data. Several `Bayesian` parts of one module add their divergences. If the
    optimizer owns the scales, as `leanbayes.optim.IVON` does, then the KL is in its update, and the callback hands it
    the present KL weight instead of adding anything.

    While all examples of a batch share one draw of the weights, batch norms keep their statistics, as in
    `leanbayes.fit`. After each epoch the callback logs ``kl`` and ``kl_weight``. After the training it warns if the
    scales ended where they began.

    Args:
        n_data: the number of examples in the training set; by default the length of the data set of the training
            loader.
        kl_weight: the weight of the KL: a number, a function of the share of training that is done (from 0 to 1), or
            the name of such a function: "constant", "anneal" or "warm_up".
        hold_statistics: whether batch norms keep their statistics; by default as described above.

    >>> VariationalTraining(kl_weight=-1.0)
    Traceback (most recent call last):
        ...
    leanbayes.errors.InputError: kl_weight must be finite and at least 0, got -1.0
    """

    def __init__(
        self,
        *,
        n_data: int | None = None,
        kl_weight: float | str | Schedule = 1.0,
        hold_statistics: bool | None = None,
    ) -> None:
        if isinstance(kl_weight, Terms):
            raise InputError(
                f"kl_weight must be a number, a schedule or its name, got {kl_weight}; the draws and the temperature "
                "belong to the loss, which your training_step computes"
            )
        checked = Terms(kl_weight).kl_weight
        if isinstance(checked, float):
            checked = Constant(checked)
        self.schedule: Schedule = kl_schedule(checked) if isinstance(checked, str) else checked
        if n_data is not None:
            require_count("n_data", n_data)
        if hold_statistics not in (None, True, False):
            raise InputError(f"hold_statistics must be True, False or None, got {hold_statistics!r}")
        self.n_data = n_data
        self.hold_statistics = hold_statistics
        self._running: _Running | None = None
        self._step = _Around("training_step")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that module, optimizers and data fit, and put the KL around the training step."""
        parts = _bayesian_parts(pl_module)
        _require_alone(self, trainer)
        owners = [optimizer for optimizer in trainer.optimizers if getattr(optimizer, "owns_scales", False)]
        if owners:
            self._check_owners(owners, trainer)
        elif not pl_module.automatic_optimization:
            raise InputError(
                f"{type(pl_module).__name__} has automatic_optimization=False, so its training_step calls backward "
                "itself, and this callback cannot add the KL before that; leave VariationalTraining out, and take the "
                "whole loss from lb.elbo(..., n_data=..., kl_weight=...)"
            )
        steps = trainer.estimated_stepping_batches
        if not isinstance(self.schedule, Constant) and not 1 <= steps < math.inf:
            raise InputError(
                f"the KL weight {self.schedule!r} depends on the share of training that is done, and this Trainer does "
                f"not know its length (max_epochs={trainer.max_epochs}, max_steps={trainer.max_steps}); give the "
                "Trainer max_epochs or max_steps, or this callback a constant kl_weight"
            )
        size = None if owners else (_examples(trainer) if self.n_data is None else self.n_data)
        starts = [logs for logs in map(log_scales, parts) if logs is not None]
        self._running = _Running(trainer, parts, size, self.schedule, torch.cat(starts) if starts else None)
        if size is not None:
            self._step.put(pl_module, self._running.with_kl)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Let batch norms keep their statistics where the draws ask for it."""
        for part in self._now.parts:
            if must_hold_statistics(part) if self.hold_statistics is None else self.hold_statistics:
                fix_statistics(part)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:  # noqa: ARG002
        """Tell an optimizer that owns the scales the present weight of the KL."""
        if getattr(optimizer, "owns_scales", False):
            for group in optimizer.param_groups:
                group["kl_weight"] = self._now.kl_weight()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the KL and its weight; a KL that is not finite is an error."""
        running = self._now
        with torch.no_grad():
            divergence = running.kl()
        if not torch.isfinite(divergence):
            raise NonFinite(
                f"epoch {trainer.current_epoch}: the KL is {divergence.item()}, so weights or scales are not finite; "
                "lower the learning rate, or look for NaN in the data"
            )
        pl_module.log_dict({"kl": divergence, "kl_weight": running.kl_weight()})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the scales did not move, and leave the module as it was."""
        running = self._now
        if running.start is not None:
            end = torch.cat([logs for logs in map(log_scales, running.parts) if logs is not None])
            warn_if_still(movement(running.start, end, trainer.global_step))
        self._end(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Leave the module as it was."""
        self._end(pl_module)

    def _end(self, module: LightningModule) -> None:
        for part in self._running.parts if self._running is not None else ():
            part.train(part.training)  # the batch norms, too
        self._step.take_away(module)
        self._running = None

    @property
    def _now(self) -> "_Running":
        assert self._running is not None, "Lightning calls on_train_start before any other hook of a training"
        return self._running

    def _check_owners(self, owners: list[Any], trainer: Trainer) -> None:
        if trainer.gradient_clip_val:
            raise InputError(
                f"gradient_clip_val={trainer.gradient_clip_val} clips the gradients of the scales, from which "
                f"{type(owners[0]).__name__} computes the curvature, and a clipped curvature would be a wrong one; "
                f"leave gradient_clip_val out and give the optimizer its own: {type(owners[0]).__name__}(..., clip=...)"
            )
        for optimizer in owners:
            theirs = optimizer.param_groups[0].get("n_data", self.n_data)
            if self.n_data is not None and theirs != self.n_data:
                raise InputError(
                    f"the optimizer {type(optimizer).__name__} has n_data={theirs} and this callback has "
                    f"n_data={self.n_data}; leave n_data of the callback out, because the optimizer uses its own"
                )


class _Running:
    """A training under way."""

    def __init__(
        self, trainer: Trainer, parts: list[Bayesian], n_data: int | None, schedule: Schedule, start: Tensor | None
    ) -> None:
        self.trainer, self.parts, self.n_data, self.schedule, self.start = trainer, parts, n_data, schedule, start

    def kl_weight(self) -> float:
        """Return the present weight of the KL."""
        if isinstance(self.schedule, Constant):
            return self.schedule.value
        return checked_weight(
            self.schedule, min(1.0, self.trainer.global_step / self.trainer.estimated_stepping_batches)
        )

    def kl(self) -> Tensor:
        """Return the sum of the divergences of all Bayesian parts, in nats."""
        divergences = [part.kl() for part in self.parts]
        return torch.stack([divergence.to(divergences[0].device) for divergence in divergences]).sum()

    def with_kl(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what a training step returns, with the KL added to its loss."""
        with _refusing_kl(self.parts):
            returned = step(*args, **kwargs)
        if returned is None:  # Lightning leaves this batch out
            return None
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if not isinstance(loss, Tensor):
            got = f"a mapping with {list(returned)}" if isinstance(returned, Mapping) else f"a {type(loss).__name__}"
            raise InputError(f"training_step must return a tensor, a mapping with a tensor 'loss', or None; got {got}")
        if loss.numel() != 1:
            raise InputError(
                f"training_step must return one number, the mean loss of an example; got the shape {tuple(loss.shape)}"
            )
        assert self.n_data is not None
        whole = loss + self.kl_weight() / self.n_data * self.kl().to(loss.device)
        return {**returned, "loss": whole} if isinstance(returned, Mapping) else whole


class PredictionWithUncertainty(Callback):
    """Makes ``trainer.predict`` return a `leanbayes.Prediction` for each batch: mean, total, aleatoric, epistemic.

    The ``predict_step`` of the module runs once for each draw, with the weights of that draw in the parameters, and
    must return what the likelihood reads, such as logits. So whatever the step does before and after the network is
    part of the prediction. If the `Bayesian` predicts in one pass, as with ``predict_by="moments"``, then the step must
    return what the `Bayesian` returns, because no rule says how moments pass through other code.

    Args:
        likelihood: how outputs become probabilities; `leanbayes.Categorical` by default.
        samples: how many draws to make, or "auto"; see `leanbayes.predict`.
        seed: the seed of the draws of each batch, for predictions that repeat; by default torch's global state draws.
        output: picks the tensor that is predicted from what the step returns.
    """

    def __init__(
        self,
        likelihood: Likelihood | None = None,
        *,
        samples: int | Literal["auto"] = 32,
        seed: int | None = None,
        output: Callable[[Any], Any] = prediction_tensor,
    ) -> None:
        self.likelihood = Categorical() if likelihood is None else require_likelihood(likelihood)
        if samples != "auto" and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
            raise InputError(f'samples must be a whole number of at least 1, or "auto", got {samples!r}')
        seeded(seed, "cpu")  # raises for what is no seed
        require_function("output", output)
        self.samples, self.seed, self.output = samples, seed, output
        self._step = _Around("predict_step")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the draws around the prediction step."""
        parts = _bayesian_parts(pl_module)
        _require_alone(self, trainer)
        self.likelihood.to(pl_module.device)

        def predicted(step: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Prediction:
            with torch.inference_mode(False), torch.no_grad():  # a draw is written into the parameters
                return self._predict(pl_module, parts, lambda inputs: step(inputs, *args, **kwargs), batch)

        self._step.put(pl_module, predicted)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Leave the module as it was."""
        self._step.take_away(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Leave the module as it was."""
        self._step.take_away(pl_module)

    def _predict(
        self, module: LightningModule, parts: list[Bayesian], step: Callable[[Any], Any], batch: Any
    ) -> Prediction:
        source: nn.Module
        if any(isinstance(part.predict_by, OnePass) for part in parts):
            source, batch = parts[0], _inputs_of_one_pass(parts, step, batch)
        else:
            source = _Steps(module, parts, step)
        return predict(
            source,
            batch,
            likelihood=self.likelihood,
            samples=self.samples,
            generator=seeded(self.seed, module.device),
            output=self.output,
        )


class _Steps(Predictor):
    """The prediction step of a module as a predictor: one step for each draw."""

    def __init__(self, module: nn.Module, bayesian: list[Bayesian], step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module, self.bayesian, self.step = module, bayesian, step

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield what the step returns in each draw."""
        for _ in range(draws):
            with ExitStack() as drawn:
                for part in self.bayesian:
                    drawn.enter_context(part.drawn(generator))
                returned = self.step(x)
            yield returned

    def parts(self) -> dict[str, nn.Module]:
        """Return the module."""
        return {"module": self.module}


class _Around:
    """A function around a step of a module, which is there only while the trainer runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: Any = None
        self.there = False

    def put(self, module: nn.Module, function: Callable[..., Any]) -> None:
        """Let ``function`` get the step as its first argument, and then the arguments of the step."""
        step = getattr(module, self.name)
        self.before, self.there = vars(module).get(self.name), True  # torch.compile has put a step there itself

        @wraps(step)  # Lightning reads the signature
        def around(*args: Any, **kwargs: Any) -> Any:
            return function(step, *args, **kwargs)

        setattr(module, self.name, around)

    def take_away(self, module: nn.Module) -> None:
        """Let the module have its own step again."""
        if self.there:
            delattr(module, self.name)
            if self.before is not None:
                setattr(module, self.name, self.before)
        self.before, self.there = None, False


def _bayesian_parts(module: nn.Module) -> list[Bayesian]:
    parts = [part for part in module.modules() if isinstance(part, Bayesian)]
    if not parts:
        raise InputError(
            f"{type(module).__name__} has no lb.Bayesian among its parts, which are "
            f"{[f'{name}: {type(part).__name__}' for name, part in module.named_children()]}; convert the network in "
            "__init__: self.net = lb.Bayesian(net)"
        )
    return parts


def _require_alone(callback: Callback, trainer: Trainer) -> None:
    """Raise if the trainer has the same callback twice, which would add the KL, or draw the weights, twice."""
    name = type(callback).__name__
    if sum(isinstance(other, type(callback)) for other in trainer.callbacks) > 1:
        raise InputError(f"the Trainer has more than one {name} among its callbacks; give it one")


def _examples(trainer: Trainer) -> int:
    """Return the length of the training set, which the loader knows."""
    loader = trainer.train_dataloader
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        raise InputError(
            f"the training data are a {type(loader).__name__}, whose number of examples is unknown; give it: "
            "VariationalTraining(n_data=...)"
        ) from None


@contextmanager
def _refusing_kl(parts: list[Bayesian]) -> Iterator[None]:
    """Inside this context, a loss with the KL in it is an error, because the KL would count twice."""

    def refuse_with_gradients(kl: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def refused(*args: Any, **kwargs: Any) -> Tensor:
            if torch.is_grad_enabled():
                raise InputError(
                    "training_step computes the KL itself, and VariationalTraining adds it, so that it would count "
                    "twice; take lb.elbo(..., with_kl=False).loss in the step, or leave the callback out"
                )
            return kl(*args, **kwargs)

        return refused

    for part in parts:
        vars(part)["kl"] = refuse_with_gradients(part.kl)
    try:
        yield
    finally:
        for part in parts:
            del vars(part)["kl"]


def _inputs_of_one_pass(parts: list[Bayesian], step: Callable[[Any], Any], batch: Any) -> Any:
    """Return the inputs that the prediction step gives to the only `Bayesian`, whose output it must return."""
    calls: list[tuple[Any, Any, Any]] = []
    hook = parts[0].register_forward_hook(
        lambda _module, args, kwargs, output: calls.append((args, kwargs, output)), with_kwargs=True
    )
    try:
        with parts[0].at_mean():
            returned = step(batch)
    finally:
        hook.remove()
    if len(parts) != 1 or len(calls) != 1 or returned is not calls[0][2]:
        raise InputError(
            f"predict_by={parts[0].predict_by} predicts in one pass, for which predict_step must call the only "
            f"Bayesian once and return what it returns; this module has {len(parts)} of them, called the first "
            f"{len(calls)} times and returned a {type(returned).__name__}"
            f"{'' if returned is calls[-1][2] else ' of its own'}; return self.net(x) from predict_step, or predict by "
            'draws: bnn.predict_by = "sample"'
        )
    args, kwargs, _ = calls[0]
    if args and kwargs:
        raise InputError(
            f"predict_step gives the Bayesian {len(args)} positional arguments and {list(kwargs)} by name; a "
            "prediction in one pass takes either kind, so give all of them by name"
        )
    return kwargs or args
