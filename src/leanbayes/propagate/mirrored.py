"""`Mirrored`: one weight draw μ + Δ for half of a batch and its mirror image μ − Δ for the other half."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._ops import sparse
from leanbayes._ops.halves_norm import halves_of, kernel_fits, norm_of_halves
from leanbayes._ops.mirrored_layer import MirroredProduct, product_of
from leanbayes._ops.sparse_tensor import SPARSE_OPS, SparseTensor
from leanbayes.errors import InputError
from leanbayes.propagate.ahead import draw_ahead
from leanbayes.propagate.linear_ops import LINEAR_OPS, Operation, channel_axis, plain_input
from leanbayes.propagate.propagation import Propagation, Weights
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.sample import Sample
from leanbayes.propagate.stand_in import StandIn, make_stand_in

__all__ = ["RULES", "Mirrored"]

_SMALL_WORK = 10**7  # products of numbers in a convolution, below which its call takes longer than they do
_LANES = 16  # channels of which groups must have a multiple, for the library to have fast code for them
_GROUPED = (F.conv1d, F.conv2d, F.conv3d)
_USUAL = (1, 0, 1)  # stride, padding and dilation of a convolution

RULES = Registry("mirrored", agree=True, by_example=True)
_ASSUMES = "the first axis holds the examples; those of one half share a draw, the others have its mirror image"


@dataclass(frozen=True)
class Mirrored(Propagation):
    """One weight draw μ + Δ for half of a batch, and its mirror image μ − Δ for the other half.

    Each example sees a correct draw, at the price of one (antithetic variates; Hammersley and Morton 1956). The mean of
    such a batch, and to first order its variance, are those at the means, because Δ and −Δ cancel. So batch norm does
    not undo the noise, as it undoes one draw for the whole batch, and its statistics need not be held.

    The two halves of a batch depend on each other, so networks that are trained with mirrored draws predict with
    `Sample` unless the user names another propagation. The posterior must be symmetric about its mean.

    >>> Mirrored().differs_within_batch, Mirrored().for_prediction
    (True, Sample())
    """

    name: ClassVar[str] = "mirrored"
    draws_ahead: ClassVar[bool] = True
    differs_within_batch: ClassVar[bool] = True
    works_on_pieces: ClassVar[bool] = True

    @property
    def for_prediction(self) -> Propagation:
        """Plain draws, which do not couple the examples of a batch."""
        return Sample()

    def stand_ins(
        self,
        weights: Weights,
        model: nn.Module,  # noqa: ARG002
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Make tensors whose linear operations give the second half of a batch the mirrored draw."""
        for weight in weights.values():
            if not weight.family.symmetric:
                raise InputError(
                    f"mirrored draws need noise that is symmetric about 0, which {weight.family} is not; "
                    'use propagate="sample"'
                )
        made = {name: make_stand_in(weight, RULES, generator) for name, weight in weights.items()}
        draw_ahead(list(made.values()))
        return dict(made)


