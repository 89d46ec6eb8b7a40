"""`moments`: mean and variance of what a Bayesian model returns, in one pass and without samples (002, VDP++)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from leanbayes._calls import call, call_with, map_tensors, prediction_tensor
from leanbayes.bayesian import Bayesian, Weights
from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.propagate.moments import MomentTensor, Setting

__all__ = ["moments", "with_variance"]

_RANK = 8


def moments(
    bnn: Bayesian,
    x: Any,
    *,
    input_variance: Any = None,
    order: str = "gaussian",
    positions: str = "split",
    rank: int | None = None,
    kernels: str | None = None,
    weights: Weights | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
) -> tuple[Any, Any]:
    """Propagate mean and variance through the unmodified model: one pass, no samples, plain tensors back.

    Every operation of the model needs a rule; one that has none raises `MissingRule`. Outputs of one layer are taken
    as independent of each other, but for what positions that share a filter have in common (``positions``) and for a
    few factors that units have in common (``rank``).

    Args:
        bnn: the model, with any posterior that has a variance.
        x: what the model takes: a tensor, a tuple of arguments or a mapping of them.
        input_variance: the variance of sensor noise in ``x``: a number, or a tensor that broadcasts to ``x``; for a
            tuple or mapping the same again, with None for what is not noisy.
        order: "gaussian", the moments of activations of a Gaussian, or "taylor", first order (eq. 4, 5).
        positions: "split", "shared" or "independent": how positions that share a random filter are taken.
        rank: how many factors of the noise the units of a layer have in common; 0 takes units as independent. By
            default 8, in trained nets 1.1 to 11 times more accurate than 0 (docs/results/moments_accuracy.json),
            and 0 while gradients are recorded: the backward pass would keep much more for them.
        kernels: how a convolution takes the variance of its input: "exact", or "box", which spreads the squares of
            each filter evenly over its window: a ninth of the multiplications for 3x3. By default "box", which is as
            near to weight samples (docs/results/moments_accuracy.json), and "exact" while gradients are recorded.
        weights: the random weights, where a KL shares them (see `Bayesian.weights`).
        output: which tensor, or tuple of tensors, of what the model returns.

    >>> bnn = Bayesian(nn.Linear(3, 2))
    >>> mean, variance = moments(bnn, torch.ones(4, 3))
    >>> bool((mean == bnn.model(torch.ones(4, 3))).all()), tuple(variance.shape)
    (True, (4, 2))
    """
    rank = (0 if torch.is_grad_enabled() else _RANK) if rank is None else rank
    kernels = ("exact" if torch.is_grad_enabled() else "box") if kernels is None else kernels
    setting = Setting(order=order, positions=positions, model=bnn.model, rank=rank, kernels=kernels)
    noisy = with_variance(
        map_tensors(_laid_out, x), input_variance, lambda value, noise: MomentTensor.of(value, noise, None, setting)
    )
    random = bnn.weights() if weights is None else weights
    if bnn._held is not None:  # at the mean, or at one draw: only the input may be random
        tensors = {name: random[name].sample(noise) for name, noise in bnn._held.items()}
    else:
        tensors = {name: MomentTensor.of_weight(weight, setting) for name, weight in random.items()}
    returned = call(lambda *args, **kwargs: call_with(bnn.model, tensors, args, kwargs), noisy)
    chosen = output(returned)
    return map_tensors(_mean, chosen), map_tensors(_variance, chosen)


def _laid_out(x: Tensor) -> Tensor:
    """Images with their channels innermost: the convolutions of the CPU are fastest so, and ours are three."""
    if x.dim() == 4 and x.is_floating_point() and x.device.type == "cpu":
        return x.contiguous(memory_format=torch.channels_last)
    return x


def _mean(value: Tensor) -> Tensor:
    return value.expected if isinstance(value, MomentTensor) else value


def _variance(value: Tensor) -> Tensor:
    return value.variance if isinstance(value, MomentTensor) else torch.zeros_like(value)


def with_variance(x: Any, variance: Any, make: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Inputs with their noise: ``make(value, variance)`` for each part that has some."""
    if variance is None:
        return x
    if isinstance(x, Tensor):
        return make(x, _noise(x, variance))
    if isinstance(x, Mapping) and isinstance(variance, Mapping) and set(variance) <= set(x):
        return {name: with_variance(value, variance.get(name), make) for name, value in x.items()}
    if isinstance(x, tuple | list) and isinstance(variance, tuple | list) and len(x) == len(variance):
        return type(x)(with_variance(value, each, make) for value, each in zip(x, variance, strict=True))
    raise InputError(
        f"the input is a {type(x).__name__}, its variance a {type(variance).__name__} that does not match it; "
        "give one for each part, None where there is no noise"
    )


def _noise(x: Tensor, variance: Any) -> Tensor:
    if not x.is_floating_point():
        raise InputError(f"an input of type {x.dtype} cannot be noisy; leave its input_variance None")
    noise = torch.as_tensor(variance, dtype=x.dtype, device=x.device)
    try:
        noise = noise.expand(x.shape)
    except RuntimeError as error:
        raise ShapeMismatch(
            f"input_variance of shape {tuple(noise.shape)} does not broadcast to the input's {tuple(x.shape)}"
        ) from error
    if not bool((torch.isfinite(noise) & (noise >= 0)).all()):
        raise InputError("input_variance must be finite and not negative; give variances, the squares of deviations")
    return noise
