"""Time sparse products on a GPU: Triton, the sparse matrices of torch, and the dense operation, part by part.

Nobody has run this script on a GPU yet, so `leanbayes._ops.sparse_choice` chooses there by arithmetic. Its limits can
be set by what this script prints: for each layer, where stored weights come in blocks of 16 outputs or one by one, the
milliseconds of the forward pass, of the gradient of the input and of the gradients of the values, relative to the
dense operation with the weight that is made dense for it. "auto" is what the library takes by itself.

    python benchmarks/sparse_gpu.py --dtype float32 --density 0.05
"""

import argparse
import itertools
import statistics
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from harness import RESULTS, write
from leanbayes._ops.sparse import conv_moments, kernels_for, linear_moments

LAYERS: dict[str, tuple[tuple[int, ...], int]] = {  # the shape of a weight, and the size of its input
    "conv 64 at 32x32": ((64, 64, 3, 3), 32),
    "conv 128 at 16x16": ((128, 128, 3, 3), 16),
    "conv 256 at 8x8": ((256, 256, 3, 3), 8),
    "conv 512 at 4x4": ((512, 512, 3, 3), 4),
    "linear 1024": ((1024, 1024), 0),
    "linear 4096": ((4096, 4096), 0),
}
KERNELS = ("dense", "triton", "triton_atomic", "csr", "auto")
BLOCK = 16


def positions(shape: tuple[int, ...], density: float, block: int) -> Tensor:
    """Return the sorted positions of a random choice of blocks of neighbouring outputs."""
    rest = prod(shape[1:])
    places = shape[0] // block * rest
    chosen = torch.randperm(places)[: max(1, round(density * places))]
    first = chosen // rest * block * rest + chosen % rest
    return (first[:, None] + torch.arange(block) * rest).flatten().sort().values.int()


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median time of the GPU between two events, after three runs that compile and warm up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measured(
    shape: tuple[int, ...], size: int, index: Tensor, batch: int, dtype: torch.dtype, kernel: str, rounds: int
) -> dict[str, float]:
    """Return the milliseconds of each product of `local` with one kernel, and the error of the forward pass."""
    device = index.device
    x = torch.randn(batch, shape[1], *[size] * (len(shape) - 2), device=device, dtype=dtype)
    mean, variance = (torch.rand(len(index), device=device, dtype=dtype) for _ in range(2))

    def product(kernel: str = kernel) -> tuple[Tensor, Tensor]:
        if size:
            return conv_moments(x, index, shape, mean, variance, padding=1, kernel=kernel)
        return linear_moments(x, index, shape, mean, variance, kernel=kernel)

    def backward(*leaves: Tensor) -> float:
        for leaf in leaves:
            leaf.requires_grad_()
        both = product()
        ones = [torch.ones_like(y) for y in both]
        time = milliseconds(lambda: torch.autograd.grad(both, leaves, ones, retain_graph=True), rounds)
        for leaf in leaves:
            leaf.requires_grad_(False)
        return time

    times = {
        "forward": milliseconds(product, rounds),
        "input": backward(x),
        "values": backward(mean, variance),
    }
    (ours, _), (dense, _) = product(), product("dense")
    return times | {"error": float((ours - dense).abs().max() / dense.abs().max())}


def main() -> None:
    """Print a table, and write it with the name of the GPU if ``--out`` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--density", type=float, nargs="+", default=[0.01, 0.05, 0.1])
    parser.add_argument(
        "--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16", "float16"]
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tf32", action="store_true", help="allow TF32 for matrices, as for convolutions")
    parser.add_argument("--out", type=Path, help=f"a file for the record, such as {RESULTS.name}/sparse_gpu.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "sparse_gpu.py measures kernels on a GPU, and torch finds none; nothing was measured\n")
    torch.manual_seed(0)
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    rows: list[dict[str, object]] = []
    cases = itertools.product(options.dtype, LAYERS.items(), options.density, (BLOCK, 1))
    for dtype, (layer, (shape, size)), density, block in cases:
        index, kind = positions(shape, density, block).cuda(), getattr(torch, dtype)
        like = torch.empty(options.batch, shape[1], *[size] * (len(shape) - 2), device="cuda", dtype=kind)
        chosen = str(kernels_for(like, index, shape, padding=1 if size else 0, moments=True))
        base: dict[str, float] = {}
        for kernel in KERNELS:
            if kernel == "csr" and (size or dtype != "float32"):
                continue
            found = measured(shape, size, index, options.batch, kind, kernel, options.rounds)
            base = base or found
            case = {"layer": layer, "dtype": dtype, "density": density, "block": block, "kernel": kernel}
            rows.append(case | {"chosen": chosen} | found)
            ratios = " ".join(f"{part} {found[part] / base[part]:6.2f}" for part in ("forward", "input", "values"))
            name = f"auto: {chosen}" if kernel == "auto" else kernel
            print(
                f"{dtype:8} {layer:17} {density:5.2f} block {block:2} {found['forward']:8.3f} ms", flush=True, end="  "
            )
            print(f"{ratios}  error {found['error']:.1e}  {name}", flush=True)
    if options.out:
        settings = vars(options) | {"out": options.out.name, "gpu": torch.cuda.get_device_name()}
        write(options.out, rows, settings)


if __name__ == "__main__":
    main()
