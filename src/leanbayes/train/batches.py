"""The batches of a training: how many there are, how many examples, and in which order they come.

The batches of an epoch are a function of the seed and the number of the epoch. `stream` gives every sampler generators
of that seed, and lets the code of the data draw from random states of its own. So the random numbers that a model uses
do not shift those of the data, and a training that is resumed reads the batches that it would have read.
"""

import hashlib
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing, contextmanager, nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from leanbayes._arrays import is_array, numbers_of
from leanbayes._calls import batch_size, map_leaves
from leanbayes._files import checksum, tensor_checksum
from leanbayes.errors import InputError
from leanbayes.train.data import Reading
from leanbayes.train.fingerprint import described
from leanbayes.train.random_states import RandomStates, seed_all

__all__ = [
    "batch_checksum",
    "batches_after",
    "describe_data",
    "endless",
    "mix",
    "number_of_batches",
    "number_of_examples",
    "one_order",
    "order_checksum",
    "ordered",
    "refuse_unrepeatable",
    "stream",
]

_MOST_BYTES = 2**30  # of a data set in memory that are read for its checksum, at about 1 GB a second
_QUIET_SAMPLERS = (BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
_NEW: dict[type, Callable[[int], Any]] = {
    torch.Generator: lambda seed: torch.Generator().manual_seed(seed),
    random.Random: random.Random,
    np.random.Generator: np.random.default_rng,
    np.random.RandomState: lambda seed: np.random.RandomState(seed % 2**32),
}


def mix(*parts: object) -> int:
    """Return a seed that depends on all parts. Sums of seeds would give equal seeds for different parts.

    >>> mix(0, "noise", 1) == mix(0, "noise", 1), mix(0, 1) == mix(1, 0)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


def stream(loader: Iterable[Any], whole: Iterable[Any], seed: int, epoch: int, process: int = 0) -> Generator[Any]:
    """Yield the batches of an epoch, which are a function of seed and epoch alone.

    Args:
        loader: the batches, or the part of them that this process takes.
        whole: the batches as the user gave them.
        seed: the seed of the training.
        epoch: the number of the epoch.
        process: the number of this process. Processes read other examples and draw other augmentations. Only of an
            iterable data set all processes read everything, so it must give all of them the same.
    """
    if isinstance(whole, DataLoader) and isinstance(whole.dataset, IterableDataset):
        process = 0
    states = _OwnStates(mix(seed, "data", epoch, process))
    with ordered(whole, mix(seed, "order", epoch), epoch):
        if loader is not whole and isinstance(loader, DataLoader):
            for sampler in _samplers(loader):
                if isinstance(sampler, _OneOrder):
                    sampler.seed = mix(seed, "sampler", epoch)
            if hasattr(loader, "set_epoch"):  # accelerate's counts the epochs of this process, not of the training
                loader.set_epoch(epoch)
        with states.in_force():
            source = iter(loader)
        quiet = _draws_nothing(whole)
        while True:
            with nullcontext() if quiet else states.in_force():
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch


def endless(
    loader: Iterable[Any], whole: Iterable[Any], seed: int, number: int, read: int, process: int = 0
) -> Generator[tuple[int, Any]]:
    """Yield the batches of pass after pass over the data, each with the number of its pass.

    Args:
        loader: the batches, or the part of them that this process takes.
        whole: the batches as the user gave them.
        seed: the seed of the training.
        number: the pass to begin with.
        read: how many batches of this pass were used before.
        process: the number of this process.
    """
    while True:
        last = -1
        with closing(stream(loader, whole, seed, number, process)) as source:
            for last, batch in enumerate(source):
                if last >= read:
                    yield number, batch
        if last < 0:
            raise InputError(
                f"the training data gave no batch in pass {number} over them; an iterator that is used up? Give an "
                "iterable that begins anew, such as a DataLoader, or fewer steps_per_epoch"
            )
        number, read = number + 1, 0


class _OwnStates:
    """Global random states that are in force only while the code of the data runs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.states: RandomStates | None = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        before = RandomStates.capture()
        if self.states is None:
            seed_all(self.seed)
        else:
            self.states.restore()
        try:
            yield
        finally:
            self.states = RandomStates.capture()
            before.restore()


class _OneOrder(Sampler[Any]):
    """A sampler whose code draws from global random states of its own, which are alike in all processes."""

    def __init__(self, order: Any) -> None:
        self.order, self.seed, self.checksum = order, 0, ""
        self.batch_size = getattr(order, "batch_size", None)  # accelerate asks for it

    def __iter__(self) -> Iterator[Any]:
        states, self.checksum = _OwnStates(self.seed), ""
        with states.in_force():
            source = iter(self.order)
        while True:
            with states.in_force():
                try:
                    indices = next(source)
                except StopIteration:
                    return
            self.checksum = checksum(f"{self.checksum} {indices}".encode())
            yield indices

    def __len__(self) -> int:
        return len(self.order)


def one_order(part: Iterable[Any], whole: DataLoader[Any]) -> None:
    """Let the samplers of several processes draw the same order, of which each process takes a part.

    A sampler of torch gets a generator of one seed from `ordered`. A sampler of the user may draw from the global
    random states, which are not alike in all processes, because augmentations must differ. Here it gets states of its
    own.

    Args:
        part: the loader of this process, whose sampler holds that of ``whole``.
        whole: the loader of the user.

    Raises:
        InputError: the loader has a sampler that takes a part for each process itself.
    """
    samplers = _samplers(whole)
    for sampler in samplers:
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            raise InputError(
                "fit gives each process its share of every batch, and the DistributedSampler of this loader would give "
                "it a share of that share, so that examples are left out; give the loader a plain sampler, or "
                "shuffle=True"
            )
    order = whole.batch_sampler
    quiet = all(type(sampler) in _QUIET_SAMPLERS for sampler in samplers)
    if not isinstance(part, DataLoader) or order is None or quiet:
        return
    for holder in _samplers(part):
        for name, value in list(vars(holder).items()):
            if value is order:
                setattr(holder, name, _OneOrder(order))


def order_checksum(part: Iterable[Any]) -> int | None:
    """Return a number below 2¹⁶ that depends on the order of the batches so far, or None if it is surely alike."""
    samplers = _samplers(part) if isinstance(part, DataLoader) else []
    sums = [sampler.checksum for sampler in samplers if isinstance(sampler, _OneOrder)]
    return int(sums[0][:4], 16) if sums and sums[0] else None


def _draws_nothing(data: Iterable[Any]) -> bool:
    """Whether it is known that reading a batch draws from no global random state, so that none need be exchanged."""
    if type(data) in (list, tuple):
        return True
    if type(data) is not DataLoader or data.collate_fn is not default_collate:
        return False
    examples: Any = data.dataset
    while type(examples) is Subset:
        examples = examples.dataset
    return type(examples) is TensorDataset and all(type(sampler) in _QUIET_SAMPLERS for sampler in _samplers(data))


@contextmanager
def ordered(loader: Iterable[Any], seed: int, epoch: int = 0) -> Iterator[None]:
    """Give a DataLoader and its samplers generators of this seed, and put their own generators back after.

    Each of them gets its own generator, so that what the loader draws for its workers does not shift the order.
    Samplers within samplers get one, too, and so do attributes with other names, such as ``rng``. A sampler that takes
    the number of the epoch by ``set_epoch`` gets it.
    """
    if not isinstance(loader, DataLoader):
        yield
        return
    before: list[tuple[Any, str, Any]] = []
    epochs: list[tuple[Any, Any]] = []
    for holder in (loader, *_samplers(loader)):
        for name, value in vars(holder).items():
            kind = torch.Generator if name == "generator" and value is None else type(value)
            if kind in _NEW:
                before.append((holder, name, value))
        if callable(getattr(holder, "set_epoch", None)):
            epochs.append((holder, getattr(holder, "epoch", None)))
    for holder, name, value in before:
        setattr(holder, name, _NEW[torch.Generator if value is None else type(value)](seed))
    for holder, _ in epochs:
        holder.set_epoch(epoch)
    try:
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)
        for holder, number in epochs:
            if isinstance(number, int):
                holder.set_epoch(number)


