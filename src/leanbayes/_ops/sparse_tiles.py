"""Tiles: a few vectors of numbers as one value in numba code, so that the sums of a whole block stay in registers.

A tile has ``ROWS`` rows, one for each of as many neighbouring channels, and a row is a vector of ``BYTES`` bytes. All
weights of a block meet the same inputs, so one load of the inputs serves all rows of a tile. The rows, the inputs and a
weight fit into the registers of the machine together.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _untyped
from numba.extending import models, register_model

from leanbayes._ops.sparse_lanes import Lanes

__all__ = [
    "BYTES",
    "ROWS",
    "add_outer",
    "add_rows",
    "add_totals",
    "inner",
    "load_lanes",
    "load_rows",
    "skip",
    "store_rows",
    "zero_rows",
]

ROWS, BYTES = (8, 128) if llvm.get_host_cpu_features().get("avx512f", False) else (4, 64)
_FAST = ("contract", "nsz")  # a product and a sum may be one instruction
_INDEX = ir.IntType(32)
_operation: Any = _untyped
_Typed = tuple[Any, Callable[..., Any]]


class Tile(types.Type):
    """The numba type of ``ROWS`` vectors of ``width`` numbers of one type."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Tile({dtype}, {width})")

    @property
    def row(self) -> Lanes:
        """The type of one row."""
        return Lanes(self.dtype, self.width)


@register_model(Tile)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Tile) -> None:
        number = ir.FloatType() if kind.dtype.bitwidth == 32 else ir.DoubleType()
        super().__init__(manager, kind, ir.ArrayType(ir.VectorType(number, kind.width), ROWS))


@_operation
def zero_rows(typing: Any, array: Any) -> _Typed:  # noqa: ARG001
    """Return a tile of zeros of the type of an array."""
    kind = _tile_of(array)

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return ir.Constant(context.get_value_type(kind), None)

    return kind(array), build


@_operation
def load_lanes(typing: Any, array: Any, position: Any) -> _Typed:  # noqa: ARG001
    """Return one row of numbers from ``position`` on."""
    kind = _tile_of(array).row

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _data(context, builder, signature.args[0], values[0])
        return _load(builder, data, values[1], context.get_value_type(kind))

    return kind(array, types.intp), build


@_operation
def load_rows(typing: Any, array: Any, position: Any, step: Any) -> _Typed:  # noqa: ARG001
    """Return the numbers from ``position`` on, and those of the other rows, each ``step`` numbers further on."""
    kind = _tile_of(array)

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _data(context, builder, signature.args[0], values[0])
        tile, lanes = ir.Constant(context.get_value_type(kind), ir.Undefined), context.get_value_type(kind.row)
        for row, position in enumerate(_positions(builder, values[1], values[2])):
            tile = builder.insert_value(tile, _load(builder, data, position, lanes), row)
        return tile

    return kind(array, types.intp, types.intp), build


@_operation
def store_rows(typing: Any, array: Any, position: Any, step: Any, tile: Any) -> _Typed:  # noqa: ARG001
    """Write the rows as `load_rows` reads them."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _data(context, builder, signature.args[0], values[0])
        for row, position in enumerate(_positions(builder, values[1], values[2])):
            _store(builder, data, position, builder.extract_value(values[3], row))
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, tile), build


@_operation
def add_outer(typing: Any, tile: Any, weights: Any, position: Any, lanes: Any) -> _Typed:  # noqa: ARG001
    """Return the tile with rows + wᵣ·lanes, where w are the weights from ``position`` on, one for each row."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        result, lanes_ = values[0], values[3]
        data = _data(context, builder, signature.args[1], values[1])
        for row in range(ROWS):
            scaled = builder.fmul(_weight(builder, data, values[2], row, lanes_.type), lanes_, flags=_FAST)
            total = builder.fadd(builder.extract_value(result, row), scaled, flags=_FAST)
            result = builder.insert_value(result, total, row)
        return result

    return tile(tile, weights, types.intp, lanes), build


