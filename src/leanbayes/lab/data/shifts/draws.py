"""Random numbers that belong to an image, not to a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Draws", "on_host"]


def on_host(values: Tensor) -> Any:
    """A copy as a NumPy array, from whichever device: for codecs, hashes and generators that know no other."""
    return np.asarray(torch.empty(values.shape, dtype=values.dtype).copy_(values.detach()))


class Draws:
    """Random numbers for a batch of images, those of image i from (``seed``, ``first`` + i) alone.

    The pair is the key of Philox, a counter-based generator (Salmon et al. 2011), so that two pairs never share a
    stream, and an image gets the same numbers in any batch, in either precision and on any device.

    Args:
        seed: of the whole set.
        first: the number of the first image in the set.
        like: the batch (N, ...), for number, dtype (float32 or float64) and device.
    """

    def __init__(self, seed: int, first: int, like: Tensor) -> None:
        keys = (np.array([seed, first + place], np.uint64) for place in range(len(like)))
        self._sources = [np.random.Generator(np.random.Philox(key=key)) for key in keys]
        self._device = like.device
        self._dtype = np.float64 if like.dtype == torch.float64 else np.float32

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1), of shape (N, *shape)."""
        return self._each(shape, lambda source, _: source.standard_normal(shape))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """U(low, high), of shape (N, *shape)."""
        return self._each(shape, lambda source, _: source.uniform(low, high, shape))

    def poisson(self, rate: Tensor) -> Tensor:
        """Poisson numbers with the rates (N, ...), of their shape."""
        rates = on_host(rate)
        return self._each(tuple(rate.shape[1:]), lambda source, place: source.poisson(rates[place]))

    def _each(self, shape: tuple[int, ...], draw: Callable[[np.random.Generator, int], Any]) -> Tensor:
        drawn = np.empty((len(self._sources), *shape), self._dtype)
        for place, source in enumerate(self._sources):
            drawn[place] = draw(source, place)
        return torch.from_numpy(drawn).to(self._device)
