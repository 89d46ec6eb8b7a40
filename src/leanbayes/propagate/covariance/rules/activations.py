"""Elementwise functions of correlated Gaussian numbers: ReLU exactly, smooth functions by a series in ρ."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.covariance.gaussian import (
    Rectified,
    hermite_coefficients,
    inverse_deviation,
    series,
    with_diagonal,
)
from leanbayes.propagate.covariance.tensor import RULES, CovarianceTensor, only_first
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.gaussian import rectified

__all__ = ["absolute", "leaky", "relu", "smooth"]

GAUSSIAN = "Gaussian inputs; covariances within 3e-5 of the variance"
_TERMS = 6


@RULES.rule(F.relu, torch.relu, Tensor.relu, exact=True, assumes=GAUSSIAN)
def relu(operation: Operation, input: Any) -> CovarianceTensor:
    """Compute the covariance of max(z, 0)."""
    x = only_first(operation, input)
    return _two_slopes(x, operation(x.expected), 0.0)


@RULES.rule(F.leaky_relu, torch._C._nn.leaky_relu, exact=True, assumes=GAUSSIAN)
def leaky(operation: Operation, input: Any, negative_slope: float = 0.01) -> CovarianceTensor:
    """Compute the covariance of s·z + (1-s)·relu(z)."""
    x = only_first(operation, input)
    return _two_slopes(x, operation(x.expected, negative_slope), negative_slope)


@RULES.rule(torch.abs, Tensor.abs, torch.absolute, Tensor.absolute, exact=True, assumes=GAUSSIAN)
def absolute(operation: Operation, input: Any) -> CovarianceTensor:
    """Compute the covariance of |z| = 2·relu(z) - z."""
    x = only_first(operation, input)
    return _two_slopes(x, operation(x.expected), -1.0)


def _two_slopes(x: CovarianceTensor, at_mean: Tensor, slope: float) -> CovarianceTensor:
    """Compute the covariance of s·z + (1-s)·r with r = relu(z).

    It is s²Σ + (1-s)² Cov(r, r') + s(1-s) Σ (P(z > 0) + P(z' > 0)).
    """
    mean = x.by_block(x.expected)
    shift, variance, inside = rectified(mean, x.variance)
    bend = 1 - slope
    if x.blocks.shape[-1] == 1:
        blocks = variance.unsqueeze(-1)
    else:
        numbers = (mean, SafeSqrt.apply(x.variance), variance)
        pairs: Tensor = Rectified.apply(x.blocks.flatten(0, 1), *(value.flatten(0, 1) for value in numbers))
        blocks = pairs.view(x.blocks.shape)
    if slope != 0:
        either = inside.unsqueeze(-1) + inside.unsqueeze(-2)
        blocks = bend**2 * blocks + x.blocks * (slope**2 + slope * bend * either)
    return x.like(at_mean + bend * shift.view(x.shape), blocks)


@RULES.rule(
    *(F.gelu, F.silu, F.mish, F.softplus, F.logsigmoid, F.softsign, F.tanhshrink, F.sigmoid, F.tanh, F.elu, F.selu),
    *(torch.sigmoid, Tensor.sigmoid, torch.special.expit, torch.tanh, Tensor.tanh, torch._C._nn.silu),
    *(torch.exp, Tensor.exp, torch.square, Tensor.square),
    exact=False,
    assumes="Gaussian inputs; six terms of a series in the correlation: within 2e-3 of the variance up to σ = 1",
)
def smooth(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> CovarianceTensor:
    """Cov(f, f') = Σ_k ρᵏ a_k a'_k / k! with a_k = σᵏ E f⁽ᵏ⁾(z): the first term is VDP++'s slope, averaged."""
    x = only_first(operation, input, *args, *kwargs.values())

    def function(z: Tensor) -> Tensor:
        return operation(z, *args, **kwargs)

    mean = x.by_block(x.expected)
    deviation, inverse = SafeSqrt.apply(x.variance), inverse_deviation(x.variance)
    shift, variance, coefficients = hermite_coefficients(function, mean, deviation, _TERMS)
    if x.blocks.shape[-1] == 1:
        blocks = variance.unsqueeze(-1)
    else:
        rho = x.blocks * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
        blocks = with_diagonal(series(rho, coefficients), variance)
    return x.like(function(x.expected) + shift.view(x.shape), blocks)
