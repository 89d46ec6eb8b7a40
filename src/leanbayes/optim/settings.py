"""The settings that `IVON` and `NaturalGradients` have in common: their defaults, and what they must satisfy."""

import math
from collections.abc import Mapping

from leanbayes.errors import InputError

__all__ = ["DEFAULT_RATES", "INITIAL_CURVATURE", "beta2_for", "check_kl_weight", "check_settings", "require_positive"]

DEFAULT_RATES = {"natural": 0.5, "adam": 2e-3}
INITIAL_CURVATURE = 0.1
_TIME_CONSTANTS = 5.0  # by default the curvature forgets its start by a factor e⁻⁵ within the training


def beta2_for(steps: int | None) -> float:
    """Return the β₂ with which the curvature can move within a training of so many steps."""
    if steps is None:
        raise InputError("say how long the training is with steps=, or how slow the curvature is with beta2=")
    return 1 - min(_TIME_CONSTANTS / steps, 0.1)


def check_kl_weight(weight: float) -> None:
    """Raise unless the weight of the KL is positive."""
    if not 0 < weight < math.inf:
        raise InputError(
            f"IVON has the KL divergence in its update and needs a positive KL weight, got {weight}; "
            "use a constant kl_weight above 0"
        )


def check_settings(
    temperature: float,
    starts: Mapping[str, float | None],
    beta1: float,
    beta2: float | None,
    clip: float | None,
    plain_lr: float,
    means: str,
    average: float,
) -> None:
    """Raise if a setting that IVON and `NaturalGradients` have in common is out of its range."""
    require_positive(temperature=temperature, plain_lr=plain_lr, clip=clip, **starts)
    given = {name: value for name, value in starts.items() if value is not None}
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(given)} each say where the scales start; got {' and '.join(map(str, given.values()))}; "
            "leave one of them out"
        )
    for name, value in (("beta1", beta1), ("beta2", beta2), ("average", average)):
        if value is not None and not 0 <= value < 1:
            raise InputError(f"{name} must be at least 0 and below 1, got {value}")
    if means not in DEFAULT_RATES:
        raise InputError(f"means must be one of {list(DEFAULT_RATES)}, got {means!r}")
    if means == "adam" and clip is not None:
        raise InputError(
            f"clip limits the natural-gradient step of the means, and means='adam' takes none; got clip={clip}; "
            "leave it out, and clip gradients with Optimization(clip=...)"
        )


def require_positive(**values: float | None) -> None:
    """Raise if a number that is given is not positive and finite."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive finite number, got {value}")
