"""Pieces of tensors on a pretended mesh; `tests/sharded` has the trainings in several processes."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import _sharding


def test_whole_tensors_are_left_alone() -> None:
    tensor = torch.ones(3)
    assert not _sharding.is_piece(tensor)
    assert _sharding.local(tensor) is _sharding.whole(tensor) is _sharding.settled(tensor) is tensor
    assert _sharding.piece_of(tensor, torch.zeros(3)) is tensor
    assert _sharding.same_for_all(True, [tensor]) is True
    assert _sharding.parts_of(nn.Linear(1, 1), {}) == []


@pytest.fixture(scope="module")
def second_of_three() -> Iterator[object]:
    """A mesh of three processes, as the second of them sees it; nothing is sent."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.distributed.is_initialized():
        pytest.skip("the processes of another test are still joined")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    yield init_device_mesh("cpu", (3,))
    torch.distributed.destroy_process_group()


def pieces(mesh, axis: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor, and the DTensor of which this process holds the second piece."""
    from torch.distributed.tensor import DTensor, Shard

    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    own = tensor.chunk(3, axis)[1].contiguous()
    stride = tensor.stride()
    return tensor, DTensor.from_local(own, mesh, [Shard(axis)], run_check=False, shape=tensor.shape, stride=stride)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_piece_of_a_whole_tensor_lies_where_the_other_piece_lies(second_of_three, axis: int) -> None:
    tensor, cut = pieces(second_of_three, axis, (5, 4))
    made = _sharding.piece_of(tensor, cut)
    assert made.placements == cut.placements
    assert torch.equal(made.to_local(), cut.to_local())


def test_the_gradient_of_a_piece_counts_for_all_processes(second_of_three) -> None:
    """Torch divides the gradients of gathered weights by three, and only this process has the gradient of its piece."""
    tensor, cut = pieces(second_of_three, 0, (5, 4))
    tensor.requires_grad_()
    piece = _sharding.piece_like(tensor, cut)
    assert torch.equal(piece, cut.to_local())
    piece.sum().backward()
    expected = torch.zeros(5, 4)
    expected[2:4] = 3
    assert torch.equal(tensor.grad, expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_single_entries_are_written_where_this_process_holds_them(second_of_three, axis: int) -> None:
    tensor, cut = pieces(second_of_three, axis, (6, 6))
    index = torch.tensor([0, 13, 14, 20, 28, 35])
    values = torch.tensor([100.0, 101, 102, 103, 104, 105])
    added = _sharding.added_entries(cut, index, values)
    assert torch.equal(added, tensor.flatten().index_add(0, index, values).view(6, 6).chunk(3, axis)[1])
    _sharding.write_entries(cut, index, values)
    expected = tensor.flatten().index_copy(0, index, values).view(6, 6).chunk(3, axis)[1]
    assert torch.equal(cut.to_local(), expected)


def test_noise_of_a_piece_is_a_piece_of_the_noise(second_of_three) -> None:
    tensor, cut = pieces(second_of_three, 0, (6, 4))
    whole, piece = (
        lb.posteriors.Normal().noise(like, None, torch.Generator().manual_seed(3)) for like in (tensor, cut)
    )
    assert torch.equal(piece.to_local(), whole[2:4])