@_operation
def inner(typing: Any, tile: Any, weights: Any, position: Any) -> _Typed:  # noqa: ARG001
    """Return Σᵣ wᵣ·rowᵣ, where w are the weights from ``position`` on."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _data(context, builder, signature.args[1], values[1])
        terms = []
        for row in range(ROWS):
            lanes = builder.extract_value(values[0], row)
            terms.append(builder.fmul(_weight(builder, data, values[2], row, lanes.type), lanes, flags=_FAST))
        sums = terms[:2]  # two chains, because each sum waits for the one before
        for row, term in enumerate(terms[2:]):
            sums[row % 2] = builder.fadd(sums[row % 2], term, flags=_FAST)
        return builder.fadd(*sums, flags=_FAST)

    return tile.row(tile, weights, types.intp), build


@_operation
def add_rows(typing: Any, tile: Any, rows: Any, lanes: Any) -> _Typed:  # noqa: ARG001
    """Return the tile with tileᵣ + rowᵣ·lanes."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        result = values[0]
        for row in range(ROWS):
            scaled = builder.fmul(builder.extract_value(values[1], row), values[2], flags=_FAST)
            total = builder.fadd(builder.extract_value(result, row), scaled, flags=_FAST)
            result = builder.insert_value(result, total, row)
        return result

    return tile(tile, rows, lanes), build


@_operation
def add_totals(typing: Any, array: Any, position: Any, tile: Any) -> _Typed:  # noqa: ARG001
    """Add the sum of each row of a tile to the numbers of an array from ``position`` on, one for each row."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows = [builder.extract_value(values[2], row) for row in range(ROWS)]
        while rows[0].type.count > ROWS:  # the halves of a row lie in registers of their own at first
            rows = [_halved(builder, row) for row in rows]
        while len(rows) > 1:
            rows = [_neighbours(builder, *rows[i : i + 2]) for i in range(0, len(rows), 2)]
        data = _data(context, builder, signature.args[0], values[0])
        old = _load(builder, data, values[1], rows[0].type)
        _store(builder, data, values[1], builder.fadd(old, rows[0]))
        return context.get_dummy_value()

    return types.none(array, types.intp, tile), build


@_operation
def skip(typing: Any, lanes: Any, count: Any) -> _Typed:  # noqa: ARG001
    """Return lanes of which the first ``count`` are zero."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        kind = values[0].type
        number = ir.IntType(64)
        places = ir.Constant(ir.VectorType(number, kind.count), list(range(kind.count)))
        limit = _every(builder, values[1], ir.VectorType(number, kind.count))
        stays = builder.icmp_signed(">=", places, limit)
        return builder.select(stays, values[0], ir.Constant(kind, [0.0] * kind.count))

    return lanes(lanes, types.int64), build


def _tile_of(array: Any) -> Tile:
    return Tile(array.dtype, BYTES * 8 // array.dtype.bitwidth)


def _data(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, array).data


def _load(builder: Any, data: Any, position: Any, lanes: Any) -> Any:
    pointer = builder.bitcast(builder.gep(data, [position]), lanes.as_pointer())
    return builder.load(pointer, align=_bytes_of(lanes))


def _store(builder: Any, data: Any, position: Any, lanes: Any) -> None:
    pointer = builder.bitcast(builder.gep(data, [position]), lanes.type.as_pointer())
    builder.store(lanes, pointer, align=_bytes_of(lanes.type))


def _bytes_of(lanes: Any) -> int:
    return 4 if isinstance(lanes.element, ir.FloatType) else 8


def _positions(builder: Any, position: Any, step: Any) -> list[Any]:
    positions = [position]
    for _ in range(ROWS - 1):
        positions.append(builder.add(positions[-1], step))
    return positions


def _weight(builder: Any, data: Any, position: Any, row: int, lanes: Any) -> Any:
    """Return the weight of a row in all lanes."""
    place = builder.add(position, ir.Constant(position.type, row))
    return _every(builder, builder.load(builder.gep(data, [place])), lanes)


def _every(builder: Any, number: Any, lanes: Any) -> Any:
    nothing = ir.Constant(lanes, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, nothing, _places([0] * lanes.count))


def _halved(builder: Any, lanes: Any) -> Any:
    """Add the two halves of a vector."""
    half, nothing = lanes.type.count // 2, ir.Constant(lanes.type, ir.Undefined)
    low = builder.shuffle_vector(lanes, nothing, _places(range(half)))
    return builder.fadd(low, builder.shuffle_vector(lanes, nothing, _places(range(half, 2 * half))))


def _neighbours(builder: Any, first: Any, second: Any) -> Any:
    """Return the sums of neighbouring numbers: those of one vector, then those of the other."""
    count = 2 * first.type.count
    even, odd = (builder.shuffle_vector(first, second, _places(range(start, count, 2))) for start in (0, 1))
    return builder.fadd(even, odd)


def _places(numbers: Any) -> Any:
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(_INDEX, len(numbers)), numbers)
