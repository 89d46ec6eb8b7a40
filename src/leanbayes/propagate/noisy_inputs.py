"""Inputs whose sensor noise has a known variance."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch

__all__ = ["with_variance"]


def with_variance(x: Any, variance: Any, make: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Join inputs with the variance of their noise.

    Args:
        x: a tensor, a tuple or list, or a mapping.
        variance: a number or a tensor that broadcasts to ``x``; for a tuple or mapping one for each part, and None for
            parts without noise.
        make: called with a value and its variance, expanded to the same shape.
    """
    if variance is None:
        return x
    if isinstance(x, Tensor):
        return make(x, _expanded(x, variance))
    if isinstance(x, Mapping) and isinstance(variance, Mapping) and set(variance) <= set(x):
        return {name: with_variance(value, variance.get(name), make) for name, value in x.items()}
    if isinstance(x, tuple | list) and isinstance(variance, tuple | list) and len(x) == len(variance):
        return type(x)(with_variance(value, noise, make) for value, noise in zip(x, variance, strict=True))
    raise InputError(
        f"the input is a {type(x).__name__}, and its variance is a {type(variance).__name__} that does not match it; "
        "give one variance for each part, and None where there is no noise"
    )


def _expanded(x: Tensor, variance: Any) -> Tensor:
    if not x.is_floating_point():
        raise InputError(f"an input of type {x.dtype} cannot be noisy; leave its input_variance None")
    noise = torch.as_tensor(variance, dtype=x.dtype, device=x.device)
    try:
        noise = noise.expand(x.shape)
    except RuntimeError as error:
        raise ShapeMismatch(
            f"input_variance of shape {tuple(noise.shape)} does not broadcast to the input's {tuple(x.shape)}"
        ) from error
    if not bool((torch.isfinite(noise) & (noise >= 0)).all()):
        raise InputError("input_variance must be finite and not negative; give variances, the squares of deviations")
    return noise
