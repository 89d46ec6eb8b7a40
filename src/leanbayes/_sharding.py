"""Weights of which each process holds a piece: what torch's ``fully_shard`` (FSDP2) and DTensors make of parameters.

A module under ``fully_shard`` holds pieces of its weights. Hooks of torch gather the whole weights just before the
module runs, and free them just after it. So a draw of these weights can only be made in between; `parts_of` says where.

This module asks for the classes of torch without importing them: who shards weights has imported them already, and
others need not wait for the import.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.errors import InputError

__all__ = [
    "Part",
    "added_entries",
    "gathered_entries",
    "is_piece",
    "is_sharded_module",
    "local",
    "local_entries",
    "local_gradient",
    "parts_of",
    "piece_like",
    "piece_of",
    "refuse_other_noise",
    "refuse_sharded",
    "same_for_all",
    "settled",
    "sum_over_pieces",
    "whole",
    "whole_layers",
    "write_entries",
]


def is_piece(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, of which this process holds a piece.

    >>> is_piece(torch.ones(2))
    False
    """
    if torch.compiler.is_compiling():  # compiled code has whole weights
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_sharded_module(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was applied to this very module."""
    if torch.compiler.is_compiling():
        return False
    library = sys.modules.get("torch.distributed.fsdp")
    return library is not None and isinstance(module, library.FSDPModule)


def refuse_sharded(module: nn.Module, what: str) -> None:
    """Raise if this process holds pieces of the weights of a module, where whole ones are needed."""
    if "torch.distributed.tensor" not in sys.modules:  # nobody has sharded anything
        return
    name = next((name for name, parameter in module.named_parameters() if is_piece(parameter)), None)
    if name is not None:
        raise InputError(
            f"{name!r} is sharded, and {what} needs whole weights; load them into a model that is not sharded: "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict(objective, "
            "options=StateDictOptions(full_state_dict=True)) returns them"
        )


def local(tensor: Any) -> Any:
    """Return the piece of a DTensor that this process holds; any other tensor is returned itself.

    The two share their memory, and gradients of the piece reach the DTensor.
    """
    return tensor.to_local() if is_piece(tensor) else tensor


def local_gradient(parameter: Any) -> Any:
    """Return the gradient of the piece of a parameter that this process holds, or of a whole parameter."""
    gradient = parameter.grad
    if is_piece(gradient) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


def settled(tensor: Any) -> Any:
    """Return a DTensor without terms that are still to be added up over processes; other tensors as they are."""
    if not is_piece(tensor) or not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if placement.is_partial() else placement for placement in tensor.placements]
    return tensor.redistribute(placements=placements)


@contextmanager
def whole_layers(model: nn.Module) -> Iterator[None]:
    """Inside this context, the layers of a model take and return whole tensors, as without tensor parallelism.

    The hooks of torch that cut inputs and outputs rest meanwhile. The caller puts whole weights into the layers.
    """
    resting: list[tuple[Any, Any, Any]] = []
    try:
        for module in model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for key, hook in list(hooks.items()):
                    if str(getattr(hook, "__module__", "")).startswith("torch.distributed.tensor"):
                        resting.append((hooks, key, hook))
                        del hooks[key]
        yield
    finally:
        for hooks, key, hook in resting:
            hooks[key] = hook


def whole(tensor: Any) -> Any:
    """Return the whole of a DTensor, on every process; any other tensor is returned itself. All processes must ask."""
    return tensor.full_tensor() if is_piece(tensor) else tensor


def piece_of(value: Any, like: Any) -> Any:
    """Return a DTensor that is cut as ``like`` is, made of a tensor that every process has whole."""
    if not is_piece(like) or is_piece(value) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    starts, lengths = _extent(like)
    piece = value
    for axis, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        piece = piece.narrow(axis, start, length)
    piece = piece.to(local(like).device).contiguous()
    return type(like).from_local(
        piece, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a model whose weights are whole only while it runs.

    Attributes:
        module: the module to which ``fully_shard`` was applied.
        names: the random weights that it gathers, by name.
        holders: for each of them, the modules that hold it and the names under which they hold it.
    """

    module: nn.Module
    names: tuple[str, ...]
    holders: Mapping[str, tuple[tuple[nn.Module, str], ...]]


def parts_of(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[Part]:
    """Return the parts of a model that gather those of its parameters ``tensors`` of which it holds pieces now.

    The part of a parameter is the nearest module above it to which ``fully_shard`` was applied. A parameter without
    such a module inside the model, which tensor parallelism has cut, belongs to no part.
    """
    names = {id(tensor): name for name, tensor in tensors.items() if is_piece(tensor)}
    if not names:
        return []
    holders: dict[str, list[tuple[nn.Module, str]]] = {}
    homes: dict[str, nn.Module] = {}
    sharded = {
        path: module for path, module in model.named_modules(remove_duplicate=False) if is_sharded_module(module)
    }
    seen: set[int] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if id(module) in seen:
            continue
        seen.add(id(module))
        for key, value in module._parameters.items():
            name = names.get(id(value))
            if name is None:
                continue
            above = [home for home in sharded if home == path or not home or path.startswith(f"{home}.")]
            if above:
                holders.setdefault(name, []).append((module, key))
                homes[name] = sharded[max(above, key=len)]
    members: dict[int, list[str]] = {}
    for name, home in homes.items():
        members.setdefault(id(home), []).append(name)
    return [
        Part(homes[inside[0]], tuple(inside), {name: tuple(holders[name]) for name in inside})
        for inside in members.values()
    ]


def piece_like(whole: Tensor, other: Any) -> Tensor:
    """Return the piece of a tensor, which this process has whole, that lies where its piece of ``other`` lies.

    Axes along which ``whole`` has length 1 are not cut. The gradient of the piece is multiplied by the number of
    pieces, because torch takes the mean over processes of the gradients of weights that it has gathered, and each
    process has only that of its own piece.
    """
    starts, lengths = _extent(other)
    piece, pieces = whole, 1
    for axis, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if whole.shape[axis] != 1 and length != other.shape[axis]:
            piece = piece.narrow(axis, start, length)
    for axis, placement in enumerate(other.placements):
        pieces *= other.device_mesh.size(axis) if placement.is_shard() else 1
    if not piece.requires_grad or not torch.is_grad_enabled():
        return piece
    return piece.detach() + pieces * (piece - piece.detach())


def sum_over_pieces(value: Tensor, like: Any) -> Tensor:
    """Return the sum of a number over the processes that hold the pieces of ``like``.

    The gradient is that of this process's own term: the others compute theirs, each for its own piece.
    """
    return value + (_summed(value, like) - value.detach())


def gathered_entries(tensor: Any, index: Tensor) -> Tensor:
    """Return the entries of a DTensor at flat positions, on every process.

    Gradients reach this process's own piece alone.
    """
    own, inside = _own_entries(tensor, index)
    values = local(tensor).flatten().index_select(0, own)
    spread: Tensor = values.new_zeros(index.numel()).index_put((inside,), values)
    return spread + (_summed(spread, tensor) - spread.detach())


def _summed(value: Tensor, like: Any) -> Tensor:
    """Return the sum of a tensor over the processes that hold the pieces of ``like``, without gradients."""
    total = value.detach().clone()
    for axis, placement in enumerate(like.placements):
        if placement.is_shard():
            torch.distributed.all_reduce(total, group=like.device_mesh.get_group(axis))
    return total


def local_entries(whole: Tensor, like: Any) -> Tensor:
    """Return the entries of a vector that lie in this process's piece of ``like``; all of them if it is no DTensor."""
    if not is_piece(like):
        return whole
    (start,), (length,) = _extent(like)
    return whole.narrow(0, start, length)


def write_entries(tensor: Any, index: Tensor, values: Tensor) -> None:
    """Write values to flat positions of a DTensor; each process writes those that lie in its piece."""
    own, inside = _own_entries(tensor, index)
    local(tensor).view(-1).index_copy_(0, own, values.index_select(0, inside))


def added_entries(tensor: Any, index: Tensor, values: Tensor) -> Tensor:
    """Return this process's piece of a DTensor with values added at flat positions of the whole."""
    own, inside = _own_entries(tensor, index)
    piece: Tensor = local(tensor)
    return piece.flatten().index_add(0, own, values.index_select(0, inside)).view(piece.shape)


def same_for_all(flag: bool, tensors: Iterable[Any]) -> bool:
    """Return whether the flag holds in any process that holds a piece of these tensors; all of them must ask."""
    first = next((tensor for tensor in tensors if is_piece(tensor)), None)
    if first is None:
        return flag
    votes = torch.tensor(float(flag), device=local(first).device)
    for axis in range(first.device_mesh.ndim):
        torch.distributed.all_reduce(votes, group=first.device_mesh.get_group(axis))
    return bool(votes > 0)


def refuse_other_noise(tensors: Iterable[Any], source: torch.Generator) -> None:
    """Raise in all processes if their random numbers would differ, though they hold pieces of the same weights."""
    first = next(tensor for tensor in tensors if is_piece(tensor))
    # The state of a generator lies in main memory, also if it is one of a GPU.
    value = float(zlib.crc32(bytes(source.get_state().tolist())))
    extremes = torch.tensor([value, -value], dtype=torch.float64, device=local(first).device)
    for axis in range(first.device_mesh.ndim):
        group = first.device_mesh.get_group(axis)
        torch.distributed.all_reduce(extremes, op=torch.distributed.ReduceOp.MAX, group=group)
    if extremes.sum() != 0:
        raise InputError(
            "the processes of tensor parallelism have generators in different states, so each would draw other noise "
            "for the same weights; give all of them a generator with the same seed, or call torch.manual_seed alike"
        )


def _own_entries(tensor: Any, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return which entries of this process's flat piece lie at flat positions of the whole, and which positions."""
    starts, lengths = _extent(tensor)
    rest, stride = index.long(), tensor.numel()
    inside = torch.ones_like(rest, dtype=torch.bool)
    own = torch.zeros_like(rest)
    for start, length, size in zip(starts, lengths, tensor.shape, strict=True):
        stride //= size
        coordinate, rest = rest // stride - start, rest % stride
        inside &= (coordinate >= 0) & (coordinate < length)
        own = own * length + coordinate
    positions = inside.nonzero().squeeze(1)
    return own.index_select(0, positions), positions


def _extent(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where this process's piece of a DTensor begins along each axis, and how long it is."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset), tuple(shape)
