"""From what users have to batches of tensors: whole arrays become batches, and batches become inputs and targets."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes._arrays import dtype_of, is_array, is_whole, numbers_of, tensors_of
from leanbayes._calls import Split, map_tensors, require_pair, split_batch
from leanbayes.errors import InputError

__all__ = ["Arrays", "Reading", "as_batches"]


@dataclass(frozen=True, eq=False)
class Arrays:
    """A whole data set in memory, which `fit` cuts into batches.

    `fit` takes this record where it takes batches, and a tuple ``(x, y)`` is a shorthand for ``Arrays(x, y)``.
    Fractions of NumPy and pandas get the floating type of the model, and whole numbers become int64.

    Args:
        x: the inputs, one example in each row: a NumPy array, a pandas frame or a tensor.
        y: the targets, as many as there are inputs: a NumPy array, a pandas column or frame, or a tensor.
        batch_size: how many examples each batch has.
        shuffle: whether each epoch has another order, which depends on the seed of `fit`.

    >>> import numpy as np
    >>> len(Arrays(np.zeros((100, 3)), np.zeros(100), batch_size=25).loader(torch.float32))
    4
    """

    x: Any
    y: Any
    batch_size: int = 32
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, value in (("x", self.x), ("y", self.y)):
            if not isinstance(value, Tensor) and not is_array(value):
                kind = type(value).__name__
                raise InputError(f"{name} must be a NumPy array, a pandas frame or a tensor, got a {kind}")
            if not len(value.shape):
                raise InputError(f"{name} is a single number; its first axis must be the examples")
        if self.x.shape[0] != self.y.shape[0]:
            raise InputError(
                f"x and y need one row for each example, got {self.x.shape[0]} inputs and {self.y.shape[0]} targets"
            )
        if not self.x.shape[0]:
            raise InputError("there are no examples: x and y have no rows")
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InputError(f"batch_size must be a whole number of at least 1, got {self.batch_size!r}")

    def loader(self, dtype: torch.dtype) -> DataLoader[Any]:
        """Return the batches as tensors, whose fractions have this type."""
        parts = [value if isinstance(value, Tensor) else numbers_of(value, dtype) for value in (self.x, self.y)]
        return DataLoader(TensorDataset(*parts), self.batch_size, shuffle=self.shuffle)


@dataclass(frozen=True)
class Reading:
    """How a batch becomes inputs and targets.

    Attributes:
        split: returns the pair (inputs, targets) of a batch.
        dtype: the type that the fractions of NumPy and pandas get.
    """

    split: Split = split_batch
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, batch: Split | None, model: nn.Module) -> "Reading":
        """Return how batches are read for this model; ``batch`` splits them, or None for the usual way."""
        if batch is not None and not callable(batch):
            raise InputError(
                f"batch must be a function that returns (inputs, targets), got {batch!r}; for the number of examples "
                "in a batch give lb.train.Arrays(x, y, batch_size=64)"
            )
        return cls(split_batch if batch is None else batch, dtype_of(model))

    def __call__(self, batch: Any, device: torch.device | None = None) -> tuple[Any, Any]:
        """Return the inputs and targets of a batch as tensors on the device, or where they are without one."""
        pair = tensors_of(require_pair(self.split(batch)), self.dtype)
        x, y = pair if device is None else map_tensors(lambda leaf: leaf.to(device), pair)
        return x, y


def as_batches(data: Any, reading: Reading, *, name: str = "train", like: Any = None) -> Iterable[Any]:
    """Return the batches of data that a user gave: whole arrays are cut, and everything else stays as it is.

    Args:
        data: batches, an `Arrays`, or a pair of arrays as long as no function splits batches.
        reading: how batches are read.
        name: the name of the argument, for errors.
        like: the training data, if these are validation data; they are cut into batches of the same size.
    """
    if isinstance(data, Arrays) or (reading.split is split_batch and is_whole(data)):
        if reading.split is not split_batch:
            raise InputError(f"{name} holds whole arrays, whose batches are pairs already; leave out batch=")
        arrays = data if isinstance(data, Arrays) else Arrays(*data)
        if like is not None and not isinstance(data, Arrays):
            arrays = replace(arrays, batch_size=getattr(like, "batch_size", None) or arrays.batch_size, shuffle=False)
        return arrays.loader(reading.dtype)
    if isinstance(data, Tensor | str) or is_array(data) or not isinstance(data, Iterable):
        kind = type(data).__name__
        raise InputError(
            f"{name} must be batches, such as a DataLoader, or a pair (inputs, targets) of arrays; got a {kind}"
        )
    return data