@RULES.rule(*LINEAR_OPS, exact=True, assumes=_ASSUMES)
def linear(operation: Operation, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """Compute y = op(x, W, b), with μ + Δ for W and b in the first half of the batch and μ − Δ in the second."""
    x = plain_input(input)
    if channel_axis(operation, x) == 0 or len(x) < 2:  # no batch, or no second half
        return operation(x, _drawn(weight), _drawn(bias), *args, **kwargs)
    product = _in_one_call(operation, x, weight, bias, args, kwargs)
    if product is not None:
        return product
    weights, biases = _pair(weight), _pair(bias)
    product = _sparse_product(operation, x, weights, *args, **kwargs)
    if product is not None:
        if bias is None:
            return product
        return product + _by_half(bias, len(product), (-1, *[1] * (product.dim() - 2)))
    # The gradient of `split` is one `cat`; that of two slices would pad each of them.
    halves = x.split(halves_of(len(x)))
    pairs = zip(halves, weights, biases, strict=True)
    return torch.cat([operation(half, one, other, *args, **kwargs) for half, one, other in pairs])


def _in_one_call(
    operation: Operation, x: Tensor, weight: Any, bias: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """Multiply both halves by their draws in one call; None where no such call fits or pays."""
    if not isinstance(weight, StandIn):
        return None
    if weight.seed is not None:
        return _seeded_product(operation, x, weight, bias, args, kwargs)
    if weight.both is None or len(x) % 2 or not x.numel():
        return None
    if operation is F.linear:
        return _batched_product(x, weight, bias)
    return _grouped_product(operation, x, weight.both, bias, args) if operation in _GROUPED and not kwargs else None


def _seeded_product(
    operation: Operation, x: Tensor, weight: StandIn, bias: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """Multiply by the draws of a large weight, which are made where they are needed."""
    rho, mean, seed = weight.weight.rho, weight.weight.mean, weight.seed
    if rho is None or seed is None or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    if type(x) not in (Tensor, nn.Parameter) or x.dtype != mean.dtype or not x.is_cpu:
        return None
    biases = None if bias is None else _both(bias) if isinstance(bias, StandIn) else bias.expand(2, -1)
    product = product_of(operation, args, kwargs)
    if product is None or (bias is not None and biases is None):
        return None
    result: Tensor = MirroredProduct.apply(product, seed, x, mean, rho, biases)
    return result


def _grouped_product(
    operation: Operation, x: Tensor, weights: Tensor, bias: Any, args: tuple[Any, ...]
) -> Tensor | None:
    """Convolve both halves of equal size as groups of channels, where the call takes longer than its arithmetic."""
    groups = args[3] if len(args) > 3 else 1
    work = x.numel() * weights.shape[1] * weights[0, 0, 0].numel()
    fits = x.is_cpu and x.dtype == weights.dtype == torch.float32 and x.is_contiguous()
    if groups != 1 or not fits or work > _SMALL_WORK or any(n % _LANES for n in weights.shape[1:3]):
        return None
    biases = None if bias is None else _both(bias) if isinstance(bias, StandIn) else bias.expand(2, -1)
    if bias is not None and biases is None:
        return None
    grouped = x.view(2, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
    flat = None if biases is None else biases.flatten()
    product = operation(grouped, weights.flatten(0, 1), flat, *(*args, *_USUAL[len(args) :])[:3], 2, *args[4:])
    return product.view(len(product), 2, -1, *product.shape[2:]).transpose(0, 1).flatten(0, 1)


def _batched_product(x: Tensor, weight: Any, bias: Any) -> Tensor | None:
    """Multiply both halves of equal size by their draws, as a batch of two products."""
    weights = _both(weight)
    if weights is None or x.shape[-1] != weights.shape[-1]:
        return None
    halves = x.reshape(2, -1, x.shape[-1])
    if bias is None:
        product = torch.bmm(halves, weights.transpose(1, 2))
    else:
        biases = _both(bias)
        offset = bias.expand(2, -1) if not isinstance(bias, StandIn) else biases
        if offset is None:
            return None
        product = torch.baddbmm(offset.unsqueeze(1), halves, weights.transpose(1, 2))
    return product.view(*x.shape[:-1], -1)


def _sparse_product(
    operation: Operation, x: Tensor, weights: tuple[Any, Any], *args: Any, **kwargs: Any
) -> Tensor | None:
    """Multiply both halves by their draws in one sweep over the stored weights; None where that is not possible."""
    first, second = weights
    if operation not in SPARSE_OPS or not isinstance(first, SparseTensor):
        return None
    multiply = sparse.linear_halves if operation is F.linear else sparse.conv_halves
    return multiply(x, first.positions, tuple(first.shape), first.stored, second.stored, *args, **kwargs)


@RULES.rule(F.batch_norm, exact=True, assumes=_ASSUMES)
def batch_norm(
    operation: Operation, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Compute y = γ x̂ + β with mirrored γ and β; the statistics are those of the whole batch."""
    x = plain_input(input)
    if training and len(x) > 1 and weight is not None and bias is not None and kernel_fits(x):
        gains, offsets = _pair(weight), _pair(bias)
        if all(value.dtype == x.dtype for value in (*gains, *offsets)):
            return norm_of_halves(x, gains, offsets, running_mean, running_var, momentum, eps)
    normed = operation(x, running_mean, running_var, None, None, training, momentum, eps)
    both = _both(weight), _both(bias)
    if both[0] is not None and both[1] is not None and len(x) % 2 == 0 and normed.dtype == both[0].dtype:
        grid = normed.view(2, len(x) // 2, *normed.shape[1:])
        wide, high = (values.view(2, 1, -1, *[1] * (normed.dim() - 2)) for values in both if values is not None)
        return torch.addcmul(high, grid, wide).reshape(normed.shape)
    shape = (-1, *[1] * (normed.dim() - 2))
    gain, offset = (None if value is None else _by_half(value, len(normed), shape) for value in (weight, bias))
    if gain is not None and offset is not None and normed.dtype == gain.dtype == offset.dtype:
        return torch.addcmul(offset, normed, gain)
    scaled = normed if gain is None else normed * gain
    return scaled if offset is None else scaled + offset


def _by_half(value: Any, count: int, shape: tuple[int, ...]) -> Tensor:
    """Return a row for each of ``count`` examples: those of the first half, the larger of the two, have μ + Δ."""
    if not isinstance(value, StandIn):
        plain: Tensor = value.view(shape)
        return plain
    rows = zip(_pair(value), halves_of(count), strict=True)
    return torch.cat([row.view(1, *shape).expand(number, -1, *shape[1:]) for row, number in rows])


def _both(value: Any) -> Tensor | None:
    """Return μ + Δ and μ − Δ of a stand-in along a first axis, if they are computed already."""
    return value.both if isinstance(value, StandIn) else None


def _pair(value: Any) -> tuple[Any, Any]:
    """Return μ + Δ and μ − Δ of a stand-in, and any other value twice."""
    if not isinstance(value, StandIn):
        return value, value
    if value.both is not None:
        first, second = value.both.unbind(0)
        return first, second
    return value.weight.pair(value.noise())


def _drawn(value: Any) -> Any:
    """Return μ + Δ of a stand-in, and any other value as it is."""
    return value.weight.sample(value.noise()) if isinstance(value, StandIn) else value
