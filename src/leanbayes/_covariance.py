"""`covariance`: mean and covariance of what a Bayesian model returns, in one pass: the original VDP."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from leanbayes._calls import call, call_with, map_tensors, prediction_tensor
from leanbayes._moments import with_variance
from leanbayes.bayesian import Bayesian, Weights
from leanbayes.propagate.covariance import CovarianceTensor, Setting, correlated, full, root

__all__ = ["covariance", "draw_jointly", "roots", "variances"]


def covariance(
    bnn: Bayesian,
    x: Any,
    *,
    input_variance: Any = None,
    limit: float = 2.0,
    weights: Weights | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
) -> tuple[Any, Any]:
    """Propagate mean and full covariance through the unmodified model: one pass, no samples, plain tensors back.

    What 002's VDP++ keeps the diagonal of. All numbers of one example are correlated as they are, through shared
    filters and layer by layer; nothing is taken as independent but the two branches of a sum. Memory grows with the
    square of the width, so this is for small models, and to hold `moments` against. Every operation needs a rule; one
    that has none raises `MissingRule`.

    Args:
        bnn: the model, with any posterior that has a variance.
        x: what the model takes: a tensor, a tuple of arguments or a mapping of them.
        input_variance: the variance of sensor noise in ``x``, as for `moments`.
        limit: the largest single covariance that may be made, in GB; more raises at once.
        weights: the random weights, where a KL shares them (see `Bayesian.weights`).
        output: which tensor, or tuple of tensors, of what the model returns.

    Returns:
        The mean (N, ...), and the covariance (N, D, D) of the D flattened outputs of each example.

    >>> bnn = Bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> mean, found = covariance(bnn, torch.ones(5, 3))
    >>> mean.shape, found.shape, bool((found.diagonal(dim1=1, dim2=2) > 0).all())
    (torch.Size([5, 2]), torch.Size([5, 2, 2]), True)
    """
    setting = Setting(bnn.model, limit)
    noisy = with_variance(x, input_variance, lambda value, noise: CovarianceTensor.independent(value, noise, setting))
    random = bnn.weights() if weights is None else weights
    if bnn._held is not None:  # at the mean, or at one draw: only the input may be random
        tensors = {name: random[name].sample(noise) for name, noise in bnn._held.items()}
    else:
        tensors = {name: CovarianceTensor.of_weight(weight, setting) for name, weight in random.items()}
    returned = call(lambda *args, **kwargs: call_with(bnn.model, tensors, args, kwargs), noisy)
    chosen = output(returned)
    return map_tensors(_mean, chosen), map_tensors(_covariance, chosen)


def variances(mean: Any, found: Any) -> Any:
    """The diagonal of covariances, in the shape of the outputs."""
    return tree_map(lambda m, c: c.diagonal(dim1=-2, dim2=-1).reshape(m.shape), mean, found)


def roots(found: Any) -> Any:
    """The root of each covariance, from which any number of draws are made."""
    return tree_map(root, found)


def draw_jointly(mean: Any, factors: Any, generator: torch.Generator | None = None) -> Any:
    """One draw of Gaussian outputs whose covariances have these `roots`; gradients reach both."""

    def draw(m: Tensor, factor: Tensor) -> Tensor:
        return m + correlated(factor, torch.randn(m.shape, dtype=m.dtype, device=m.device, generator=generator))

    return tree_map(draw, mean, factors)


def _mean(value: Tensor) -> Tensor:
    return value.expected if isinstance(value, CovarianceTensor) else value


def _covariance(value: Tensor) -> Tensor:
    if isinstance(value, CovarianceTensor):
        return full(value)
    size = value[:1].numel()
    return torch.zeros((), dtype=value.dtype, device=value.device).expand(len(value), size, size)