def _samplers(loader: DataLoader[Any]) -> list[Any]:
    """Return the samplers of a loader and the samplers within them."""
    waiting: list[Any] = [loader.sampler, loader.batch_sampler]
    known: dict[int, Any] = {}
    while waiting:
        sampler = waiting.pop(0)
        if sampler is None or id(sampler) in known or not hasattr(sampler, "__dict__"):
            continue
        known[id(sampler)] = sampler
        inner = list(vars(sampler).values())
        waiting += [item for item in inner if isinstance(item, Sampler)]
        for group in inner:
            if isinstance(group, list | tuple) and group and isinstance(group[0], Sampler):
                waiting += group
    return list(known.values())


def refuse_unrepeatable(loader: Iterable[Any]) -> None:
    """Raise an error for batches that another process cannot read again in the same order."""
    if isinstance(loader, DataLoader) and loader.persistent_workers:
        raise InputError(
            "a checkpoint promises the same weights bit for bit, and workers that live on from epoch to epoch keep "
            "random states that no checkpoint holds; give a DataLoader with persistent_workers=False, or allow another "
            "result after a kill: Checkpointing(..., exact=False)"
        )
    if not _has_length(loader):
        raise InputError(
            f"a checkpoint promises the same weights bit for bit, and a stream (a {type(loader).__name__} without a "
            "length) may give other batches when it is read again; give data with a length, or allow another result "
            "after a kill: Checkpointing(..., exact=False)"
        )


