"""The time that no implementation of a piece of work can beat on this machine.

A machine multiplies at a peak rate and moves bytes at a peak rate. The limit of a piece of work is the larger of its
floating-point operations over the first, and the least bytes that it must move over the second.

- **Operations** are those of products: matrix products and convolutions. Entries that are zero under a mask count for
  nothing, whatever an implementation multiplies. Noise, norms and activations are not counted.
- **Bytes** of a training step: every trainable number, and every number that the optimizer remembers, is read and
  written once, and every input of a product is written once and read once. For a prediction, the numbers are read once,
  however many draws there are, and the inputs of products are written and read in each pass.

Both counts leave things out, so the limit is a lower bound: nothing is faster. The bandwidth depends on whether the
data fit into a cache. It is measured for arrays of several sizes, and a piece of work gets the bandwidth of arrays that
are at most as large as what must be there at the same time: in a training step, all numbers and activations of a
network, and in a prediction, the input of the largest layer.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "LayerUse",
    "Machine",
    "Work",
    "layers_used",
    "measure_machine",
    "prediction_work",
    "step_work",
    "unique_bytes",
]

_FLOAT = 4


@dataclass(frozen=True)
class Machine:
    """What a machine can do.

    Attributes:
        flops: the largest rate of floating-point operations that was measured, in operations a second.
        bandwidths: the largest rate of bytes, by the bytes of the arrays that were moved.
        rates: the measurements behind ``flops``, by name.
    """

    flops: float
    bandwidths: Mapping[int, float]
    rates: Mapping[str, float] = field(default_factory=dict)

    def bandwidth(self, nbytes: int) -> float:
        """Return the bandwidth of data of this size: that of the largest measured arrays that are not larger.

        >>> machine = Machine(1.0, {100: 9.0, 1000: 3.0})
        >>> machine.bandwidth(50), machine.bandwidth(999), machine.bandwidth(5000)
        (9.0, 9.0, 3.0)
        """
        fitting = [size for size in self.bandwidths if size <= nbytes]
        return self.bandwidths[max(fitting, default=min(self.bandwidths))]

    def best(self, other: "Machine") -> "Machine":
        """Return the higher of each pair of rates, for a busy machine measures too little."""
        bandwidths = {s: max(self.bandwidths.get(s, 0.0), b) for s, b in other.bandwidths.items()}
        rates = {name: max(self.rates.get(name, 0.0), rate) for name, rate in other.rates.items()}
        return Machine(max(self.flops, other.flops), bandwidths, rates)


@dataclass(frozen=True)
class Work:
    """What a piece of work must at least do.

    Attributes:
        flops: the operations of its products.
        nbytes: the bytes that it moves.
        resident: how many bytes must be there at the same time, which decides the cache that they can lie in.

    >>> Work(200, 1000, 500).seconds(Machine(100.0, {1: 1000.0}))
    2.0
    """

    flops: int
    nbytes: int
    resident: int

    def seconds(self, machine: Machine) -> float:
        """Return the time that nothing can beat on a machine."""
        return max(self.flops / machine.flops, self.nbytes / machine.bandwidth(self.resident))


@dataclass(frozen=True)
class LayerUse:
    """One call of a convolution or a linear layer.

    Attributes:
        name: the name of the layer.
        inputs: the entries of its input.
        positions: how many outputs each output channel has, over the whole batch.
    """

    name: str
    inputs: int
    positions: int

    def flops(self, weights: int) -> int:
        """Return the operations of its product with so many weights; a multiplication and an addition are two."""
        return 2 * self.positions * weights


def layers_used(networks: Iterable[nn.Module], names: Sequence[str], run: Callable[[], object]) -> list[LayerUse]:
    """Run something, and return each call of the layers with these names in these networks, in order."""
    uses: list[LayerUse] = []

    def seen(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
            channels = output.shape[1]
            uses.append(LayerUse(name, math.prod(args[0].shape), math.prod(output.shape) // channels))

        return hook

    with _hooked([(network.get_submodule(name), seen(name)) for network in networks for name in names]):
        run()
    return uses


def step_work(
    flops: int, kept: Iterable[Tensor], uses: Iterable[LayerUse], *, unkept: int = 0, networks: int = 1
) -> Work:
    """Return the least work of a training step.

    Args:
        flops: the operations of its products.
        kept: the parameters and what the optimizer remembers.
        uses: the calls of layers.
        unkept: how many entries of ``kept`` are zero under a mask.
        networks: how many networks are trained one after the other.
    """
    once = unique_bytes(kept) - _FLOAT * unkept + _FLOAT * sum(use.inputs for use in uses)
    return Work(flops, 2 * once, once // networks)


def prediction_work(
    flops: int, parameters: Iterable[Tensor], uses: Sequence[LayerUse], *, unkept: int = 0, streams: int = 1
) -> Work:
    """Return the least work of a prediction.

    Args:
        flops: the operations of its products.
        parameters: the numbers of the model.
        uses: the calls of layers, in all passes.
        unkept: how many entries of the parameters are zero under a mask.
        streams: how many numbers stand for each activation, such as two for a mean and a variance.
    """
    numbers = unique_bytes(parameters) - _FLOAT * unkept
    largest = _FLOAT * max((use.inputs for use in uses), default=0)
    return Work(flops, numbers + 2 * streams * _FLOAT * sum(use.inputs for use in uses), largest)


def masked_flops(uses: Sequence[LayerUse], plain: nn.Module, masks: Mapping[str, Tensor], *, training: bool) -> int:
    """Count the products of a network with stored entries only: once, or three times for a training step.

    The first layer needs no gradient of its input.
    """
    total = 0
    for number, use in enumerate(uses):
        weight: Any = plain.get_submodule(use.name).weight
        stored = int(masks[use.name].sum()) if use.name in masks else weight.numel()
        total += use.flops(stored) * ((2 if number == 0 else 3) if training else 1)
    return total


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all storages, each counted once, because blitz registers every parameter twice."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def measure_machine(rounds: int = 5, sizes: Sequence[int] = (2**20, 2**22, 2**24, 2**26, 2**28)) -> Machine:
    """Measure the peak rates with torch's threads: the best of several rounds counts."""
    a, b = torch.randn(2, 2048, 2048)
    image, kernel = torch.randn(32, 128, 32, 32), torch.randn(128, 128, 3, 3)
    with torch.no_grad():
        rates = {
            "matrix product": 2 * 2048**3 / _best(lambda: a @ b, rounds),
            "convolution": 2 * image.numel() * 128 * 9 / _best(lambda: F.conv2d(image, kernel, padding=1), rounds),
        }
        bandwidths = {size: _bandwidth(size, rounds) for size in sizes}
    return Machine(max(rates.values()), bandwidths, rates)


def _bandwidth(nbytes: int, rounds: int) -> float:
    """Return the best rate of reading, copying and the triad a = b + s c (McCalpin 1995) over arrays of this size."""
    length = nbytes // _FLOAT
    repeats = max(1, 2**26 // nbytes)
    whole = torch.ones(length)
    halves, thirds = torch.ones(2, length // 2), torch.ones(3, length // 3)
    works: list[Callable[[], object]] = [
        whole.sum,
        lambda: halves[0].copy_(halves[1]),
        lambda: torch.add(thirds[0], thirds[1], alpha=0.5, out=thirds[2]),
    ]

    def several(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(repeats):
                work()

        return run

    return max(nbytes * repeats / _best(several(work), rounds) for work in works)


def _best(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


@contextmanager
def _hooked(pairs: Iterable[tuple[nn.Module, Callable[..., None]]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
