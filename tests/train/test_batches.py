"""The order of the batches comes from the seed alone, and the loaders keep their own generators."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from leanbayes.errors import InputError
from leanbayes.train.batches import batches_after, number_of_batches, number_of_examples, ordered

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
