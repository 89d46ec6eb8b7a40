"""The batches of a training: how many there are, how many examples, and in which order they come."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from leanbayes._calls import batch_size, split_batch
from leanbayes.errors import InputError

__all__ = ["batches_after", "mix", "number_of_batches", "number_of_examples", "ordered"]


def mix(*parts: object) -> int:
    """Return a seed that depends on all parts. Sums of seeds would give equal seeds for different parts.

    >>> mix(0, "noise", 1) == mix(0, "noise", 1), mix(0, 1) == mix(1, 0)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


@contextmanager
def ordered(loader: Iterable[Any], seed: int) -> Iterator[None]:
    """Give a DataLoader and its samplers generators of this seed, and put their own generators back after.

    Each of them gets its own generator, so that what the loader draws for its workers does not shift the order.
    """
    if not isinstance(loader, DataLoader):
        yield
        return
    sources: list[Any] = [loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
    holders = {id(source): source for source in sources if hasattr(source, "generator")}.values()
    before = [holder.generator for holder in holders]
    for holder in holders:
        holder.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        for holder, generator in zip(holders, before, strict=True):
            holder.generator = generator


def number_of_batches(batches: Iterable[Any]) -> int:
    """Return how many batches an epoch has; it must be known before the first epoch ends."""
    if not isinstance(batches, Sized):
        raise InputError(
            f"the training data must have a length, so that fit knows when an epoch ends; got a "
            f"{type(batches).__name__}. Give a DataLoader or a list of batches"
        )
    if not len(batches):
        raise InputError("there are no training batches; check the data set and the batch size")
    return len(batches)


def number_of_examples(batches: Iterable[Any]) -> int:
    """Return how many examples the training set has."""
    if isinstance(batches, DataLoader):
        return len(batches.dataset)  # type: ignore[arg-type]
    return sum(batch_size(split_batch(batch)[0]) for batch in batches)


def batches_after(batches: Iterable[Any], position: int, count: int, length: int) -> list[Any]:
    """Return the ``count`` batches that follow the batch at ``position`` in an epoch; after the last comes the first.

    The caller sets the seeds that the epoch began with, so that a loader that shuffles has the order of the epoch. Of a
    DataLoader over a data set with indices only the wanted examples are read, in this process. Its workers and the
    iteration that is under way do not notice. Other iterables are iterated over again, from their beginning.

    Args:
        batches: the batches of the training.
        position: where in the epoch the present batch is, from 0.
        count: how many batches are wanted.
        length: how many batches an epoch has.

    >>> batches_after(["a", "b", "c"], 1, 3, 3)
    ['c', 'a', 'b']
    """
    positions = [(position + offset) % length for offset in range(1, count + 1)]
    if isinstance(batches, Sequence):
        return [batches[chosen] for chosen in positions]
    if isinstance(batches, DataLoader) and not isinstance(batches.dataset, IterableDataset):
        whole = batches.batch_sampler is not None
        sampler: Any = batches.batch_sampler if whole else batches.sampler
        indices = _chosen(sampler, positions)
        return [_read(batches, chosen, whole) for chosen in indices]
    if getattr(batches, "persistent_workers", False):
        raise InputError(
            "to choose weights by several draws, fit reads further batches, and the persistent workers of this loader "
            'would lose the epoch that is under way; set persistent_workers=False, or Rewire(addition="draw")'
        )
    return _chosen(batches, positions)


def _chosen(values: Iterable[Any], positions: Sequence[int]) -> list[Any]:
    """Return the values at these positions of an iterable, in the order of the positions."""
    wanted = set(positions)
    by_position = {index: value for index, value in enumerate(islice(values, max(wanted) + 1)) if index in wanted}
    if len(by_position) < len(wanted):
        raise InputError(
            f"the training data ended after fewer than {max(wanted) + 1} batches, although their length promises more; "
            "check len() of the loader or of its sampler"
        )
    return [by_position[position] for position in positions]


def _read(loader: DataLoader[Any], index: Any, whole: bool) -> Any:
    """Return the examples with these indices as the loader collates them."""
    data: Any = loader.dataset
    if not whole:
        return loader.collate_fn(data[index])
    together = getattr(data, "__getitems__", None)
    return loader.collate_fn([data[one] for one in index] if together is None else together(index))
