"""Which positions are in blocks, and what the plan of a walk over them says."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leanbayes._ops.sparse import _checked_geometry
from leanbayes._ops.sparse_block_plan import block_plan_of, in_blocks, kernel_block
from tests._ops.cases import block_pattern


def in_blocks_by_hand(index, shape, size, groups):
    """All weights of a block of outputs, at the same input and tap, are stored or none is."""
    if shape[0] % (groups * size):
        return False
    stored = torch.zeros(torch.Size(shape).numel(), dtype=torch.bool)
    stored[index] = True
    counts = stored.view(shape[0] // size, size, -1).sum(1)
    return bool(((counts == 0) | (counts == size)).all())


@settings(max_examples=200, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    bands=st.integers(1, 3), block=st.sampled_from([1, 2, 4, 6, 8]), size=st.sampled_from([1, 2, 3, 4, 8, 16]),
    groups=st.sampled_from([1, 2, 3]), density=st.sampled_from([0.0, 0.2, 0.6, 1.0]), spoilt=st.booleans(),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_in_blocks_says_what_counting_says(bands, block, size, groups, density, spoilt, seed):
    torch.manual_seed(seed)
    shape = (bands * block, 3, 2)
    index, _, _ = block_pattern(shape, density, block, torch.float32)
    if spoilt and len(index):  # one weight is at another place
        stored = torch.zeros(torch.Size(shape).numel(), dtype=torch.bool)
        stored[index] = True
        stored[index[seed % len(index)]] = False
        stored[torch.randint(len(stored), ())] = True
        index = stored.nonzero().squeeze(1)
    assert in_blocks(index.int(), shape, size, groups) == in_blocks_by_hand(index, shape, size, groups)


@pytest.mark.parametrize("index", [[4, 1], [1, 1], [-2, 1], [1, 6]])
def test_positions_that_are_no_index_are_in_no_blocks(index):
    assert not in_blocks(torch.tensor(index), (2, 3), 2)


def test_the_answer_follows_a_change_in_place():
    shape = (16, 4, 3, 3)
    geometry = _checked_geometry(torch.zeros(1, 4, 8, 8), shape, 1, 1, 1, 1)
    index = torch.arange(16) * 36
    assert kernel_block(index, geometry) == 16
    index[8:] += 1
    assert kernel_block(index, geometry) == 8
    index[0] += 1
    assert kernel_block(index, geometry) == 0


def test_a_plan_by_hand():
    shape = (16, 2, 3)
    geometry = _checked_geometry(torch.zeros(1, 2, 7), shape, 2, 1, 1, 1)
    columns = torch.tensor([1, 3, 4])  # input 0 at tap 1, input 1 at taps 0 and 1
    index = (torch.arange(16)[:, None] * 6 + columns).flatten()
    plan = block_plan_of(index, geometry)
    assert (plan.size, plan.bands) == (16, 1)
    assert plan.pointer.tolist() == [0, 1, 3, 3]  # one block at tap 0, two at tap 1
    assert plan.offset.tolist() == [7, 1, 8]
    assert index[plan.order].view(3, 16)[:, 0].tolist() == [3, 1, 4]
    assert plan.cleared.tolist() == [1]
    two = _checked_geometry(torch.zeros(1, 2, 5, 7), (16, 2, 3, 1), 2, 1, 1, 1)
    assert block_plan_of(index.clone(), two).cleared.tolist() == [2, 4, 5]
