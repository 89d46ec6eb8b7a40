"""Three sets of examples with one preparation, ready to become a task for any model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from leanbayes._calls import prediction_tensor
from leanbayes.errors import ShapeMismatch
from leanbayes.lab.data.arrays import Array, as_inputs
from leanbayes.lab.data.preparation import Kind, Preparation, statistics
from leanbayes.lab.data.splits import SPLITS, complete
from leanbayes.lab.data.targets import class_values, targets_of
from leanbayes.lab.data.task import Task
from leanbayes.lab.models import model_named
from leanbayes.likelihood import Likelihood, usual_likelihood

__all__ = ["Examples", "Source", "from_arrays", "likelihood_for", "source_of"]

_ROWS_AT_A_TIME = 1024  # statistics convert bytes to floats, and must not do so for all rows at once


class Numbered(Protocol):
    """Tensors by number: a tensor itself, or files."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Tensor: ...


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (x, y), each x prepared when it is asked for."""

    def __init__(self, inputs: Numbered, targets: Numbered, preparation: Preparation) -> None:
        self.inputs, self.targets, self.preparation = inputs, targets, preparation

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.preparation.standardise(self.inputs[place]), self.targets[place]


@dataclass(frozen=True)
class Source:
    """Three sets of examples, and how their inputs were prepared: save ``preparation`` beside a model."""

    name: str
    train: Examples
    validation: Examples
    test: Examples
    preparation: Preparation

    @property
    def usual_model(self) -> str:
        """The model for such data, by name: unet for pixels, small_cnn for other images, mlp for features."""
        if self.preparation.size is None:
            return "mlp"
        return "unet" if self.preparation.kind == "pixels" else "small_cnn"

    def task(self, model: str | None = None) -> Task:
        """A task for a model by name (see `leanbayes.lab.models.model_named`), tried on two examples at once.

        By default it is ``usual_model``.
        """
        plan, name = self.preparation, model or self.usual_model
        make = partial(model_named, name, **plan.shape)
        with torch.random.fork_rng(devices=[]):  # the trial model's weights must not move those of the real ones
            self._try(make(), name)
        return Task(self.name, self.train, self.validation, self.test, make, likelihood_for(plan), plan.classes)

    def _try(self, model: nn.Module, name: str) -> None:
        places = range(min(2, len(self.train)))
        x, y = (torch.stack(parts) for parts in zip(*(self.train[place] for place in places), strict=True))
        try:
            with torch.no_grad():
                returned = model.eval()(x)
        except (RuntimeError, ValueError, TypeError) as error:
            first = str(error).partition("\n")[0]
            raise ShapeMismatch(f"model {name!r} fails on inputs of shape {tuple(x.shape)}: {first}") from error
        output, width = prediction_tensor(returned), self.preparation.outputs
        expected = (len(x), width, *y.shape[1:]) if self.preparation.kind == "pixels" else (len(x), width)
        if isinstance(output, Tensor) and output.shape != expected:
            raise ShapeMismatch(
                f"model {name!r} returns {tuple(output.shape)} for inputs {tuple(x.shape)}; these data need {expected}"
            )
        likelihood_for(self.preparation).nll(output, y)


def likelihood_for(preparation: Preparation) -> Likelihood:
    """Return the usual likelihood of the data. For numbers the outputs are means and then as many log-variances."""
    return usual_likelihood(preparation.kind, preparation.ignore)


def from_arrays(
    path: Path,
    sets: Mapping[str, tuple[Array, Array]],
    kind: Kind,
    *,
    features: tuple[str, ...] = (),
    ignore: int | None = None,
    seed: int = 0,
) -> Source:
    """Make a source of inputs and targets by set; ``path`` is for its name and for errors."""
    y = sets["train"][1]
    group = class_values(y, path) if kind == "classes" and y.ndim == 1 else [0] * len(y)
    places = complete({name: range(len(x)) for name, (x, _) in sets.items()}, group.__getitem__, seed, path)
    chosen = {name: [part[places[name]] for part in sets.get(name, sets["train"])] for name in places}
    inputs = {name: as_inputs(x, f"the {name} inputs of {path}") for name, (x, _) in chosen.items()}
    size = (inputs["train"].shape[2], inputs["train"].shape[3]) if inputs["train"].dim() == 4 else None
    targets = targets_of(kind, {name: y for name, (_, y) in chosen.items()}, path, size, ignore)
    mean, std = statistics(inputs["train"].split(_ROWS_AT_A_TIME))
    names = () if size else features or tuple(f"x{place}" for place in range(len(mean)))
    plan = Preparation(
        kind,
        mean,
        std,
        targets.classes,
        size=size,
        features=names,
        target_mean=targets.mean,
        target_std=targets.std,
        ignore=ignore,
    )
    return source_of(path, inputs, targets.sets, plan)


def source_of(path: Path, inputs: Mapping[str, Numbered], targets: Mapping[str, Numbered], plan: Preparation) -> Source:
    """Put inputs and targets, each by the name of its set, together as a source that is named after ``path``."""
    sets = {name: Examples(inputs[name], targets[name], plan) for name in SPLITS}
    whole = path.resolve()
    return Source(whole.name if whole.is_dir() else whole.stem, preparation=plan, **sets)
