"""A task: the data that every method is trained, chosen and judged on, and how its outputs are read."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn
from torch.utils.data import Dataset

from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
    """What is to be learnt: three sets of pairs (x, y), a model for them, and how its outputs are read.

    Args:
        name: for tables.
        train: what methods learn from.
        validation: what they are chosen on (early stopping, temperatures), never the test set.
        test: what they are judged on.
        model: makes a new, untrained network; its initial weights come from torch's random state.
        likelihood: what its outputs mean.
        classes: names, in the order of the outputs; empty for regression.
        shifted: sets that the network has not been trained for, which it should be unsure of.
    """

    name: str
    train: Dataset[Any]
    validation: Dataset[Any]
    test: Dataset[Any]
    model: Callable[[], nn.Module]
    likelihood: Likelihood
    classes: tuple[str, ...] = ()
    shifted: Mapping[str, Dataset[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            if not length(getattr(self, name)):
                raise InputError(f"the {name} set of task {self.name!r} is empty")


def length(data: Dataset[Any]) -> int:
    """How many examples."""
    return len(cast(Sized, data))
