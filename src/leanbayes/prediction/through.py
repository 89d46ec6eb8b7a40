"""Predictions through a function that calls the network of each draw as it likes, such as window by window."""

from collections.abc import Callable
from typing import Any

from leanbayes._calls import Inputs
from leanbayes.errors import InputError
from leanbayes.propagate import Propagation, Sample

__all__ = ["Through", "whole_draws"]

Through = Callable[[Callable[..., Any], Inputs], Any]
"""A function of the network of one draw and of the inputs, which returns what the whole pass returns."""


def whole_draws(through: Through, chosen: Propagation | None, given: bool) -> Propagation:
    """Return the propagation for ``through``, which must draw weights that all calls of the network share."""
    if not callable(through):
        raise InputError(f"through must be a function of (network, x), got {through!r}")
    if chosen is not None and chosen.plain_draws:
        return chosen
    if given:
        raise InputError(
            f"{chosen} has no draw that several calls of the network could share, so it cannot go through a function; "
            'leave out by=, or take by="sample"'
        )
    return Sample()
