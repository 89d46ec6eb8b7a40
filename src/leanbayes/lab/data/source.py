"""A source: three sets of examples with one preparation, which become a task together with a model."""

from collections.abc import Callable, Hashable, Mapping, Sequence
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
from leanbayes.lab.data.patients import one_case_each
from leanbayes.lab.data.preparation import Kind, Preparation, statistics
from leanbayes.lab.data.splits import SPLITS, complete
from leanbayes.lab.data.targets import class_values, targets_of
from leanbayes.lab.data.task import Task
from leanbayes.lab.models import model_named
from leanbayes.likelihood import Likelihood, usual_likelihood

__all__ = ["Cases", "Examples", "Numbered", "Source", "divided_rows", "from_arrays", "likelihood_for", "source_of"]

_ROWS_AT_A_TIME = 1024  # statistics convert bytes to floats, and must not do so for all rows at once


class Numbered(Protocol):
    """A sequence of tensors: one tensor, whose rows are the items, or files that are read when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


@dataclass(frozen=True)
class Cases:
    """What the examples of a set are called, and whose they are.

    Args:
        names: the name of each example, such as that of its file.
        patients: the patient of each example; empty if patients are not known, and each example then stands alone.
        subgroups: the subgroup of each example, such as its hospital; empty if there are none.
    """

    names: tuple[str, ...]
    patients: tuple[str, ...] = ()
    subgroups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, given in (("patient", self.patients), ("subgroup", self.subgroups)):
            if given and len(given) != len(self.names):
                raise ShapeMismatch(f"need one {what} for each name, got {len(given)} and {len(self.names)}")

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        patient: Callable[[str], str] | None,
        subgroup: Callable[[str], str] | None = None,
    ) -> "Cases":
        """Return the cases of these names, with the patients and the subgroups that functions give them."""
        labels = [() if function is None else tuple(map(function, names)) for function in (patient, subgroup)]
        return cls(tuple(names), *labels)


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (x, y) of an input and its target. An input is prepared when it is asked for.

    Args:
        inputs: the inputs.
        targets: their targets.
        preparation: how an input is prepared.
        cases: what the examples are called and whose they are, if that is known.
    """

    def __init__(
        self, inputs: Numbered, targets: Numbered, preparation: Preparation, cases: Cases | None = None
    ) -> None:
        self.inputs, self.targets, self.preparation, self.cases = inputs, targets, preparation, cases

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.preparation.standardise(self.inputs[index]), self.targets[index]

    def row_of(self, index: int) -> int:
        """Return the case that an example belongs to; here each example is a case."""
        return index

    def whole(self) -> "Examples":
        """Return the cases as a whole, one example for each; windows are parts of them."""
        return self


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
        remarks: what a user should know about the data before training, one sentence each.
    """

    name: str
    train: Examples
    validation: Examples
    test: Examples
    preparation: Preparation
    shifted: Mapping[str, Examples] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def usual_model(self) -> str:
        """The name of the model that is usual for such data: unet for pixels, small_cnn for other images, else mlp.

        For volumes it is monai:UNet for pixels, and encoder3d for classes.
        """
        if self.preparation.size is None:
            return "mlp"
        flat = len(self.preparation.size) == 2
        if self.preparation.kind == "pixels":
            return "unet" if flat else "monai:UNet"
        return "small_cnn" if flat else "encoder3d"

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
    patients: Mapping[str, Sequence[str]] | None = None,
    subgroups: Mapping[str, Sequence[str]] | None = None,
    volumes: bool = False,
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
        patients: the patient of each example of each given set. No patient is then in two sets.
        subgroups: the subgroup of each example of each given set.
        volumes: whether inputs of four axes are volumes (N, D, H, W).
    """
    y = sets["train"][1]
    groups = class_values(y, path) if kind == "classes" and y.ndim == 1 else [0] * len(y)
    lengths = {name: len(x) for name, (x, _) in sets.items()}
    rows, cases = divided_rows(lengths, groups, seed, path, patients, subgroups)
    chosen = {name: [part[rows[name]] for part in sets.get(name, sets["train"])] for name in rows}
    inputs = {name: as_inputs(x, f"the {name} inputs of {path}", volumes) for name, (x, _) in chosen.items()}
    size = tuple(inputs["train"].shape[2:]) or None
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
    return source_of(path, inputs, targets.sets, plan, cases)


def divided_rows(
    lengths: Mapping[str, int],
    groups: Sequence[Hashable],
    seed: int,
    path: Path,
    patients: Mapping[str, Sequence[str]] | None,
    subgroups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[dict[str, list[int]], dict[str, Cases]]:
    """Divide the rows of arrays into three sets.

    Args:
        lengths: how many rows each given set has.
        groups: the group of each row of "train", from which examples are drawn evenly.
        seed: decides which rows are drawn.
        path: the file of the arrays, for errors.
        patients: the patient of each row of each given set.
        subgroups: the subgroup of each row of each given set.

    Returns:
        The rows of each set, and what they are called: the number of a row in its array.
    """
    pairs = {name: [(name, row) for row in range(count)] for name, count in lengths.items()}
    whose = None if patients is None else (lambda pair: patients[pair[0]][pair[1]])
    sets = complete(pairs, lambda pair: groups[pair[1]] if pair[0] == "train" else 0, seed, path, whose)

    def labels(given: Mapping[str, Sequence[str]] | None, part: Sequence[tuple[str, int]]) -> tuple[str, ...]:
        return () if given is None else tuple(given[name][row] for name, row in part)

    cases = {
        name: Cases(tuple(str(row) for _, row in part), labels(patients, part), labels(subgroups, part))
        for name, part in sets.items()
    }
    return {name: [row for _, row in part] for name, part in sets.items()}, cases


def source_of(
    path: Path,
    inputs: Mapping[str, Numbered],
    targets: Mapping[str, Numbered],
    plan: Preparation,
    cases: Mapping[str, Cases] | None = None,
    remarks: Sequence[str] = (),
) -> Source:
    """Put inputs and targets together as a source.

    Args:
        path: the folder or file that the data come from. The source has its name.
        inputs: the inputs of each of the three sets.
        targets: the targets of each of the three sets.
        plan: how the inputs and targets were prepared.
        cases: what the examples of each set are called, and whose they are.
        remarks: what a user should know about the data.
    """
    known = cases or {}
    sets = {name: Examples(inputs[name], targets[name], plan, known.get(name)) for name in SPLITS}
    full_path = path.resolve()
    name = full_path.name if full_path.is_dir() else full_path.stem
    everyone = [patient for of_set in known.values() for patient in of_set.patients]
    one_each = one_case_each(everyone) if everyone else None
    told = (*remarks, *([one_each] if one_each else ()))
    return Source(name, sets["train"], sets["validation"], sets["test"], plan, remarks=told)
