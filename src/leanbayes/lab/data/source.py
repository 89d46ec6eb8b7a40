"""A source: three sets of examples with one preparation, which become a task together with a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """A sequence of tensors: one tensor, whose rows are the items, or files that are read when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (x, y) of an input and its target. An input is prepared when it is asked for."""

    def __init__(self, inputs: Numbered, targets: Numbered, preparation: Preparation) -> None:
        self.inputs, self.targets, self.preparation = inputs, targets, preparation

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.preparation.standardise(self.inputs[index]), self.targets[index]


@dataclass(frozen=True)
class Source:
    """Three sets of examples, and how their inputs and targets were prepared.

    Args:
        name: the name that tables show.
        train: the examples that methods learn from.
        validation: the examples on which settings are chosen.
        test: the examples that methods are judged on.
        preparation: how inputs and targets were prepared. Save it beside a model, which needs it for new inputs.
        shifted: further examples that differ from the training set, by name; most data sets have none.
    """

    name: str
    train: Examples
    validation: Examples
    test: Examples
    preparation: Preparation
    shifted: Mapping[str, Examples] = field(default_factory=dict)

    @property
    def usual_model(self) -> str:
        """The name of the model that is usual for such data: unet for pixels, small_cnn for other images, else mlp."""
        if self.preparation.size is None:
            return "mlp"
        return "unet" if self.preparation.kind == "pixels" else "small_cnn"

    def task(self, model: str | None = None) -> Task:
        """Return the task of learning these data with a model.

        A trial model sees two examples at once, so that a model that does not fit the data is an error now and not
        after hours.

        Args:
            model: the name of the model (see `leanbayes.lab.models.model_named`), by default `usual_model`.
        """
        plan, name = self.preparation, model or self.usual_model
        make = partial(model_named, name, **plan.shape)
        with torch.random.fork_rng(devices=[]):  # the trial model's weights must not move those of the real ones
            self._try(make(), name)
        return Task(
            self.name,
            self.train,
            self.validation,
            self.test,
            make,
            likelihood_for(plan),
            plan.classes,
            shifted=self.shifted,
            preparation=plan,
        )

    def _try(self, model: nn.Module, name: str) -> None:
        pairs = [self.train[index] for index in range(min(2, len(self.train)))]
        x, y = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        try:
            with torch.no_grad():
                returned = model.eval()(x)
        except (RuntimeError, ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ShapeMismatch(
                f"model {name!r} fails on inputs of shape {tuple(x.shape)}: {reason}; choose another model"
            ) from error
        output, width = prediction_tensor(returned), self.preparation.outputs
        expected = (len(x), width, *y.shape[1:]) if self.preparation.kind == "pixels" else (len(x), width)
        if isinstance(output, Tensor) and output.shape != expected:
            raise ShapeMismatch(
                f"model {name!r} returns {tuple(output.shape)} for inputs {tuple(x.shape)}; these data need {expected}"
            )
        likelihood_for(self.preparation).nll(output, y)


def likelihood_for(preparation: Preparation) -> Likelihood:
    """Return the likelihood that is usual for the data.

    For a regression, the outputs of a network are the means of the targets, followed by as many log-variances.
    """
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
    """Make a source from arrays.

    Args:
        path: the file that the arrays come from, for the name of the source and for errors.
        sets: the inputs and the targets of "train", and of "validation" and "test" if they exist. Missing sets are
            drawn from "train".
        kind: what is predicted.
        features: the names of the features; by default x0, x1, and so on.
        ignore: the value of mask pixels that do not count.
        seed: decides which examples are drawn from "train" for the missing sets.
    """
    y = sets["train"][1]
    groups = class_values(y, path) if kind == "classes" and y.ndim == 1 else [0] * len(y)
    rows = complete({name: range(len(x)) for name, (x, _) in sets.items()}, groups.__getitem__, seed, path)
    chosen = {name: [part[rows[name]] for part in sets.get(name, sets["train"])] for name in rows}
    inputs = {name: as_inputs(x, f"the {name} inputs of {path}") for name, (x, _) in chosen.items()}
    size = (inputs["train"].shape[2], inputs["train"].shape[3]) if inputs["train"].dim() == 4 else None
    targets = targets_of(kind, {name: y for name, (_, y) in chosen.items()}, path, size, ignore)
    mean, std = statistics(inputs["train"].split(_ROWS_AT_A_TIME))
    names = () if size else features or tuple(f"x{index}" for index in range(len(mean)))
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
    """Put inputs and targets together as a source.

    Args:
        path: the folder or file that the data come from. The source has its name.
        inputs: the inputs of each of the three sets.
        targets: the targets of each of the three sets.
        plan: how the inputs and targets were prepared.
    """
    sets = {name: Examples(inputs[name], targets[name], plan) for name in SPLITS}
    full_path = path.resolve()
    name = full_path.name if full_path.is_dir() else full_path.stem
    return Source(name, sets["train"], sets["validation"], sets["test"], plan)
