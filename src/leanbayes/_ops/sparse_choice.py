"""Choose the cheapest kernel for a sparse product, by a model of costs.

On the CPU, the model was fitted to measurements. The constants are nanoseconds on one core of an AVX2 machine in
float32, for batches of 8 to 1024 and 70 to 99 % zeros; those of blocks were measured on a machine with AVX-512, where
dense products took as long. Only their ratios matter, and these change little with the number of cores and in float64.
All kernels give the same results up to rounding.

On a GPU nothing was measured, and the limits follow from arithmetic. They assume a processor that reads 4e12 bytes a
second from its second cache, and multiplies and adds 1.6e14 times two numbers a second in TF32, twice as many half
ones, and 2e13 in float32; the dense operation reaches six tenths of that on tensor cores and nine tenths without. The
kernels of Triton read one number for 16 products, a CSR matrix reads one for each. So Triton's take as long as the
dense operation where a third of the columns is left (all of them in float32), and a CSR matrix where 2 % of the
weights are stored (11 % in float32). The limits leave a margin of two, or three for float32.
"""

from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from leanbayes._ops import compiled, gpu
from leanbayes._ops.sparse_block_plan import kernel_block
from leanbayes._ops.sparse_plan import Geometry
from leanbayes._ops.sparse_triton_plan import triton_plan_of

__all__ = ["DENSE", "KERNELS", "Kernels", "choose", "triton_takes"]

VECTOR = 128  # bytes that the kernels of numba take at a time

_DENSE, _SWEEP = 0.027, 1.5  # a dense layer costs this for each product, and for each number of its input and output
_CSR_START, _CSR = 2e4, 0.16  # a product by a CSR matrix of torch, which is also the cost of the gradient of its values
_SUM_START, _SUM, _SUMS = 1e5, 0.15, 0.22  # numba: to start, and for each product of one sum or of two at once
_VALUE, _VALUES, _DOT, _DOTS = (
    22.0,
    36.0,
    0.09,
    0.11,
)  # numba: the gradients of a non-zero, and for each product, of one sum or of two
# Blocks: to start, for each product of a sum or of the gradients of values, and for each number of input and output.
_BLOCK_START, _BLOCK, _BLOCK_DOT, _TOUCH = 1e5, 0.035, 0.05, 0.4
_COPY = 2.0  # to change the layout, for each number

_MOST_COLUMNS = {True: 1 / 6, False: 1 / 3}  # of all columns, for a kernel of Triton with tensor cores and without
_MOST_STORED = {True: 1 / 100, False: 1 / 20}  # of all weights, for a CSR matrix on a GPU
_ATOMIC = 4  # numbers that a GPU may read in the time of one atomic addition
_MOST_NUMBERS = 2**31  # of an activation, which the kernels of Triton address by 32 bits


@dataclass(frozen=True)
class Kernels:
    """The names of the kernels for the forward pass, the gradient of the input and the gradients of the values."""

    forward: str
    input: str
    values: str

    def __str__(self) -> str:
        names = self.forward, self.input, self.values
        return names[0] if len(set(names)) == 1 else "/".join(names)


_COMPILED = frozenset({"blocks", "numba"})
DENSE = Kernels("dense", "dense", "dense")
_CSR_ONLY = Kernels("csr", "csr", "csr")
KERNELS = {
    "blocks": Kernels("blocks", "blocks", "blocks"),
    "csr": _CSR_ONLY,
    "dense": DENSE,
    "numba": Kernels("numba", "numba", "numba"),
    "triton": Kernels("triton", "triton", "triton"),
    "triton_atomic": Kernels("triton", "triton_atomic", "triton"),
}
"""The kernels that a caller can ask for by name."""


def choose(x: Tensor, index: Tensor, geometry: Geometry, moments: bool) -> Kernels:
    """Choose the cheapest kernels that are installed for an input of shape (batch, channels, …)."""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.compiler.is_compiling():
        return DENSE
    if x.device.type != "cpu":
        return _cheapest_on_gpu(x, index, geometry) if x.is_cuda and not isinstance(index, FakeTensor) else DENSE
    if x.dtype not in (torch.float32, torch.float64):
        return DENSE
    chosen = _cheapest(x, index, geometry, moments, has_numba=True)
    if not _COMPILED.isdisjoint((chosen.forward, chosen.values)) and not compiled.available():
        return _cheapest(x, index, geometry, moments, has_numba=False)
    return chosen


def triton_takes(x: Tensor, geometry: Geometry) -> bool:
    """Return whether the kernels of Triton can address input and output."""
    return max(x.numel(), len(x) * geometry.outputs * prod(geometry.positions)) < _MOST_NUMBERS


def _cheapest_on_gpu(x: Tensor, index: Tensor, geometry: Geometry) -> Kernels:
    tensor_cores = gpu.tensor_cores(x.dtype, geometry.is_linear)
    if gpu.has_kernels(x) and triton_takes(x, geometry):
        plan, most = triton_plan_of(index, geometry), _MOST_COLUMNS[tensor_cores]
        if plan.forward.fill <= most:
            added = inf if torch.are_deterministic_algorithms_enabled() else _ATOMIC * plan.forward.fill
            fill, back = min((plan.backward.fill, "triton"), (added, "triton_atomic"))
            return Kernels("triton", back if fill <= most else "dense", "triton")
    stored = len(index) / max(1, geometry.dense_products // max(1, prod(geometry.positions)))
    has_csr = geometry.is_linear and x.dtype in (torch.float32, torch.float64)
    return _CSR_ONLY if has_csr and stored <= _MOST_STORED[tensor_cores] else DENSE


def _cheapest(x: Tensor, index: Tensor, geometry: Geometry, moments: bool, has_numba: bool) -> Kernels:
    linear, non_zeros, batch = geometry.is_linear, len(index), len(x)
    products, vectors = non_zeros * prod(geometry.positions), max(batch, VECTOR // x.itemsize)
    numbers = geometry.inputs * prod(geometry.sizes) + geometry.outputs * prod(geometry.positions)
    kernel, sums = "numba", _SUM_START + products * vectors * (_SUMS if moments else _SUM)
    dots = non_zeros * (_VALUES if moments else _VALUE) + products * batch * (_DOTS if moments else _DOT)
    if has_numba and kernel_block(index, geometry):
        kernel, sweeps = "blocks", 2 if moments else 1
        sums, dots = (
            sweeps * (_BLOCK_START + (products * each + numbers * _TOUCH) * vectors) for each in (_BLOCK, _BLOCK_DOT)
        )
    csr = inf
    if not has_numba:
        sums = dots = inf
    if linear and torch.backends.mkl.is_available():
        csr = (_CSR_START + products * batch * _CSR) * (2 if moments else 1)
    sweep = batch * numbers * _SWEEP
    dense = (geometry.dense_products * batch * _DENSE + sweep) * (2 if moments else 1)
    moved, is_innermost = _COPY * x.numel(), x.movedim(0, -1).is_contiguous()
    if min(sums, csr) + (0 if is_innermost else moved) > dense + (moved if is_innermost else 0):
        return DENSE
    product = "csr" if csr < sums else kernel
    return Kernels(product, product, "csr" if csr < dots else kernel)
