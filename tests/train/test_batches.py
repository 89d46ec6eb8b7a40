"""The order of the batches comes from the seed alone, and the loaders keep their own generators."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from leanbayes.errors import InputError
from leanbayes.train.batches import (
    batches_after,
    number_of_batches,
    number_of_examples,
    one_order,
    order_checksum,
    ordered,
    stream,
)

DATA = TensorDataset(torch.arange(12.0), torch.arange(12.0))


def loaders() -> dict[str, DataLoader]:
    weights = torch.arange(1.0, 13.0)
    return {
        "shuffle": DataLoader(DATA, batch_size=4, shuffle=True),
        "generator": DataLoader(DATA, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)),
        "weighted": DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler(weights, 12)),
        "batches": DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, drop_last=False)),
    }


def order(loader: DataLoader) -> list[float]:
    return torch.cat([x for x, _ in loader]).tolist()


@pytest.mark.parametrize("kind", list(loaders()))
def test_the_seed_decides_and_generators_stay(kind: str) -> None:
    loader = loaders()[kind]
    holders = [h for h in (loader, loader.sampler, loader.batch_sampler.sampler) if hasattr(h, "generator")]
    before = [holder.generator for holder in holders]
    states = [None if generator is None else generator.get_state() for generator in before]
    orders = []
    for seed, state in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(state)
        with ordered(loader, seed):
            orders.append(order(loader))
    assert orders[0] == orders[1] != orders[2]
    for holder, generator, state in zip(holders, before, states, strict=True):
        assert holder.generator is generator
        assert generator is None or torch.equal(generator.get_state(), state)


def test_a_list_stays_as_it_is() -> None:
    with ordered([1, 2], 0):
        pass


def test_numbers_of_batches_and_examples() -> None:
    loader = loaders()["shuffle"]
    batches = [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(2, 2), torch.zeros(2))]
    assert (number_of_batches(loader), number_of_examples(loader)) == (3, 12)
    assert (number_of_batches(batches), number_of_examples(batches)) == (2, 5)
    with pytest.raises(InputError, match=r"must have a length.*got a list_iterator"):
        number_of_batches(iter(batches))
    with pytest.raises(InputError, match="no training batches"):
        number_of_batches([])


@pytest.mark.parametrize("kind", list(loaders()))
def test_further_batches_are_those_that_follow_in_the_epoch(kind: str) -> None:
    loader = loaders()[kind]
    with ordered(loader, 5):
        epoch = [x.tolist() for x, _ in loader]
    for position in range(3):
        with ordered(loader, 5):
            further = [x.tolist() for x, _ in batches_after(loader, position, 4, 3)]
        assert further == [epoch[(position + offset) % 3] for offset in range(1, 5)]


def test_further_batches_of_other_data() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(6))

    single = DataLoader(DATA, batch_size=None, sampler=range(12))
    assert [x.item() for x, _ in batches_after(single, 10, 2, 12)] == [11.0, 0.0]
    streamed = DataLoader(Stream(), batch_size=2)
    assert [x.tolist() for x in batches_after(streamed, 0, 3, 3)] == [[2, 3], [4, 5], [0, 1]]
    with pytest.raises(InputError, match="persistent_workers=False"):
        batches_after(DataLoader(Stream(), 2, num_workers=1, persistent_workers=True), 0, 1, 3)
    with pytest.raises(InputError, match="fewer than 4 batches"):
        batches_after(streamed, 2, 1, 4)


class Shuffled(Sampler[int]):
    """A sampler of a user, which draws from one of the global random states, or from one that nobody can seed."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        order = list(range(12))
        if self.source == "torch":
            order = torch.randperm(12).tolist()
        elif self.source == "numpy":
            np.random.shuffle(order)  # noqa: NPY002
        else:
            (random if self.source == "python" else random.SystemRandom()).shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return 12


class Noisy(TensorDataset):
    """Draws from all global random states for each example, as augmentations do."""

    def __getitem__(self, index: Any) -> Any:
        torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
        return (*super().__getitem__(index), torch.rand(()))


def parts_of(loader: DataLoader) -> list[DataLoader]:
    """The loaders of two processes, which accelerate makes in this way."""
    shards = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    parts = []
    for process in range(2):
        shard = shards(loader.batch_sampler, 2, process, split_batches=True)
        parts.append(DataLoader(loader.dataset, batch_sampler=shard))
        one_order(parts[-1], loader)
    return parts


@pytest.mark.parametrize("source", ["torch", "numpy", "python"])
def test_two_processes_take_parts_of_one_order(source: str) -> None:
    """Before, each process drew an order of its own: some examples were used twice, and others not at all."""
    loader = DataLoader(Noisy(*DATA.tensors), batch_size=4, sampler=Shuffled(source))
    parts = parts_of(loader)
    epochs = []
    for epoch in (0, 1, 1):
        read = [list(stream(part, loader, 3, epoch, process)) for process, part in enumerate(parts)]
        whole = [torch.cat([one[0], two[0]]).tolist() for one, two in zip(*read, strict=True)]
        assert sorted(index for batch in whole for index in batch) == list(range(12))
        assert not torch.equal(read[0][0][2], read[1][0][2])  # augmentations differ
        assert order_checksum(parts[0]) == order_checksum(parts[1]) is not None
        epochs.append(whole)
    assert epochs[0] != epochs[1] == epochs[2]
    further = [batches_after(part, 0, 2, 3) for part in parts]
    assert [torch.cat([one[0], two[0]]).tolist() for one, two in zip(*further, strict=True)] == epochs[2][1:]


def test_orders_that_cannot_be_alike_have_other_checksums() -> None:
    loader = DataLoader(DATA, batch_size=4, sampler=Shuffled("system"))
    parts = parts_of(loader)
    for process, part in enumerate(parts):
        list(stream(part, loader, 3, 0, process))
    assert order_checksum(parts[0]) != order_checksum(parts[1])


def test_samplers_of_torch_stay_as_they_are() -> None:
    for loader in loaders().values():
        parts = parts_of(loader)
        assert parts[0].batch_sampler.batch_sampler is loader.batch_sampler
        assert order_checksum(parts[0]) is None
        read = [list(stream(part, loader, 3, 1, process)) for process, part in enumerate(parts)]
        together = [torch.cat([one[0], two[0]]).tolist() for one, two in zip(*read, strict=True)]
        assert together == [batch[0].tolist() for batch in stream(loader, loader, 3, 1)]


def test_a_sampler_that_takes_a_share_itself_is_refused() -> None:
    """Before, each process had a share of its share, and half of the examples were never used."""
    loader = DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, num_replicas=2, rank=0))
    with pytest.raises(InputError, match="a share of that share"):
        parts_of(loader)


class Counting(IterableDataset):
    """Gives its numbers in an order from torch's global state."""

    def __iter__(self) -> Iterator[float]:
        return iter(torch.randperm(12).tolist())


def test_an_iterable_data_set_gives_all_processes_the_same() -> None:
    loader = DataLoader(Counting(), batch_size=4)
    one, two = (torch.cat(list(stream(loader, loader, 3, 0, process))).tolist() for process in range(2))
    assert one == two
