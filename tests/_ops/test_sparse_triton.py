"""The kernels of Triton: numbers by its interpreter, code by its compiler, devices and waits by meta tensors."""

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops import sparse, sparse_triton_launch
from leanbayes._ops.sparse import conv, conv_halves, conv_moments, linear_moments
from leanbayes._ops.sparse_choice import KERNELS
from leanbayes._ops.sparse_products import counting
from leanbayes._ops.sparse_triton_plan import triton_plan_of
from tests._ops.cases import pattern

ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@needs_triton
def test_the_kernels_equal_dense_operations_in_tritons_interpreter():
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/_ops/interpreted_triton.py"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]


POINTERS = {"x", "y", "by", "mean", "variance", "out", "spread", "g", "q"}
INDICES = {"pointer", "channel", "shift_d", "shift_h", "shift_w", "chunk_row", "chunk_start"}


@needs_triton
@pytest.mark.parametrize(
    ("name", "dtype", "precision", "options"),
    [
        ("gather", "fp32", "tf32", {"two": True, "squares": True}),
        ("gather", "bf16", "ieee", {"two": True, "squares": False}),
        ("scatter", "fp32", "tf32", {"two": True}),
        ("correlate", "fp16", "ieee", {"two": True}),
    ],
)
def test_the_kernels_compile_for_a_gpu_that_is_not_there(name, dtype, precision, options):
    """The interpreter accepts what the compiler refuses. The products must use tensor cores."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from leanbayes._ops import sparse_triton_kernels

    kernel = getattr(sparse_triton_kernels, name)
    constants = {
        **options, "innermost": False, "checked": 2, "block_k": 16, "block_n": 64, "precision": precision,
        "widen": False,
    }  # fmt: skip
    kinds = dict.fromkeys(INDICES, "*i32") | dict.fromkeys(POINTERS, f"*{dtype}")
    kinds |= {"of_mean": "*fp32", "of_variance": "*fp32"} | dict.fromkeys(constants, "constexpr")
    if name == "scatter":
        kinds["out"] = "*fp32"
    signature = {argument: kinds.get(argument, "i32") for argument in kernel.arg_names}
    built = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", 80, 32)
    )
    assert "mma.sync" in built.asm["ptx"]
    assert len(built.asm["cubin"]) > 0


@pytest.fixture
def launched(monkeypatch):
    """Kernels that note their arguments and do nothing, and plans whose tensors lie on the meta device."""
    calls = []

    class Kernel:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            assert len(grid) == 1
            assert 0 < grid[0] < 2**31
            return lambda *arguments, **options: calls.append((self.name, arguments))

    def on_meta(columns):
        shifts = tuple(shift.to("meta") for shift in columns.shifts)
        moved = {name: getattr(columns, name).to("meta") for name in ("place", "pointer", "channel")}
        return replace(columns, shifts=shifts, **moved)

    def planned(index, geometry):
        plan = triton_plan_of(CPU_INDEX[index.numel()], geometry)
        chunks = tuple(chunk.to("meta") for chunk in plan.chunks)
        return replace(plan, forward=on_meta(plan.forward), backward=on_meta(plan.backward), chunks=chunks)

    module = SimpleNamespace(**{name: Kernel(name) for name in ("gather", "scatter", "correlate")})
    monkeypatch.setitem(sys.modules, "leanbayes._ops.sparse_triton_kernels", module)
    monkeypatch.setattr("leanbayes._ops.sparse_triton_kernels", module, raising=False)
    monkeypatch.setattr(sparse_triton_launch, "triton_plan_of", planned)
    return calls


CPU_INDEX: dict[int, torch.Tensor] = {}


@pytest.mark.parametrize("way", ["triton", "triton_atomic"])
@pytest.mark.parametrize("shape", [(20, 3, 3, 3), (20, 30)])
def test_a_step_asks_the_device_nothing_and_stays_on_it(shape, way, launched, monkeypatch):
    """A meta tensor has no values: reading one raises, and so does an operation with a tensor of another device."""
    monkeypatch.setattr(sparse, "choose", lambda *_: KERNELS[way])
    index, mean, variance = pattern(shape, 0.1, torch.float32)
    CPU_INDEX[len(index)] = index
    x = torch.zeros(4, 30) if len(shape) == 2 else torch.zeros(4, 3, 6, 6)
    leaves = [leaf.to("meta").requires_grad_() for leaf in (x, mean, variance)]
    moments = linear_moments if len(shape) == 2 else conv_moments
    m, v = moments(leaves[0], index.to("meta"), shape, *leaves[1:])
    (m.sum() + v.sum()).backward()
    assert [leaf.grad.shape for leaf in leaves] == [leaf.shape for leaf in leaves]
    second = "gather" if way == "triton" else "scatter"
    assert [name for name, _ in launched] == ["gather", second, "correlate"]
    tensors = [a for _, arguments in launched for a in arguments if isinstance(a, torch.Tensor)]
    assert {a.device.type for a in tensors} == {"meta"}
    if len(shape) == 4:
        halves = conv_halves(leaves[0], index.to("meta"), shape, *leaves[1:])
        halves.sum().backward()
        assert halves.shape == m.shape


def test_products_are_counted_once_for_each_stored_weight(launched, monkeypatch):
    monkeypatch.setattr(sparse, "choose", lambda *_: KERNELS["triton"])
    index, mean, _ = pattern((20, 3, 3, 3), 0.1, torch.float32)
    CPU_INDEX[len(index)] = index
    x = torch.zeros(4, 3, 6, 6, device="meta", requires_grad=True)
    with counting() as counts:
        conv(x, index.to("meta"), (20, 3, 3, 3), mean.to("meta").requires_grad_()).sum().backward()
    assert counts == [2 * len(index) * 4 * 4 * 4] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("way", ["triton", "triton_atomic"])
def test_on_a_gpu(way):
    index, mean, _ = pattern((40, 24, 3, 3), 0.05, torch.float32)
    x = torch.randn(8, 24, 9, 9)
    leaves = [leaf.cuda().requires_grad_() for leaf in (x, mean)]
    y = conv(leaves[0], index.cuda(), (40, 24, 3, 3), leaves[1], 2, 1, kernel=way)
    y.square().sum().backward()
    exact = [leaf.double().requires_grad_() for leaf in (x, mean)]
    weight = exact[1].new_zeros(40 * 24 * 9).index_copy(0, index, exact[1]).view(40, 24, 3, 3)
    z = F.conv2d(exact[0], weight, None, 2, 1)
    z.square().sum().backward()
    # TF32 has 10 bits after the point, so a product of two numbers is wrong by 10⁻³ at most.
    for ours, theirs in [(y, z), *((one.grad, other.grad) for one, other in zip(leaves, exact, strict=True))]:
        torch.testing.assert_close(ours.double().cpu(), theirs, rtol=0, atol=4e-3 * float(theirs.detach().abs().max()))
