"""What watches a training: functions of each epoch and of each step, which may stop it, and trackers of experiments."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leanbayes.errors import InputError, MissingPackage, UnknownName
from leanbayes.train.history import Epoch, Stop
from leanbayes.train.processes import accelerate_untouched

__all__ = ["Callback", "Callbacks", "EachStep", "Step", "Tracking"]


@dataclass(frozen=True)
class Step:
    """The result of one optimizer step, as `EachStep` hands it to its function.

    Attributes:
        step: how many steps are done, this one included.
        epoch: the number of the epoch, from 0.
        loss: −ELBO / n_data in nats, without the KL if the optimizer owns the scales.
        nll: the negative log-likelihood of one example in nats.
        kl: the KL divergence of the whole model in nats, or None if the optimizer owns the scales.
        kl_weight: the weight of the KL in this step.
        lr: the learning rate of the means in this step.
    """

    step: int
    epoch: int
    loss: float
    nll: float
    kl: float | None
    kl_weight: float
    lr: float


@dataclass(frozen=True)
class EachStep:
    """A callback that `fit` calls after optimizer steps. If it returns a `Stop`, the training ends there.

    Args:
        function: takes a `Step`.
        every: after how many steps it is called. On a GPU each call waits for the loss.

    >>> def low_enough(step):
    ...     return Stop("the loss is low enough") if step.loss < 0.1 else None
    >>> EachStep(low_enough, every=10).every
    10
    """

    function: Callable[[Step], Any]
    every: int = 1

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(f"function must be a function of a Step, got {self.function!r}")
        _check_every(self.every)


@dataclass(frozen=True)
class Tracking:
    """A callback that writes losses to trackers of experiments, through those of Hugging Face accelerate.

    A tracker gets ``step/loss``, ``step/nll``, ``step/kl``, ``step/kl_weight`` and ``step/lr`` every so many steps, and
    ``epoch/loss``, ``epoch/nll``, ``epoch/kl``, ``epoch/validation`` and ``epoch/seconds`` after each epoch. One
    process writes for all. A training that goes on after a kill writes the steps since its last checkpoint again.

    Args:
        trackers: one or several of: a name that accelerate knows ("tensorboard", "wandb", "mlflow", ...), or a
            tracker that is started already, such as those of ``accelerator.trackers``. `fit` starts and finishes the
            trackers that it makes from names, and only writes to those that it gets.
        project: the name of the project or run.
        folder: where trackers that write files put them.
        every: how many steps lie between two entries.
        config: settings to note with the run, such as the learning rate.
        options: further arguments of trackers by the name of the tracker: ``{"wandb": {"tags": ["first"]}}``.

    >>> Tracking("tensorboard", folder="logs", every=50).project
    'leanbayes'
    """

    trackers: Any
    project: str = "leanbayes"
    folder: str | Path | None = None
    every: int = 10
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_every(self.every)
        if isinstance(self.trackers, Sequence) and not len(self.trackers):
            raise InputError(
                'there is no tracker; give the name of one, such as Tracking("tensorboard", folder="logs")'
            )

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Give the trackers, started; those that were made here are finished afterwards, also after an error."""
        try:
            from accelerate.state import PartialState
            from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
            from accelerate.utils import LoggerType
        except ImportError as error:
            raise MissingPackage.of("Tracking", "accelerate", "distributed") from error
        PartialState()  # the log messages of trackers need it, and not every tracker makes it
        wanted = [self.trackers] if isinstance(self.trackers, str | GeneralTracker) else list(self.trackers)
        with ExitStack() as stack:
            opened: list[Any] = []
            for one in wanted:
                if isinstance(one, GeneralTracker):
                    opened.append(one)
                    continue
                name = str(one)
                if name not in LOGGER_TYPE_TO_CLASS:
                    raise UnknownName.of("tracker", name, list(LOGGER_TYPE_TO_CLASS))
                if name in [str(kind) for kind in LoggerType] and name not in map(str, get_available_trackers()):
                    raise InputError(f"the package of the tracker {name!r} is not installed: pip install {name}")
                made = self._made(LOGGER_TYPE_TO_CLASS[name], name)
                made.start()
                stack.callback(made.finish)
                made.store_init_configuration({**settings, **self.config})
                opened.append(made)
            yield opened

    def _made(self, kind: Any, name: str) -> Any:
        if not kind.requires_logging_directory:
            return kind(self.project, **self.options.get(name, {}))
        if self.folder is None:
            raise InputError(f'the tracker {name!r} writes files; say where: Tracking({name!r}, folder="logs")')
        return kind(self.project, str(self.folder), **self.options.get(name, {}))


Callback = Callable[[Epoch], Any] | EachStep | Tracking
"""A function that `fit` calls with each `Epoch`, or one of the other kinds."""


class Callbacks:
    """All callbacks of a training.

    Args:
        callbacks: what the user gave.
        writes: whether this process is the one that writes to trackers.
    """

    def __init__(self, callbacks: Sequence[Callback], writes: bool = True) -> None:
        kinds = (EachStep, Tracking)
        if not isinstance(callbacks, Sequence) or not all(isinstance(c, kinds) or callable(c) for c in callbacks):
            raise InputError(
                f"callbacks must be a list of functions, EachStep(...) and Tracking(...), got {callbacks!r}"
            )
        self.of_epochs = [c for c in callbacks if not isinstance(c, kinds) and callable(c)]
        self.of_steps = [c for c in callbacks if isinstance(c, EachStep)]
        self.tracking = [c for c in callbacks if isinstance(c, Tracking)] if writes else []
        self.trackers: list[tuple[Tracking, list[Any]]] = []

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Inside this context the trackers are open; ``settings`` are noted with the run."""
        if not self.tracking:
            yield
            return
        with accelerate_untouched(), ExitStack() as stack:
            self.trackers = [(one, stack.enter_context(one.opened(settings))) for one in self.tracking]
            yield

    def due(self, step: int) -> bool:
        """Return whether a callback wants to see the step with this number."""
        return self.may_stop(step) or any(step % one.every == 0 for one in self.tracking)

    def may_stop(self, step: int) -> bool:
        """Return whether a function that may stop the training sees the step with this number."""
        return any(step % one.every == 0 for one in self.of_steps)

    def after_step(self, row: Step) -> Stop | None:
        """Call all that is due, and return the first `Stop`."""
        answers = [one.function(row) for one in self.of_steps if row.step % one.every == 0]
        names = {name: getattr(row, name) for name in ("loss", "nll", "kl", "kl_weight", "lr")}
        self._log("step", names, row.step, lambda one: row.step % one.every == 0)
        return _first_stop(answers)

    def after_epoch(self, row: Epoch, step: int) -> Stop | None:
        """Call all functions of epochs, and return the first `Stop`."""
        answers = [function(row) for function in self.of_epochs]
        names = {name: getattr(row, name) for name in ("loss", "nll", "kl", "validation", "seconds")}
        self._log("epoch", names, step, lambda _: True)
        return _first_stop(answers)

    def _log(self, kind: str, values: Mapping[str, float | None], step: int, due: Callable[[Tracking], bool]) -> None:
        known = {f"{kind}/{name}": value for name, value in values.items() if value is not None}
        for one, trackers in self.trackers:
            if due(one):
                for tracker in trackers:
                    tracker.log(known, step=step)


def _first_stop(answers: Sequence[Any]) -> Stop | None:
    return next((answer for answer in answers if isinstance(answer, Stop)), None)


def _check_every(every: int) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InputError(f"every must be a whole number of at least 1, got {every!r}")
