"""Checks of settings that several adapters have."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from leanbayes.errors import InputError
from leanbayes.objective import Terms

__all__ = ["checked_weight", "is_count", "require_count", "seeded"]


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number of at least 1.

    >>> is_count(1), is_count(np.int64(3)), is_count(True), is_count(0), is_count(1.0)
    (True, True, False, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def require_count(name: str, value: Any) -> None:
    """Raise unless a value is a whole number of at least 1.

    Args:
        name: the name of the setting.
        value: its value.
    """
    if not is_count(value):
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")


def seeded(seed: Any, device: torch.device | str) -> torch.Generator | None:
    """Return a generator with this seed, or None without a seed.

    Args:
        seed: a whole number, or None.
        device: where the draws are made.

    >>> seeded("first", "cpu")
    Traceback (most recent call last):
        ...
    leanbayes.errors.InputError: seed must be a whole number or None, got 'first'
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed must be a whole number or None, got {seed!r}")
    return torch.Generator(device).manual_seed(int(seed))


def checked_weight(schedule: Callable[[float], float], progress: float) -> float:
    """Return the KL weight that a schedule gives after this share of the training, which must be finite and at least 0.

    >>> checked_weight(lambda progress: -1.0, 0.5)
    Traceback (most recent call last):
        ...
    leanbayes.errors.InputError: kl_weight must be finite and at least 0, got -1.0
    """
    weight = Terms(schedule).at(progress).kl_weight
    if not isinstance(weight, float):
        raise InputError(f"the schedule of the KL weight must return a number, got {weight!r}")
    return weight
