"""Interpolation, in every mode of torch."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.kinds import RULES, Resampling

__all__ = ["interpolate"]


@RULES.resampling(
    *(F.interpolate, F.upsample), exact=True, assumes="independent entries, except for what positions share"
)
def interpolate(
    operation: Operation,
    mean: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Resampling:
    """Resize along one axis after the other: every mode is a product of one map for each axis."""
    rank = mean.dim() - 2
    sizes, scales = _for_each_axis(size, rank), _for_each_axis(scale_factor, rank)
    options: dict[str, Any] = {"align_corners": align_corners, "antialias": antialias}
    flat_mode = "bilinear" if mode in ("linear", "trilinear") else mode

    def apply(value: Tensor) -> Tensor:
        if operation is F.upsample:
            return F.interpolate(value, size, scale_factor, mode, align_corners)
        return operation(value, size, scale_factor, mode, recompute_scale_factor=recompute_scale_factor, **options)

    def along(eye: Tensor, axis: int) -> Tensor:
        if sizes is not None:
            return F.interpolate(eye.unsqueeze(0), (eye.shape[-1], sizes[axis]), mode=flat_mode, **options)[0]
        assert scales is not None
        return F.interpolate(
            eye.unsqueeze(0),
            scale_factor=(1.0, scales[axis]),
            mode=flat_mode,
            recompute_scale_factor=recompute_scale_factor,
            **options,
        )[0]

    return Resampling(apply, along, rank)


def _for_each_axis(value: Any, rank: int) -> list[Any] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, tuple | list) else [value] * rank
