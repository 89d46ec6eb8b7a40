"""The noise of a whole pass, drawn before it begins, and the mirrored pairs of all small tensors in one operation.

A network of many small tensors spends more time on calling operations than on their arithmetic. One operation for all
small tensors takes the calls of one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes._sharding import is_piece
from leanbayes.propagate.stand_in import StandIn

__all__ = ["draw_ahead"]

_SMALL = 2**17  # numbers below which a tensor has no kernel of its own, and its pair costs little memory


def draw_ahead(made: Sequence[StandIn]) -> None:
    """Draw the noise of all stand-ins in their order and, where gradients are computed, small mirrored pairs together.

    The order in which a network uses its weights changes no number then.
    """
    if torch.compiler.is_compiling():  # the noise is a part of the graph where it is used
        return
    for one in made:
        if _is_whole(one):
            assert one.weight.rho is not None
            one.seed = one.weight.family.seed(one.weight.mean, one.weight.rho, one.generator)
        if one.seed is None:
            one.noise()
    if not torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
        return
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return  # gradients are averaged over processes as soon as each is there, and one operation would delay them
    groups: dict[tuple[object, ...], list[StandIn]] = {}
    for one in made:
        if _is_small(one):
            groups.setdefault((one.weight.family, one.weight.mean.dtype, one.weight.mean.device), []).append(one)
    for members in groups.values():
        _pair_together(members)


def _is_whole(one: StandIn) -> bool:
    """Return whether a stand-in is that of a dense tensor all of whose entries are random."""
    weight = one.weight
    plain = not isinstance(weight.mean, SparseTensor) and not is_piece(weight.mean)
    return plain and weight.rho is not None and weight.index is None


def _is_small(one: StandIn) -> bool:
    """Return whether a stand-in is that of a small tensor, each of whose entries has a scale of its own."""
    if one.plain or one.seed is not None or not _is_whole(one):
        return False
    mean, rho = one.weight.mean, one.weight.rho
    assert rho is not None
    return rho.shape == mean.shape and rho.dtype == mean.dtype and 0 < mean.numel() < _SMALL


def _pair_together(members: list[StandIn]) -> None:
    noise = torch.cat([one.noise().reshape(-1) for one in members])
    means: list[Tensor] = [one.weight.mean for one in members]
    rhos = [one.weight.rho for one in members if one.weight.rho is not None]
    parts = noise.split([mean.numel() for mean in means])
    for one, part in zip(members, parts, strict=True):
        one.held = part.view(one.weight.mean.shape)  # so that the noise lies in memory once
    pairs = members[0].weight.family.pairs(means, rhos, noise)
    for one, both in zip(members, pairs or (), strict=False):
        one.both = both
