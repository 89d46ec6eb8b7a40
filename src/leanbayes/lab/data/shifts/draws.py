"""Random numbers that depend on an image's index in its set, and not on the batch that it is in."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Draws", "on_host"]


def on_host(values: Tensor) -> Any:
    """Copy a tensor to a NumPy array, which codecs, hashes and NumPy's generators need."""
    return np.asarray(torch.empty(values.shape, dtype=values.dtype).copy_(values.detach()))


class Draws:
    """Random numbers for a batch of images. Those of image i depend on the pair (``seed``, ``first`` + i) alone.

    The pair is the key of Philox, a counter-based generator (Salmon et al. 2011). Two pairs therefore never share a
    stream, and an image gets the same numbers in any batch, in either precision and on any device.

    Args:
        seed: the seed of the whole set.
        first: the index of the first image of the batch in the set.
        like: the batch (N, ...), which decides the number of images, the dtype (float32 or float64) and the device.
    """

    def __init__(self, seed: int, first: int, like: Tensor) -> None:
        keys = (np.array([seed, first + index], np.uint64) for index in range(len(like)))
        self._sources = [np.random.Generator(np.random.Philox(key=key)) for key in keys]
        self._device = like.device
        self._dtype = np.float64 if like.dtype == torch.float64 else np.float32

    def normal(self, *shape: int) -> Tensor:
        """Draw from N(0, 1), with the shape (N, *shape)."""
        return self._for_each_image(shape, lambda source, _: source.standard_normal(shape))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw from U(low, high), with the shape (N, *shape)."""
        return self._for_each_image(shape, lambda source, _: source.uniform(low, high, shape))

    def poisson(self, rate: Tensor) -> Tensor:
        """Draw Poisson numbers with the rates (N, ...), which decide the shape."""
        rates = on_host(rate)
        return self._for_each_image(tuple(rate.shape[1:]), lambda source, index: source.poisson(rates[index]))

    def _for_each_image(self, shape: tuple[int, ...], draw: Callable[[np.random.Generator, int], Any]) -> Tensor:
        drawn = np.empty((len(self._sources), *shape), self._dtype)
        for index, source in enumerate(self._sources):
            drawn[index] = draw(source, index)
        return torch.from_numpy(drawn).to(self._device)
