"""What all conformal predictors share: a predictor inside, one fixed way of predicting, and a guard over both."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, map_tensors, prediction_tensor, split_batch
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.conformal.bits import Guard, fingerprint_of
from leanbayes.conformal.whole_draws import with_whole_draws
from leanbayes.errors import InputError
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.prediction import Prediction, Predictor, laws_of, outputs_of, predict
from leanbayes.prediction.prediction import networks_of
from leanbayes.propagate.outputs import Outputs

__all__ = ["Conformal", "Samples", "describe_likelihood", "restore_likelihood"]

Samples = int | Literal["auto"]


class Conformal(Predictor):
    """A predictor with a guarantee that `calibrate` gives it. As a `Predictor` it predicts what the one inside does.

    All predictions use the same seed and draws of whole networks, which all inputs of a batch share. So the predictor
    is one fixed function of an input, whatever the batch is, and calibration examples and new ones are exchangeable.

    Args:
        predictor: a plain module, a `Bayesian` or another `Predictor`.
        likelihood: what its outputs mean.
        samples: how many draws each prediction averages.
        seed: decides the draws.
    """

    question: ClassVar[str]  # the method that users ask, for messages
    deciding: ClassVar[tuple[str, ...]]  # the attributes on which the thresholds depend

    def __init__(self, predictor: nn.Module, likelihood: Likelihood, samples: Samples, seed: int) -> None:
        super().__init__()
        if not isinstance(predictor, nn.Module):
            raise InputError(f"the first argument must be a module that predicts, got a {type(predictor).__name__}")
        model = unwrap(predictor)
        if not isinstance(model, Predictor):
            refuse_random_parts(model)
        if samples != "auto" and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
            raise InputError(f'samples must be at least 1, or "auto", got {samples!r}')
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InputError(f"seed must be an integer, got {seed!r}")
        self.model = model
        self.likelihood = _as_known(require_likelihood(likelihood))
        self.samples, self.seed = samples, seed
        self._guard: Guard | None = None
        self._calibrated_with: dict[str, Any] = {}

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of draws of the model inside, which is one for a plain module."""
        if isinstance(self.model, Predictor):
            return self.model.members
        return None if isinstance(self.model, Bayesian) else 1

    @property
    def calibrated(self) -> bool:
        """Whether `calibrate` has been called."""
        return self._guard is not None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run one pass of the model inside."""
        return self.model(*args, **kwargs)

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield the draws of the model inside."""
        yield from outputs_of(self.model, x, draws, generator)

    def laws(self, x: Inputs, output: Callable[[Any], Any] = prediction_tensor) -> list[Outputs] | None:
        """Return the distributions of the model inside, if it predicts in one pass."""
        return laws_of(self.model, x, output)

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return the draws of the model inside as differentiable functions."""
        return networks_of(self.model, draws, source)

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}

    def config(self) -> dict[str, Any]:
        """Return the settings, and the fingerprint of the model that was calibrated."""
        return {
            "likelihood": describe_likelihood(self.likelihood),
            "samples": self.samples,
            "seed": self.seed,
            "fingerprint": None if self._guard is None else self._guard.fingerprint,
        }

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """Make a conformal predictor of a model and its settings; a file fills in the buffers afterwards."""
        fingerprint = config.pop("fingerprint")
        predictor = cls(parts["model"], likelihood=restore_likelihood(config.pop("likelihood")), **config)
        predictor._guard = None if fingerprint is None else Guard(str(fingerprint))
        predictor._calibrated_with = predictor._settings()
        return predictor

    def prediction(self, x: Inputs, *, keep_samples: bool = False) -> Prediction:
        """Predict a batch in the one way in which this predictor always predicts."""
        generator = torch.Generator(_device(self.model, x)).manual_seed(self.seed)
        return predict(
            *(with_whole_draws(self.model), x),
            likelihood=self.likelihood,
            samples=self.samples if isinstance(self.model, Bayesian | Predictor) else 1,
            keep_samples=keep_samples,
            method="loop",  # what is faster would depend on the moment, and round differently
            generator=generator,
        )

    def _batches(self, loader: Iterable[Any]) -> Iterator[tuple[Inputs, Any]]:
        if isinstance(loader, Tensor) or not isinstance(loader, Iterable):
            raise InputError(
                f"calibration needs batches (inputs, targets), such as a DataLoader or a list of pairs, got a "
                f"{type(loader).__name__}"
            )
        empty = True
        for batch in loader:
            empty = False
            x, y = split_batch(batch)
            if not isinstance(y, Tensor):
                raise InputError(f"targets must be a tensor, got a {type(y).__name__}")
            yield x, y
        if empty:
            raise InputError(
                "there are no batches to calibrate on; an iterator that is used up? Give a list or a DataLoader"
            )

    def _trust(self) -> None:
        """From now on, refuse to answer if the model changes."""
        self._guard = Guard(fingerprint_of(self.model))
        self._calibrated_with = self._settings()

    def _settings(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("likelihood", "samples", "seed", *self.deciding)}
        # A function of groups cannot be kept in a file, so that a loaded predictor may be given it again.
        return {name: "group" if name == "per" and callable(value) else value for name, value in values.items()}

    def _check(self) -> None:
        """Raise unless this predictor is calibrated and its model is the calibrated one."""
        if self._guard is None:
            raise InputError(f"{self.question} needs a calibrated predictor; call calibrate(loader) first")
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.is_floating_point() and buffer.dtype != torch.float64:
                raise InputError(
                    f"{name} has been cast to {buffer.dtype}, but thresholds need float64; change the precision of the "
                    "model first, and then call calibrate"
                )
        now = self._settings()
        changed = [name for name, value in self._calibrated_with.items() if now[name] != value]
        if changed:
            raise InputError(
                f"{' and '.join(changed)} of this {type(self).__name__} changed after it was calibrated, so its "
                "thresholds no longer belong to its settings; call calibrate again"
            )
        self._guard.check(self.model)


def describe_likelihood(likelihood: Likelihood) -> dict[str, Any]:
    """Describe a likelihood for a file, as far as predictions depend on it."""
    if type(likelihood) is Categorical:
        return {"type": "Categorical", "ignore_index": likelihood.ignore_index, "class_axis": likelihood.class_axis}
    if type(likelihood) is Bernoulli:
        return {"type": "Bernoulli"}
    if type(likelihood) is Gaussian:
        known = likelihood.log_variance.double().item() if likelihood.known is None else likelihood.known
        return {"type": "Gaussian", "log_variance": None if likelihood.by_input else known}
    raise InputError(
        f"a file cannot hold the likelihood {type(likelihood).__name__} of a conformal predictor; it can hold "
        "Categorical, Bernoulli and Gaussian"
    )


def restore_likelihood(data: dict[str, Any]) -> Likelihood:
    """Return the likelihood that `describe_likelihood` described."""
    if data["type"] == "Gaussian":
        likelihood = Gaussian("input" if data["log_variance"] is None else 1.0)
        if data["log_variance"] is not None:  # not by way of the deviation, which would round
            likelihood.known = float(data["log_variance"])
            likelihood.log_variance.fill_(likelihood.known)
        return likelihood
    if data["type"] == "Categorical":
        return Categorical(ignore_index=int(data["ignore_index"]), class_axis=data["class_axis"])
    return {"Bernoulli": Bernoulli}[data["type"]]()


def _as_known(likelihood: Likelihood) -> Likelihood:
    """Return a copy that later training does not change; a learned noise becomes a known one, as in a file."""
    if type(likelihood) in (Categorical, Bernoulli, Gaussian):
        return restore_likelihood(describe_likelihood(likelihood))
    return copy.deepcopy(likelihood)


def _device(model: nn.Module, x: Inputs) -> torch.device:
    first = next(model.parameters(), None)
    leaves: list[Tensor] = [] if first is None else [first]
    if first is None:
        map_tensors(leaves.append, x)
    return leaves[0].device if leaves else torch.device("cpu")
