"""Sets of examples whose images are changed, and classes that are held out of training."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.source import Examples, Numbered, Source

__all__ = ["HeldOut", "hold_out", "shift"]

_ROWS_AT_A_TIME = 1024


class HeldOut(NamedTuple):
    """A source without the classes that were held out, and the test examples of those classes.

    Args:
        known: the source without these classes.
        unseen: their test examples.
    """

    known: Source
    unseen: Examples


def hold_out(source: Source, classes: Iterable[str | int]) -> HeldOut:
    """Hold classes out of a source, which then serve as out-of-distribution data.

    ``dataclasses.replace(known.task(), shifted={"unseen": unseen})`` makes a task of the result. The remaining classes
    get new indices in their old order, and the mean and deviation of their training examples standardise the inputs.
    The held-out classes get the indices after them, in the order of ``classes``.

    Args:
        source: images or features with one class each.
        classes: the names of the classes to hold out. A number stands for the class of that name.
    """
    plan = source.preparation
    if plan.kind != "classes":
        raise InputError(
            f"{source.name} predicts {plan.kind}: there are no classes of examples to hold out; give data with classes"
        )
    if isinstance(classes, str):
        raise InputError(f"give a list of classes to hold out, such as [{classes!r}]")
    out = list(dict.fromkeys(map(str, classes)))
    for name in out:
        if name not in plan.classes:
            raise UnknownName.of("class", name, plan.classes)
    left = tuple(name for name in plan.classes if name not in out)
    if not out or len(left) < 2:
        raise InputError(f"of {len(plan.classes)} classes, hold out at least one and leave at least two; got {out}")
    numbers = {plan.classes.index(name): new for new, name in enumerate(left)}
    mean, std = _statistics(_chosen(source.train, numbers, plan).inputs)
    plan = replace(plan, classes=left, mean=mean, std=std)
    train, validation, test = (_chosen(part, numbers, plan) for part in (source.train, source.validation, source.test))
    after = {source.preparation.classes.index(name): len(left) + number for number, name in enumerate(out)}
    return HeldOut(Source(source.name, train, validation, test, plan), _chosen(source.test, after, plan))


def shift(examples: Examples, change: Callable[[Tensor], Tensor]) -> Examples:
    """Return the same examples with changed images.

    For example, ``shift(source.test, partial(corrupt, name="fog", severity=3))`` adds fog, and
    ``shift(source.test, lambda x: rotate(x, 45))`` rotates.

    Args:
        examples: the examples.
        change: a function of all images (N, C, H, W) in [0, 1], before they are standardised, that returns images of
            the same shape.
    """
    inputs = examples.inputs
    images = inputs if isinstance(inputs, Tensor) else torch.stack([inputs[row] for row in range(len(inputs))])
    changed = change(images.float() / 255 if images.dtype == torch.uint8 else images)
    if not isinstance(changed, Tensor) or changed.shape != images.shape:
        got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise ShapeMismatch(f"the change must return images of shape {tuple(images.shape)} again, got {got}")
    return Examples(changed, examples.targets, examples.preparation)


class _Chosen:
    """The chosen rows of a sequence of tensors."""

    def __init__(self, tensors: Numbered, rows: Sequence[int]) -> None:
        self.tensors, self.rows = tensors, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> Tensor:
        return self.tensors[self.rows[index]]


def _chosen(examples: Examples, numbers: dict[int, int], plan: Preparation) -> Examples:
    """Return the examples whose class has a new index, with that index as their target."""
    labels = [int(examples.targets[row]) for row in range(len(examples))]
    rows = [row for row, label in enumerate(labels) if label in numbers]
    if not rows:
        raise InputError("a set has no example of the classes that it needs; choose others to hold out")
    return Examples(_Chosen(examples.inputs, rows), torch.tensor([numbers[labels[row]] for row in rows]), plan)


def _statistics(inputs: Numbered) -> tuple[tuple[float, ...], tuple[float, ...]]:
    starts = range(0, len(inputs), _ROWS_AT_A_TIME)
    return statistics(
        torch.stack([inputs[row] for row in range(start, min(start + _ROWS_AT_A_TIME, len(inputs)))])
        for start in starts
    )
