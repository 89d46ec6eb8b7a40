"""The tensors of a module with their zeros left out, as a sparse file would hold them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leanbayes.errors import ShapeMismatch

__all__ = ["packed", "size_of", "state_of", "unpack"]


def packed(module: nn.Module) -> dict[str, Tensor]:
    """Return every tensor of a module once, with its zeros left out where that is smaller.

    A tensor becomes ``<name>.values`` and ``<name>.positions``, or it stays whole. The positions are flat, in int32 (or
    int64 from 2³¹ entries).

    >>> layer = nn.Linear(10, 10)
    >>> with torch.no_grad():
    ...     _ = layer.weight[1:].zero_()
    >>> {name: tuple(part.shape) for name, part in packed(layer).items()}
    {'weight.values': (10,), 'weight.positions': (10,), 'bias': (10,)}
    """
    tensors: dict[str, Tensor] = {}
    for name, value in state_of(module).items():
        flat = value.flatten()
        positions = flat.nonzero().squeeze(1).to(torch.int32 if value.numel() < 2**31 else torch.int64)
        if positions.numel() * (value.element_size() + positions.element_size()) < size_of(value):
            tensors |= {f"{name}.values": flat[positions.long()], f"{name}.positions": positions}
        else:
            tensors[name] = value.contiguous()
    return tensors


def unpack(tensors: Mapping[str, Tensor], module: nn.Module) -> None:
    """Write the tensors that `packed` returned into a module whose tensors have the same names and shapes.

    >>> one, other = nn.Linear(10, 10), nn.Linear(10, 10)
    >>> unpack(packed(one), other)
    >>> bool((other.weight == one.weight).all())
    True
    """
    for name, value in state_of(module).items():
        if name in tensors:
            whole = tensors[name]
        elif f"{name}.values" in tensors:
            flat = torch.zeros(value.numel(), dtype=value.dtype, device=value.device)
            positions = tensors[f"{name}.positions"].to(value.device, torch.int64)
            whole = flat.index_copy(0, positions, tensors[f"{name}.values"].to(value)).view(value.shape)
        else:
            raise ShapeMismatch(f"there is no {name!r} among the {len(tensors)} packed tensors")
        if whole.shape != value.shape:
            raise ShapeMismatch(
                f"{name!r} has the shape {tuple(value.shape)} in this module and {tuple(whole.shape)} in the packed one"
            )
        value.copy_(whole)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return every tensor that a file would hold; tied tensors appear once."""
    by_identity: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            by_identity.setdefault(id(value), (name, value.detach()))
    return dict(by_identity.values())


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's entries."""
    return tensor.numel() * tensor.element_size()