def describe_data(loader: Iterable[Any], seed: int, what: str) -> dict[str, Any]:
    """Describe batches by their number, their samplers and the first batch, which is read for this purpose.

    Of data that lie in memory, all numbers count. Others, such as images in files, would have to be read as a whole.
    """
    description: dict[str, Any] = {"batches": _length(loader)}
    if isinstance(loader, DataLoader):
        description |= {
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "workers": loader.num_workers,  # each of them draws its own augmentations
            "sampler": described(loader.sampler),
            "batch_sampler": None if loader.batch_size is not None else described(loader.batch_sampler),
            "numbers": _checksum_of_tensors(loader.dataset),
        }
    elif isinstance(loader, list | tuple):
        description["numbers"] = checksum(" ".join(batch_checksum(batch)["checksum"] for batch in loader).encode())
    with closing(stream(loader, loader, seed, 0)) as source:
        first = next(source, None)
    if first is None:
        raise InputError(f"the {what} is empty; give at least one batch")
    return description | {"first batch": batch_checksum(first)}


def _checksum_of_tensors(data: Any) -> str | None:
    """Return a checksum of a data set that consists of tensors, or of a subset of one; None for other data sets.

    Of more than `_MOST_BYTES`, evenly spaced examples count.
    """
    if isinstance(data, Subset):
        inner = _checksum_of_tensors(data.dataset)
        return None if inner is None else checksum(f"{inner} {list(data.indices)}".encode())
    if type(data) is not TensorDataset:
        return None
    size = sum(values.numel() * values.element_size() for values in data.tensors)
    stride = max(1, -(-size // _MOST_BYTES))
    return checksum(" ".join(tensor_checksum(values[::stride]) for values in data.tensors).encode())


def batch_checksum(batch: Any) -> dict[str, Any]:
    """Return the shapes of the tensors and arrays in a batch and a checksum of their numbers."""
    shapes: list[list[int]] = []
    sums: list[str] = []

    def add(leaf: Any) -> None:
        if is_array(leaf):
            try:
                leaf = numbers_of(leaf)
            except InputError:  # words, which nobody trains on
                return
        if isinstance(leaf, Tensor):
            shapes.append(list(leaf.shape))
            sums.append(tensor_checksum(leaf))

    map_leaves(add, batch)
    return {"shapes": shapes, "checksum": checksum(" ".join(sums).encode())}


def number_of_batches(batches: Iterable[Any], steps_per_epoch: int | None = None) -> int:
    """Return how many batches an epoch has; it must be known before the first epoch ends."""
    length = _length(batches)
    if length == 0:
        raise InputError("there are no training batches; check the data set and the batch size")
    if steps_per_epoch is not None:
        return steps_per_epoch
    if length is None:
        raise InputError(
            f"the training data must have a length, so that fit knows when an epoch ends; got a "
            f"{type(batches).__name__}. Give a DataLoader or a list of batches, or say how many batches make an epoch: "
            "steps_per_epoch="
        )
    return length


def number_of_examples(batches: Iterable[Any], reading: Reading | None = None) -> int:
    """Return how many examples the training set has."""
    examples = _length(batches.dataset) if isinstance(batches, DataLoader) else None
    if examples is not None:
        return examples
    if isinstance(batches, DataLoader) or not _has_length(batches):
        raise InputError(
            "fit cannot count the examples of a stream, and the KL is divided by their number; say how many there are: "
            "n_data="
        )
    read = reading or Reading()
    return sum(batch_size(read(batch)[0]) for batch in batches)


def _length(data: Any) -> int | None:
    """Return the length of data, or None if they have none; a DataLoader over a stream only looks as if it had one."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        return None


def _has_length(data: Any) -> bool:
    return _length(data) is not None


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
