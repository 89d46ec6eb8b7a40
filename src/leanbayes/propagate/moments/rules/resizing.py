"""Linear maps over positions that act on each axis alone: interpolation here, averages in `pooling`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.shared import common_axes, ratio
from leanbayes.propagate.moments.tensor import RULES, MomentTensor
from leanbayes.propagate.moments.ties import averaged, scaled

__all__ = ["interpolate", "resample"]


def resample(
    x: MomentTensor, apply: Callable[[Tensor], Tensor], along: Callable[[Tensor, int], Tensor], rank: int
) -> MomentTensor:
    """Var y = Σ a² σ² for the independent part, (Σ a σ)² for the part that positions share.

    ``along(eye, axis)`` applies the one-dimensional map to the rows of ``eye``: its matrix, transposed.
    """
    alone = x.variance
    for axis in range(rank):
        place = alone.dim() - rank + axis
        n = alone.shape[place]
        matrix = along(torch.eye(n, dtype=alone.dtype, device=alone.device).unsqueeze(0), axis)[0]
        alone = torch.tensordot(alone, matrix.square(), dims=([place], [0])).movedim(-1, place)
    axes = tuple(range(x.dim() - rank, x.dim()))
    if x.shared is None or not set(axes) & set(common_axes(x.shape, x.shared)):
        return x.like(apply(x.expected), alone).tied(averaged(x, alone))
    shared = x.shared.mean(axes, keepdim=True)
    together = shared * apply(SafeSqrt.apply(x.variance)).square()
    total = together + (1 - shared) * alone
    one = all(total.shape[axis] == 1 for axis in axes)
    ties = averaged(x, total) if one else scaled(x, 1.0, total)
    return x.like(apply(x.expected), total, ratio(together, total, axes)).tied(ties)


@RULES.rule(F.interpolate, F.upsample, exact=True, assumes="independent entries, or positions with a shared part")
def interpolate(
    operation: Operation,
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> MomentTensor:
    """Every mode of torch: each is a product of one map for each axis."""
    rank = input.dim() - 2
    sizes, scales = _each(size, rank), _each(scale_factor, rank)
    options: dict[str, Any] = {"align_corners": align_corners, "antialias": antialias}
    flat = "bilinear" if mode in ("linear", "trilinear") else mode

    def apply(value: Tensor) -> Tensor:
        if operation is F.upsample:
            return F.interpolate(value, size, scale_factor, mode, align_corners)
        return operation(value, size, scale_factor, mode, recompute_scale_factor=recompute_scale_factor, **options)

    def along(eye: Tensor, axis: int) -> Tensor:
        n = eye.shape[-1]
        if sizes is not None:
            return F.interpolate(eye.unsqueeze(0), (n, sizes[axis]), mode=flat, **options)[0]
        assert scales is not None
        return F.interpolate(
            eye.unsqueeze(0),
            scale_factor=(1.0, scales[axis]),
            mode=flat,
            recompute_scale_factor=recompute_scale_factor,
            **options,
        )[0]

    return resample(input, apply, along, rank)


def _each(value: Any, rank: int) -> list[Any] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, tuple | list) else [value] * rank
