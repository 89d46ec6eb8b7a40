"""Standard Normal noise on every core: torch fills a CPU tensor on one, and that is half of what a dense draw costs."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

__all__ = ["standard_normal"]

_PIECE = 2**16  # numbers that one generator fills: the result depends on this, not on the number of threads


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """ξ ~ N(0, 1) with the dtype and device of ``like``, reproducible from ``generator``.

    Large CPU tensors are cut in pieces, each filled by a generator of its own that is seeded from ``generator``.

    >>> standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    size = math.prod(shape)
    if like.device.type != "cpu" or size < 2 * _PIECE or _transformed():
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    noise = torch.empty(shape, dtype=like.dtype)
    pieces = torch.split(noise.view(-1), _PIECE)
    seeds = torch.randint(2**63 - 1, (len(pieces),), generator=generator).tolist()
    inference = torch.is_inference_mode_enabled()

    def fill(piece: Tensor, seed: int) -> None:
        with torch.inference_mode(inference):  # a mode belongs to one thread
            piece.normal_(generator=torch.Generator().manual_seed(seed))

    for _ in _threads(torch.get_num_threads()).map(fill, pieces, seeds):
        pass
    return noise


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="leanbayes-noise")


def _transformed() -> bool:
    """Whether a compiler traces or `torch.func` transforms this call: both must see torch's own operation."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None
