"""A linear layer or convolution whose two halves of a batch have mirrored draws of a large weight.

The noise is never stored: both passes make it of its seed. The gradients for μ and ρ overwrite those of the two draws,
so a backward pass replaces the two draws by the two gradients and needs no further memory for long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.halves_norm import halves_of
from leanbayes._ops.mirrored import pair_of_seed, pull_back_of_seed
from leanbayes._ops.normal import fill

__all__ = ["Product", "product_of"]

_RANKS = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}
_TRANSPOSED = {F.conv_transpose1d: 1, F.conv_transpose2d: 2, F.conv_transpose3d: 3}
_USUAL = (1, 0, 1, 1)  # stride, padding, dilation and groups
_USUAL_TRANSPOSED = (1, 0, 0, 1, 1)  # stride, padding, output padding, groups and dilation


@dataclass(frozen=True)
class Product:
    """The product of a layer, in the form in which torch has a function for its gradients.

    Attributes:
        setting: stride, padding, dilation, whether it is transposed, output padding and groups of a convolution, or
            None for a linear layer.
    """

    setting: tuple[Any, ...] | None

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product; both passes, and those with gradients of gradients, call it."""
        if self.setting is None:
            return F.linear(x, weight, bias)
        return torch.convolution(x, weight, bias, *self.setting)

    def backward(
        self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of input, weight and bias that are needed."""
        if self.setting is not None:
            sizes = [gradient.shape[1]] if needs[2] else None
            grads = torch.ops.aten.convolution_backward(gradient, x, weight, sizes, *self.setting, list(needs))
            return grads[0], grads[1], grads[2]
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_x = gradient.matmul(weight) if needs[0] else None
        of_weight = rows.t().mm(x.reshape(-1, x.shape[-1])) if needs[1] else None
        return of_x, of_weight, rows.sum(0) if needs[2] else None


def product_of(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Product | None:
    """Return the product that an operation with these arguments after the bias is, or None where it is another one."""
    if kwargs:
        return None
    if operation is F.linear:
        return None if args else Product(None)
    transposed = operation in _TRANSPOSED
    rank, usual = (_TRANSPOSED[operation], _USUAL_TRANSPOSED) if transposed else (_RANKS[operation], _USUAL)
    values = [*args, *usual[len(args) :]]
    groups = values.pop(3)
    if any(isinstance(value, str) for value in values):
        return None
    lists = [[value] * rank if isinstance(value, int) else list(value) for value in values]
    if transposed:
        stride, padding, output_padding, dilation = lists
    else:
        (stride, padding, dilation), output_padding = lists, [0] * rank
    lists = [entries * rank if len(entries) == 1 else entries for entries in (stride, padding, dilation)]
    more = output_padding * rank if len(output_padding) == 1 else output_padding
    return Product((*lists, transposed, more, groups))


class MirroredProduct(torch.autograd.Function):
    """The product of each half of a batch with its draw of the weight."""

    @staticmethod
    def forward(
        ctx: Any, product: Product, seed: int, x: Tensor, mean: Tensor, rho: Tensor, biases: Tensor | None
    ) -> Tensor:
        """Multiply; ``biases`` holds the biases of both halves along its first axis."""
        weights, both = pair_of_seed(mean, rho, seed), (None, None) if biases is None else biases
        ctx.save_for_backward(x, mean, rho, biases, *weights)
        ctx.product, ctx.seed = product, seed
        halves = zip(x.split(halves_of(len(x))), weights, both, strict=True)
        return torch.cat([product.forward(*parts) for parts in halves])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, by operations of torch alone where they are themselves differentiated."""
        x, mean, rho, biases, *weights = ctx.saved_tensors
        product, seed, sizes = ctx.product, ctx.seed, halves_of(len(x))
        if torch.is_grad_enabled():
            inputs = (x, mean, rho, biases)
            offset = F.softplus(rho, threshold=40) * fill(torch.empty_like(mean), seed)
            both = (None, None) if biases is None else biases
            halves = zip(x.split(sizes), (mean + offset, mean - offset), both, strict=True)
            whole = torch.cat([product.forward(*parts) for parts in halves])
            wanted = [value for value, needed in zip(inputs, ctx.needs_input_grad[2:], strict=True) if needed]
            made = iter(torch.autograd.grad(whole, wanted, gradient, create_graph=True))
            return None, None, *(next(made) if needed else None for needed in ctx.needs_input_grad[2:])
        of_x, of_mean, of_rho, of_bias = ctx.needs_input_grad[2:]
        needs = (of_x, of_mean or of_rho, of_bias)
        halves = zip(gradient.split(sizes), x.split(sizes), weights, strict=True)
        first, second = (product.backward(*parts, needs) for parts in halves)
        found: list[Tensor | None] = [None, None, None, None]
        if first[0] is not None and second[0] is not None:
            found[0] = torch.cat([first[0], second[0]])
        if first[1] is not None and second[1] is not None:
            found[1:3] = pull_back_of_seed(first[1].contiguous(), second[1].contiguous(), rho, seed)
        if first[2] is not None and second[2] is not None:
            found[3] = torch.stack([first[2], second[2]])
        wanted = ctx.needs_input_grad[2:]
        return None, None, *(value if needed else None for value, needed in zip(found, wanted, strict=True))
