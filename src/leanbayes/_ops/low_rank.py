"""Numerics for covariances that are known by a few factors: guarded quotients and roots, and W C Wᵀ in few factors."""

from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes._ops.matrix_products import times_matrix
from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes._tracing import computed_once, inside

__all__ = ["Runs", "bounded", "for_linear_algebra", "map_covariance", "map_runs", "quotient", "root", "rows_times"]

_NEARLY_ZERO = 1e-30
_RIDGE = 1e-5  # is added to the covariance of the directions, whose mean variance is 1, so that it has an inverse


def quotient(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole; where the whole is zero, return the part, which is then zero up to rounding."""
    return part / torch.where(whole > _NEARLY_ZERO, whole, 1)


def root(value: Tensor) -> Tensor:
    """Return √value, whose gradient at 0 is 0."""
    if not torch.is_grad_enabled():
        return value.clamp_min(0).sqrt()
    result: Tensor = SafeSqrt.apply(value)
    return result


def bounded(loadings: Tensor, factor: Tensor) -> Tensor:
    """Return factor·φ, shrunk where Σ_k (factor·φ_k)², a fraction of a variance, would exceed 1."""
    whole = loadings.square().sum(0) * factor.square()
    return loadings * (factor * torch.where(whole > 1, whole, 1).rsqrt())


def for_linear_algebra(value: Tensor) -> Tensor:
    """Return ``value`` in a type for which torch has decompositions: half precision becomes float32."""
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def rows_times(value: Tensor, matrix: Tensor) -> Tensor:
    """Return value @ matrixᵀ as one product; torch would run one for each example if the axes cannot be merged."""
    return times_matrix(value.reshape(-1, value.shape[-1]), matrix).view(*value.shape[:-1], len(matrix))


def map_covariance(
    weight: Tensor, variance: Tensor, common: Tensor, loadings: Tensor | None, rank: int
) -> tuple[Tensor, Tensor]:
    """Return the diagonal of W C Wᵀ, and factors F with FᵀF ≈ W C Wᵀ.

    C = diag(common − Σ_k f_k²) + Σ_k f_k f_kᵀ with the factors f_k = φ_k √variance. Nyström's formula
    C' Ω (Ωᵀ C' Ω)⁻¹ Ωᵀ C' cuts C' = W C Wᵀ back to ``rank`` factors, where Ω are directions that W favours.

    Args:
        weight: W, of shape (out, in).
        variance: The variance of the input, of shape (..., in).
        common: The part of that variance that takes part in C.
        loadings: φ, of shape (factors, ..., in); None if C is diagonal.
        rank: How many factors to keep.
    """
    alone, factors = common, None
    if loadings is not None:
        factors = loadings * root(variance)
        alone = (common - factors.square().sum(0)).clamp_min(0)
    diagonal = rows_times(alone, weight.square())
    q = weight.mT @ _directions(weight, min(rank, *weight.shape))
    z = alone.unsqueeze(-2) * q.mT  # (C WᵀΩ)ᵀ: ..., directions, in
    if factors is not None:
        diagonal = diagonal + rows_times(factors, weight).square().sum(0)
        z = z + torch.einsum("f...i,f...k->...ki", factors, rows_times(factors, q.mT))
    return diagonal, _cut(rows_times(z, weight), rows_times(z, q.mT), weight.dtype)


class Runs(NamedTuple):
    """Loadings that are equal within runs of neighbouring inputs, such as the pixels of a channel in a row.

    Attributes:
        loadings: One loading for each run, of shape (factors, examples, runs).
        length: How many inputs a run has.
    """

    loadings: Tensor
    length: int

    def spelled_out(self) -> Tensor:
        """Return a loading for each input, of shape (factors, examples, in)."""
        return self.loadings.repeat_interleave(self.length, -1)


def map_runs(weight: Tensor, variance: Tensor, runs: Runs, rank: int) -> tuple[Tensor, Tensor]:
    """Do as `map_covariance` for loadings by runs, if the whole variance takes part in C, with far fewer products.

    W f_k = Σ_r φ_kr Σ_i W_oi σ_i, whose inner sum over the inputs i of a run r serves all factors. The diagonal is
    exact. For the factors of the output, the part of C on its diagonal counts with its mean over each run, so that
    Σ_i W_oi c_i q_i becomes c̄_r Σ_i W_oi q_i, which does not depend on the example.

    Args:
        weight: W, of shape (out, in).
        variance: The variance of the input, of shape (examples, in).
        runs: The loadings.
        rank: How many factors to keep.
    """
    (count, size), length = variance.shape, runs.length
    by_run = weight.view(len(weight), size // length, length).movedim(0, -1)  # runs, inputs of a run, out
    loadings = runs.loadings.movedim(1, 0)  # examples, factors, runs
    deviation = root(variance).view(count, -1, length).transpose(0, 1)  # runs, examples, inputs of a run
    own = (1 - loadings.square().sum(1)).clamp_min(0)  # what is left of each variance beside the factors
    alone = own.unsqueeze(-1) * variance.view(count, -1, length)
    factors = loadings @ (deviation @ by_run).transpose(0, 1)  # W f_k: examples, factors, out
    diagonal = rows_times(alone.flatten(1), weight.square()) + factors.square().sum(1)
    q = (weight.mT @ _directions(weight, min(rank, *weight.shape))).view(-1, length, min(rank, *weight.shape))
    onto = loadings @ (deviation @ q).transpose(0, 1)  # f_kᵀ q: examples, factors, directions
    level = alone.mean(-1)
    y = (level @ (q.mT @ by_run).flatten(1)).view(count, q.shape[-1], -1) + onto.mT @ factors
    inner = (level @ (q.mT @ q).flatten(1)).view(count, q.shape[-1], -1) + onto.mT @ onto
    return diagonal, _cut(y, inner, weight.dtype)


def _cut(y: Tensor, inner: Tensor, dtype: torch.dtype) -> Tensor:
    """Return L⁻¹y with LLᵀ = inner: the factors of Nyström's formula for y = ΩᵀC' and inner = ΩᵀC'Ω."""
    y, inner = for_linear_algebra(y), for_linear_algebra(inner)
    size = inner.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    noisy = size > _NEARLY_ZERO
    size = torch.where(noisy, size, 1)
    eye = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    triangle, _ = torch.linalg.cholesky_ex(torch.where(noisy, inner / size, eye) + _RIDGE * eye)
    # the triangle is small: it is cheaper to invert it and multiply than to solve with every column of y
    inverse = torch.linalg.solve_triangular(triangle, eye.expand_as(triangle), upper=False)
    mapped = inverse @ torch.where(noisy, y * size.rsqrt(), 0)
    factors: Tensor = mapped.movedim(-2, 0).to(dtype)
    return factors


def _directions(weight: Tensor, rank: int) -> Tensor:
    """Return about the largest left singular vectors of W, by one step of power iteration from fixed numbers."""
    iterated = weight @ (weight.mT @ inside(_start(weight.shape[0], rank)).to(weight))
    with torch.no_grad():  # the result depends only on the space that the directions span
        triangle = torch.linalg.qr(for_linear_algebra(iterated), mode="r").R
        least = triangle.diagonal().abs().max() * 1e-6 + _NEARLY_ZERO
        signs = torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(triangle)
        inverse = torch.linalg.inv(triangle + torch.diag(least * signs)).to(weight.dtype)
    directions: Tensor = iterated @ inverse
    return directions


@computed_once
def _start(n: int, rank: int) -> Tensor:
    return torch.randn(n, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
