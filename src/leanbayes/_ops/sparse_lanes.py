"""Vectors of numbers as values in numba code, so that a sum over non-zeros stays in registers until it is stored.

numba cannot tell that two arrays do not overlap, so a loop that adds to an array writes it back at every step. A value
of type `Lanes` is an LLVM vector, which no array can overlap. A vector wider than the registers of the machine takes
several of them.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _untyped
from numba.extending import models, register_model

__all__ = ["BYTES", "add", "add_product", "add_scaled", "fetch", "load", "product", "store", "total", "zeros"]

BYTES = 128  # two sums of this width take half the registers of AVX2, and keep its multipliers busy
_LINE = 64  # bytes of a cache line
_FAST = ("contract", "nsz")  # a product and a sum may be one instruction
_operation: Any = _untyped
_Typed = tuple[Any, Callable[..., Any]]


class Lanes(types.Type):
    """The numba type of a vector of ``width`` numbers of one type."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        number = ir.FloatType() if kind.dtype.bitwidth == 32 else ir.DoubleType()
        super().__init__(manager, kind, ir.VectorType(number, kind.width))


@_operation
def zeros(typing: Any, array: Any) -> _Typed:  # noqa: ARG001
    """Return a vector of zeros of the type of an array."""
    kind = _lanes_of(array)

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return ir.Constant(context.get_value_type(kind), [0.0] * kind.width)

    return kind(array), build


@_operation
def load(typing: Any, array: Any, position: Any) -> _Typed:  # noqa: ARG001
    """Return the numbers from ``position`` on."""
    kind = _lanes_of(array)

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature, values, context.get_value_type(kind))
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return kind(array, types.intp), build


@_operation
def fetch(typing: Any, array: Any, position: Any) -> _Typed:  # noqa: ARG001
    """Prefetch the cache lines of the vector from ``position`` on, which may lie outside of the array."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        line, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        first = _pointer(context, builder, signature, values, ir.IntType(8))
        to_read, into_every_cache, data = (ir.Constant(number, value) for value in (0, 3, 1))
        for byte in range(0, BYTES, _LINE):
            builder.call(ask, [builder.gep(first, [ir.Constant(number, byte)]), to_read, into_every_cache, data])
        return context.get_dummy_value()

    return types.none(array, types.intp), build


@_operation
def store(typing: Any, array: Any, position: Any, lanes: Any) -> _Typed:  # noqa: ARG001
    """Write the numbers from ``position`` on."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature, values, values[2].type)
        builder.store(values[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), build


@_operation
def add(typing: Any, a: Any, b: Any) -> _Typed:  # noqa: ARG001
    """Return a + b."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return builder.fadd(*values, flags=_FAST)

    return a(a, b), build


@_operation
def product(typing: Any, a: Any, b: Any) -> _Typed:  # noqa: ARG001
    """Return a·b."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return builder.fmul(*values, flags=_FAST)

    return a(a, b), build


@_operation
def add_product(typing: Any, a: Any, b: Any, c: Any) -> _Typed:  # noqa: ARG001
    """Return a + b·c."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return builder.fadd(values[0], builder.fmul(*values[1:], flags=_FAST), flags=_FAST)

    return a(a, b, c), build


@_operation
def add_scaled(typing: Any, a: Any, number: Any, c: Any) -> _Typed:  # noqa: ARG001
    """Return a + n·c for one number n."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        lanes = values[2].type
        nothing, index = ir.Constant(lanes, ir.Undefined), ir.IntType(32)
        first = builder.insert_element(nothing, values[1], ir.Constant(index, 0))
        every = ir.Constant(ir.VectorType(index, lanes.count), [0] * lanes.count)
        scaled = builder.fmul(builder.shuffle_vector(first, nothing, every), values[2], flags=_FAST)
        return builder.fadd(values[0], scaled, flags=_FAST)

    return a(a, a.dtype, c), build


@_operation
def total(typing: Any, a: Any) -> _Typed:  # noqa: ARG001
    """Return the sum of the numbers."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        lanes = values[0].type
        name = f"llvm.vector.reduce.fadd.v{lanes.count}f{a.dtype.bitwidth}"
        kind = ir.FunctionType(lanes.element, [lanes.element, lanes])
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(reduce, [ir.Constant(lanes.element, 0.0), values[0]], fastmath=("reassoc",))

    return a.dtype(a), build


def _lanes_of(array: Any) -> Lanes:
    return Lanes(array.dtype, BYTES * 8 // array.dtype.bitwidth)


def _pointer(context: Any, builder: Any, signature: Any, values: Any, lanes: Any) -> Any:
    """Return a pointer to the vector in the array of the first argument, from the position of the second on."""
    data = context.make_array(signature.args[0])(context, builder, values[0]).data
    return builder.bitcast(builder.gep(data, [values[1]]), lanes.as_pointer())
