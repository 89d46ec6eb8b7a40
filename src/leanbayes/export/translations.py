"""Decompositions of small matrices in the operators of ONNX, which has none of its own.

A pass of moments with factors (``rank`` > 0) decomposes one matrix for each example, of as many rows as there are
factors: with the default rank 8, a Cholesky factor of 8 rows in each layer, and eigenvectors of 24 rows where a
residual connection brings more than 16 factors together. The number of rows is known when a graph is made, so the loops
over rows are written out; the loop over rotations, of which there are hundreds, is one of ONNX. The matrices are
decomposed in float64, because hundreds of rotations in float32 lose two digits, and come back in their own type.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import DOUBLE, INT64, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

__all__ = ["TRANSLATIONS", "cholesky", "eigh", "ndtr", "solve_triangular", "tournament"]

_SWEEPS = 8  # of Jacobi's method, whose error is squared in each of the last sweeps


def cholesky(matrix: Any, upper: bool = False, check_errors: bool = False) -> Any:  # noqa: ARG001
    """Write the factor L of A = L Lᵀ column by column: l = A[:, j] / √A[j, j], then A − l lᵀ goes on."""
    given, rows = matrix, _rows(matrix)
    assert not upper
    matrix = _wide(matrix)
    columns = []
    rest = matrix
    for j in range(rows):
        column = _part(rest, j, -1)
        pivot = op.Sqrt(_part(column, j, -2))
        below = _constant(np.arange(rows)[:, None] >= j)
        column = op.Mul(op.Div(column, pivot), below)
        columns.append(column)
        if j + 1 < rows:
            rest = op.Sub(rest, op.Mul(column, _turned(column, len(given.shape))))
    return op.CastLike(op.Concat(*columns, axis=-1), given), op.Constant(value_int=0)


def solve_triangular(triangle: Any, right: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """Write L⁻¹ B row by row: x_i = (b_i − Σ_{j<i} L_ij x_j) / L_ii."""
    given, rows = triangle, _rows(triangle)
    assert left
    assert not upper
    assert not unitriangular
    triangle, right = _wide(triangle), _wide(right)
    solved: Any = None
    for i in range(rows):
        row = _part(triangle, i, -2)
        b = _part(right, i, -2)
        if solved is not None:
            before = op.Slice(row, _ints(0), _ints(i), _ints(-1))
            b = op.Sub(b, op.MatMul(before, solved))
        x = op.Div(b, _part(row, i, -1))
        solved = x if solved is None else op.Concat(solved, x, axis=-2)
    return op.CastLike(solved, given)


def eigh(matrix: Any, UPLO: str = "L", compute_v: bool = True) -> Any:  # noqa: ARG001, N803
    """Write eigenvalues and eigenvectors by Jacobi's method, with rotations of disjoint pairs side by side.

    Row 2i is rotated against row 2i + 1, for all i at once. Then the rows move on as players do in a round-robin
    tournament, so that after n − 1 rounds every row has met every other: that is one sweep.
    """
    n = _rows(matrix)
    given, matrix = matrix, op.Reshape(_wide(matrix), _ints(-1, n, n))
    even = n + n % 2
    if even > n:  # one more row, whose eigenvalue is below all others, so that it comes out first
        lowest = op.Sub(op.Neg(op.ReduceSum(op.Abs(matrix), _ints(-1, -2), keepdims=1)), _constant(np.ones((1, 1))))
        padded = op.Pad(matrix, _ints(0, 0, 0, 0, 1, 1))
        corner = np.zeros((even, even))
        corner[-1, -1] = 1
        matrix = op.Add(padded, op.Mul(lowest, _constant(corner)))
    swap = np.kron(np.eye(even // 2), np.array([[0, 1], [1, 0]]))
    sign = np.tile([1, -1], even // 2)[:, None]
    values, vectors = _jacobi(
        matrix,
        _constant(np.eye(even)),
        _constant(swap),
        _constant(sign),
        _constant(np.ones((even, 1))),
        _constant(tournament(even)),
        op.Constant(value_int=_SWEEPS * (even - 1)),
    )
    values, order = op.TopK(op.Reshape(values, _ints(-1, even)), _ints(even), axis=-1, largest=0, sorted=1)
    order = op.Expand(op.Unsqueeze(order, _ints(-2)), op.Shape(vectors))
    vectors = op.GatherElements(vectors, order, axis=-1)
    if even > n:
        values = op.Slice(values, _ints(1), _ints(even), _ints(-1))
        vectors = op.Slice(vectors, _ints(0, 1), _ints(n, even), _ints(-2, -1))
    shape = op.Shape(given)
    values = op.Reshape(values, op.Slice(shape, _ints(0), _ints(-1), _ints(0)))
    return op.CastLike(values, given), op.CastLike(op.Reshape(vectors, shape), given)


def tournament(n: int) -> Any:
    """Return the permutation, as a matrix, that brings n rows in pairs to the next round of a tournament.

    The first of the upper row stays; all others move one seat on around the table.
    """
    upper, lower = list(range(0, n, 2)), list(range(1, n, 2))
    if n > 2:
        moved_upper = [upper[0], lower[0], *upper[1:-1]]
        moved_lower = [*lower[1:], upper[-1]]
    else:
        moved_upper, moved_lower = upper, lower
    sources = [row for pair in zip(moved_upper, moved_lower, strict=True) for row in pair]
    matrix = np.zeros((n, n))
    matrix[sources, np.arange(n)] = 1
    return matrix


@script(Opset("leanbayes", 1), default_opset=op)
def _jacobi(
    matrix: DOUBLE[...],
    eye: DOUBLE[...],
    swap: DOUBLE[...],
    sign: DOUBLE[...],
    ones: DOUBLE[...],
    tournament: DOUBLE[...],
    rounds: INT64,
) -> tuple[DOUBLE[...], DOUBLE[...]]:
    """Rotate until all numbers off the diagonal are gone.

    ``sign`` is 1 at the first row p of each pair and −1 at its second row q.
    """
    current = matrix
    vectors = op.Add(op.Mul(matrix, 0.0), eye)
    for _ in range(rounds):
        own = op.MatMul(op.Mul(current, eye), ones)
        off = op.MatMul(op.Mul(current, swap), ones)  # a_pq at both rows of a pair
        gap = op.Mul(op.Sub(op.MatMul(swap, own), own), sign)  # a_qq − a_pp at both rows
        # tan = 2a / (gap ± √(gap² + 4a²)) with the sign of the gap: the smaller of the two angles
        length = op.Sqrt(op.Add(op.Mul(gap, gap), op.Mul(op.Mul(off, off), 4.0)))
        direction = op.Sub(1.0, op.Mul(op.CastLike(op.Less(gap, 0.0), gap), 2.0))
        whole = op.Add(op.Abs(gap), length)
        whole = op.Add(whole, op.CastLike(op.Equal(whole, 0.0), whole))
        tangent = op.Div(op.Mul(op.Mul(off, 2.0), direction), whole)
        cosine = op.Reciprocal(op.Sqrt(op.Add(op.Mul(tangent, tangent), 1.0)))
        sine = op.Mul(op.Mul(tangent, cosine), sign)
        turn = op.MatMul(op.Add(op.Mul(cosine, eye), op.Mul(sine, swap)), tournament)
        current = op.MatMul(op.Transpose(turn, perm=[0, 2, 1]), op.MatMul(current, turn))
        vectors = op.MatMul(vectors, turn)
    return op.MatMul(op.Mul(current, eye), ones), vectors


def ndtr(x: Any) -> Any:
    """Write P(z < x) = ½ (1 + erf(x/√2))."""
    return op.Mul(op.Add(op.Erf(op.Mul(x, _like(0.5**0.5, x))), _like(1.0, x)), _like(0.5, x))


TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.linalg_cholesky_ex.default: cholesky,
    torch.ops.aten.linalg_solve_triangular.default: solve_triangular,
    torch.ops.aten._linalg_eigh.default: eigh,
    torch.ops.aten.special_ndtr.default: ndtr,
}
"""The functions that write an operation of torch in the operators of ONNX, by the operation."""


def _rows(matrix: Any) -> int:
    return int(matrix.shape[-1])


def _part(value: Any, place: int, axis: int) -> Any:
    """Return one row or column, with its axis kept."""
    return op.Slice(value, _ints(place), _ints(place + 1), _ints(axis))


def _turned(column: Any, count: int) -> Any:
    """Return the transposes of columns (…, n, 1), which have ``count`` axes."""
    axes = list(range(count))
    return op.Transpose(column, perm=[*axes[:-2], axes[-1], axes[-2]])


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=list(values))


def _wide(value: Any) -> Any:
    return op.Cast(value, to=ir.DataType.DOUBLE)


def _constant(values: Any) -> Any:
    return op.Constant(value=ir.tensor(np.asarray(values, dtype=np.float64)))


def _like(value: float, other: Any) -> Any:
    return op.CastLike(_constant(value), other)
