"""The kernel of a natural-gradient step; `tests/optim/test_sweeps.py` compares its numbers with the formulas."""

import pytest
import torch

from leanbayes._ops.natural import Kept, all_finite, flat_array, kernel_fits, natural_step, worth_kernel

NUMBERS = (300.0, 2e-3, 2e-10, 0.05, 0.1, 5.0, 0.3, 0.102, float("inf"), 0.2)


def row(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = [torch.randn(count, generator=generator, dtype=dtype) for _ in range(5)]
    curvature = torch.rand(count, generator=generator, dtype=dtype)
    return [curvature, normal[0] - 3, 0.01 * normal[1], normal[2], 0.1 * normal[3], 0.1 * normal[4]]


def test_only_large_contiguous_float32_tensors_have_a_kernel() -> None:
    pytest.importorskip("numba")
    assert kernel_fits(row(2**17))
    assert not kernel_fits(row(2**17 - 1))
    assert not kernel_fits(row(2**17, torch.float64))
    across = [values.view(2**9, 2**8).T for values in row(2**17)]
    assert not kernel_fits(across)


def test_threads_change_no_number() -> None:
    """A tensor of several pieces, whose ends are no multiple of the block of the kernel."""
    pytest.importorskip("numba")
    ends, before = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            values = row(3 * 2**17 + 77)
            natural_step(values, NUMBERS)
            ends.append(values)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    halves = [values[: 2**17] for values in row(3 * 2**17 + 77)]
    natural_step(halves, NUMBERS)
    for a, b in zip(halves, ends[0], strict=True):
        assert torch.equal(a, b[: 2**17])


def test_scales_alone_move_as_they_do_with_the_means() -> None:
    pytest.importorskip("numba")
    both, alone = row(2**17 + 77), row(2**17 + 77)[:3]
    natural_step(both, NUMBERS)
    natural_step(alone, NUMBERS)
    assert all(torch.equal(a, b) for a, b in zip(both, alone, strict=False))


def test_kept_arrays_follow_their_tensors() -> None:
    pytest.importorskip("numba")
    weight, state = torch.nn.Parameter(torch.zeros(2, 3)), torch.zeros(6)
    kept = Kept()
    arrays = kept.arrays((weight, state))
    assert arrays is not None
    again = kept.arrays((weight, state))
    assert again is arrays
    weight.data = torch.ones(2, 3)  # another place in memory
    moved = kept.arrays((weight, state))
    assert moved is not None
    moved[0] += 1
    assert (weight == 2).all()
    other = torch.full((6,), 5.0)
    replaced = kept.arrays((weight, other))
    assert replaced is not None
    assert (replaced[1] == 5).all()
    assert kept.arrays((weight, state.double())) is None
    assert kept.arrays((weight, state)) is not None


def test_gradients_as_arrays_are_plain_dense_float32() -> None:
    values = torch.zeros(3, 2)
    array = flat_array(values, 6)
    assert array is not None
    assert array.shape == (6,)
    assert flat_array(values, 5) is None
    assert flat_array(values.T, 6) is None
    assert flat_array(values.double(), 6) is None
    assert flat_array(values.to_sparse(), 6) is None
    assert flat_array(torch.nn.Parameter(values), 6) is None


def test_a_number_that_is_not_finite_is_noticed_wherever_it_stands() -> None:
    pytest.importorskip("numba")
    values = torch.randn(1003)
    assert all_finite([values.numpy()])
    for position in (0, 517, 1002):
        for bad in (float("nan"), float("inf"), -float("inf")):
            spoiled = values.clone()
            spoiled[position] = bad
            assert not all_finite([values.numpy(), spoiled.numpy()])


def test_few_numbers_are_worth_a_kernel_late_in_a_training() -> None:
    assert worth_kernel(2**14)
    assert not worth_kernel(1000, taken=499)
    assert worth_kernel(1000, taken=500)
