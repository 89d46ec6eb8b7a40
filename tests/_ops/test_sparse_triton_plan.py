"""The columns of a plan hold the stored weights and nothing else, in both directions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leanbayes._ops.sparse_block_plan import in_blocks
from leanbayes._ops.sparse_plan import Axis, Geometry
from leanbayes._ops.sparse_triton_plan import CHUNK, TARGETS, triton_plan_of
from tests._ops.cases import blocks, pattern


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.integers(1, 2), st.integers(1, 20), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2),
    st.integers(1, 2), st.sampled_from([0.0, 0.1, 1.0]),
)  # fmt: skip
def test_every_weight_has_one_column_of_each_plan(groups, outputs, inputs, taps, stride, before, dilation, density):
    shape = (groups * outputs, inputs, taps)
    index, values, _ = pattern(shape, density, torch.float64)
    axis = Axis(40, taps, stride, before, before, dilation)
    plan = triton_plan_of(index, Geometry(groups * outputs, groups * inputs, groups, (Axis(1), Axis(1), axis)))
    weight = values.new_zeros(torch.Size(shape).numel()).index_copy(0, index, values).view(shape)
    for back, columns in enumerate((plan.forward, plan.backward)):
        targets, found = (groups * outputs, groups * inputs)[:: -1 if back else 1][0], 0
        packed = columns.pack(values)[0]
        for row in range(columns.rows):
            for k in range(int(columns.pointer[row]), int(columns.pointer[row + 1])):
                for r in range(TARGETS):
                    target = row % columns.groups * TARGETS + r
                    output, channel = (int(columns.channel[k]), target) if back else (target, int(columns.channel[k]))
                    shift, residue = int(columns.shifts[2][k]), row // columns.groups
                    if target >= targets or packed[k, r] == 0:
                        continue
                    # Output i at tap t reads input i·stride − before + t·dilation.
                    read = residue - shift * stride if back else shift
                    tap, rest = divmod(read + before, dilation)
                    assert not rest
                    assert channel // inputs == output // outputs
                    assert packed[k, r] == weight[output, channel % inputs, tap]
                    found += 1
        assert found == len(index)
        assert columns.fill == pytest.approx(len(columns.channel) * TARGETS / weight.numel())
    row, start = plan.chunks
    covered = [k for r, s in zip(row.tolist(), start.tolist(), strict=True)
               for k in range(s, min(s + CHUNK, int(plan.forward.pointer[r + 1])))]  # fmt: skip
    assert covered == list(range(len(plan.forward.channel)))


def test_whole_blocks_fill_their_columns():
    torch.manual_seed(0)
    shape = (64, 32, 3, 3)
    index = blocks(shape, 0.05)
    geometry = Geometry(64, 32, 1, (Axis(1), Axis(8, 3, 1, 1, 1), Axis(8, 3, 1, 1, 1)))
    plan = triton_plan_of(index, geometry)
    assert in_blocks(index, shape, TARGETS)
    assert plan.forward.fill == len(index) / (64 * 32 * 9)
    assert 0.4 < plan.backward.fill < 0.7  # 1 − 0.95¹⁶ = 0.56 of the columns of 16 inputs hold a weight
    assert not in_blocks(index[1:], shape, TARGETS)
    assert not in_blocks(pattern(shape, 0.05, torch.float32)[0], shape, TARGETS)
    assert in_blocks(index[:0], shape, TARGETS)


def test_one_plan_serves_inputs_of_every_size():
    index = pattern((5, 4, 3), 0.5, torch.float32)[0]
    small, large = (Geometry(5, 4, 1, (Axis(1), Axis(1), Axis(size, 3, 2, 1, 1))) for size in (8, 900))
    plan = triton_plan_of(index, small)
    assert triton_plan_of(index, large) is plan
    index.copy_(pattern((5, 4, 3), 0.5, torch.float32)[0])
    assert triton_plan_of(index, small) is not plan
