"""The batches of a training: how many there are, how many examples, and in which order they come."""

import hashlib
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from leanbayes._calls import batch_size, split_batch
from leanbayes.errors import InputError

__all__ = ["mix", "number_of_batches", "number_of_examples", "ordered"]


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
