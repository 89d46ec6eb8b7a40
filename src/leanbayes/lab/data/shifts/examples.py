"""Shifted sets of examples: a set changed, and classes held out of training."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.source import Examples, Numbered, Source

__all__ = ["HeldOut", "hold_out", "shift"]

_ROWS = 1024  # at a time


class HeldOut(NamedTuple):
    """A source without some classes, and the test examples of these, which nothing was trained on."""

    known: Source
    unseen: Examples


def hold_out(source: Source, classes: Iterable[str | int]) -> HeldOut:
    """Leave classes out of a source, to be out-of-distribution data.

    For a task: ``dataclasses.replace(known.task(), shifted={"unseen": unseen})``. The classes left are numbered anew in
    their order, and inputs are standardised with the mean and deviation of their training examples alone. The unseen
    are numbered after them, in the order given.

    Args:
        source: of images or features, each of one class.
        classes: names of classes in ``source.preparation.classes``; a number stands for the class of that name.
    """
    plan = source.preparation
    if plan.kind != "classes":
        raise InputError(f"{source.name} predicts {plan.kind}: there are no classes of examples to hold out")
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
    train, validation, test = (_chosen(some, numbers, plan) for some in (source.train, source.validation, source.test))
    later = {source.preparation.classes.index(name): len(left) + place for place, name in enumerate(out)}
    return HeldOut(Source(source.name, train, validation, test, plan), _chosen(source.test, later, plan))


def shift(examples: Examples, change: Callable[[Tensor], Tensor]) -> Examples:
    """The same examples with other inputs: ``change`` gets all images in [0, 1], before they are standardised.

    Examples: ``shift(source.test, partial(corrupt, name="fog", severity=3))``, ``shift(source.test, lambda x: rotate(x,
    45))``.
    """
    inputs = examples.inputs
    images = inputs if isinstance(inputs, Tensor) else torch.stack([inputs[place] for place in range(len(inputs))])
    changed = change(images.float() / 255 if images.dtype == torch.uint8 else images)
    if not isinstance(changed, Tensor) or changed.shape != images.shape:
        got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise ShapeMismatch(f"the change must give images of shape {tuple(images.shape)} again, got {got}")
    return Examples(changed, examples.targets, examples.preparation)


class _Chosen:
    """Some of numbered tensors."""

    def __init__(self, of: Numbered, places: Sequence[int]) -> None:
        self.of, self.places = of, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: int, /) -> Tensor:
        return self.of[self.places[place]]


def _chosen(examples: Examples, numbers: dict[int, int], plan: Preparation) -> Examples:
    """The examples whose class has a new number, under that."""
    labels = [int(examples.targets[place]) for place in range(len(examples))]
    places = [place for place, label in enumerate(labels) if label in numbers]
    if not places:
        raise InputError("a set has no example of the classes that it needs; choose others to hold out")
    return Examples(_Chosen(examples.inputs, places), torch.tensor([numbers[labels[p]] for p in places]), plan)


def _statistics(inputs: Numbered) -> tuple[tuple[float, ...], tuple[float, ...]]:
    starts = range(0, len(inputs), _ROWS)
    return statistics(
        torch.stack([inputs[place] for place in range(start, min(start + _ROWS, len(inputs)))]) for start in starts
    )
