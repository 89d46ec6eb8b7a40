"""Blocks of output channels against plain sets of positions."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leanbayes._ops.sparse_block_plan import in_blocks
from leanbayes.subspace.blocks import Blocks, fitting_block


@settings(max_examples=80, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    bands=st.integers(1, 3),
    size=st.integers(1, 5),
    rest=st.lists(st.integers(1, 4), max_size=3),
    seed=st.integers(0, 2**31),
)
def test_numbers_places_positions_and_sums(bands: int, size: int, rest: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    shape = (bands * size, *rest)
    blocks = Blocks(shape, size)
    number_of_each = torch.arange(bands * size).div(size, rounding_mode="floor")[:, None] * blocks.columns
    number_of_each = (number_of_each + torch.arange(blocks.columns)).flatten()
    assert blocks.count == int(number_of_each.max()) + 1
    chosen = torch.randperm(blocks.count)[: 1 + seed % blocks.count].int()
    index = blocks.positions(chosen)
    expected = torch.isin(number_of_each, chosen).nonzero().squeeze(1)
    assert index.tolist() == expected.tolist()
    assert index.dtype == torch.int32
    assert in_blocks(index, shape, size)
    assert blocks.numbers(index).tolist() == number_of_each[index.long()].tolist()
    places = blocks.places(index)
    assert places.shape == (len(chosen), size)
    assert [set(index[row].tolist()) for row in places] == [
        set((number_of_each == number).nonzero().squeeze(1).tolist()) for number in sorted(chosen.tolist())
    ]
    dense = torch.randn(shape, dtype=torch.float64)
    sums = torch.zeros(blocks.count, dtype=torch.float64).index_add(0, number_of_each, dense.flatten())
    torch.testing.assert_close(blocks.sums(dense), sums)


@pytest.mark.parametrize("outputs", range(1, 70))
@pytest.mark.parametrize("block", [1, 2, 8, 12, 16, 32])
def test_the_blocks_of_a_layer_divide_its_outputs(outputs: int, block: int) -> None:
    size = fitting_block(outputs, block)
    assert outputs % size == 0
    assert 1 <= size <= block
    larger = [n for n in range(size + 1, block + 1) if outputs % n == 0]
    assert not larger or (size % 8 == 0 and block not in larger and not any(n % 8 == 0 for n in larger))
