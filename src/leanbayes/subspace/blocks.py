"""Blocks of a weight: neighbouring output channels at one input channel and one position of the kernel.

A sparse weight in blocks stores whole blocks. Its storage is that of any sparse weight, the stored values and their
sorted flat positions; the blocks are a property of the positions. A block of size 1 is a single weight.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

__all__ = ["Blocks", "fitting_block"]

_FAST = 8  # the kernels for blocks take multiples of it


@dataclass(frozen=True)
class Blocks:
    """The blocks of a weight, which are numbered by their first output channel and then by the rest of their position.

    Attributes:
        shape: the shape of the weight, whose first axis holds the output channels.
        size: the number of output channels of a block, which divides that of the weight.
    """

    shape: tuple[int, ...]
    size: int = 1

    @property
    def columns(self) -> int:
        """The number of weights of one output channel."""
        return prod(self.shape[1:])

    @property
    def count(self) -> int:
        """The number of blocks of the whole weight."""
        return prod(self.shape) // self.size

    def numbers(self, index: Tensor) -> Tensor:
        """Return the number of the block that each flat position belongs to.

        >>> Blocks((4, 3), 2).numbers(torch.tensor([1, 4, 8, 11]))
        tensor([1, 1, 5, 5])
        """
        if self.size == 1:
            return index
        return index // (self.columns * self.size) * self.columns + index % self.columns

    def places(self, index: Tensor) -> Tensor:
        """Return where the members of each stored block are among the stored weights: one row for each block.

        >>> Blocks((4, 3), 2).places(torch.tensor([0, 1, 3, 4]))
        tensor([[0, 2],
                [1, 3]])
        """
        if self.size == 1:
            return torch.arange(len(index), device=index.device).unsqueeze(1)
        return self.numbers(index).argsort(stable=True).view(-1, self.size)

    def positions(self, numbers: Tensor) -> Tensor:
        """Return the sorted flat positions of all members of these blocks.

        >>> Blocks((4, 3), 2).positions(torch.tensor([5, 1]))
        tensor([ 1,  4,  8, 11])
        """
        first = numbers // self.columns * (self.columns * self.size) + numbers % self.columns
        steps = torch.arange(self.size, device=numbers.device, dtype=numbers.dtype) * self.columns
        return (first.unsqueeze(1) + steps).flatten().sort().values

    def sums(self, dense: Tensor) -> Tensor:
        """Return the sum of the numbers of each block, by the number of the block.

        >>> Blocks((4, 1), 2).sums(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
        tensor([3., 7.])
        """
        if self.size == 1:
            return dense.flatten()
        return dense.reshape(-1, self.size, self.columns).sum(1).flatten()


def fitting_block(outputs: int, block: int) -> int:
    """Return the size of the blocks of a layer, which divides its output channels and is at most ``block``.

    It is ``block`` if that divides them, else the largest such multiple of 8, as the fast kernels take it, and the
    largest divisor if there is none.

    >>> [fitting_block(outputs, 16) for outputs in (64, 10, 100, 1000, 17)]
    [16, 10, 10, 8, 1]
    """
    divisors = [size for size in range(1, min(outputs, block) + 1) if outputs % size == 0]
    fast = [size for size in divisors if size % _FAST == 0]
    return block if block in divisors else (fast or divisors)[-1]
