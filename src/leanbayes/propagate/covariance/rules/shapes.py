"""Operations that move or select the entries of each example, and operations that copy or convert all of them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.covariance.tensor import RULES, CovarianceTensor, expected_of, full, only_first
from leanbayes.propagate.dispatch import missing
from leanbayes.propagate.linear_ops import Operation

__all__ = ["convert", "rearrange"]


def _both(*names: str) -> list[Any]:
    """Return the functions and methods of these names that exist."""
    operations = [getattr(home, name, None) for name in names for home in (torch, Tensor)]
    return [operation for operation in operations if operation is not None]


@RULES.rule(
    *_both("reshape", "view", "flatten", "unflatten", "permute", "transpose", "swapaxes", "movedim", "ravel"),
    *_both("squeeze", "unsqueeze", "chunk", "split", "narrow", "select", "flip", "roll", "index_select"),
    *(F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle, Tensor.__getitem__, Tensor.mT.__get__),  # type: ignore[attr-defined]
    exact=True,
)
def rearrange(operation: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the operation to numbered entries, to learn which entry goes where."""
    x = only_first(operation, input, *args, *kwargs.values())
    means = operation(x.expected, *args, **kwargs)
    numbers = torch.arange(x.expected.numel(), device=x.expected.device).view(x.expected.shape)
    moved = operation(numbers, *args, **kwargs)
    if isinstance(means, Tensor):
        return _placed(operation, x, means, moved)
    return type(means)(_placed(operation, x, *pair) for pair in zip(means, moved, strict=True))


def _placed(operation: Any, x: CovarianceTensor, mean: Tensor, numbers: Tensor) -> CovarianceTensor:
    size = x.expected[:1].numel()
    flat = numbers.reshape(len(numbers), -1) if numbers.dim() else numbers.view(1, 1)
    examples, places = flat[:, 0] // size, flat[:1] % size
    if numbers.dim() == 0 or not torch.equal(flat, examples.unsqueeze(-1) * size + places):
        missing(operation, x, "it mixes the examples, which the first axis must keep apart")
    blocks = x.blocks
    if places.numel() != size or not torch.equal(places[0], torch.arange(size, device=places.device)):
        blocks = full(x).index_select(1, places[0]).index_select(2, places[0]).unsqueeze(1)
    if not torch.equal(examples, torch.arange(len(blocks), device=examples.device)):
        blocks = blocks.index_select(0, examples)
    return x.like(mean, blocks).view_of(x)


@RULES.rule(*_both("clone", "detach", "contiguous", "to", "type_as", "float", "double", "half", "bfloat16"), exact=True)
def convert(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Convert to another type or device, or copy."""
    args = tuple(map(expected_of, args))
    if not isinstance(input, CovarianceTensor):  # plain.to(random): only the type and device of the other matter
        return operation(input, *args, **kwargs)
    x = only_first(operation, input)
    mean = operation(x.expected, *args, **kwargs)
    blocks = x.blocks.to(mean)
    if operation in (torch.detach, Tensor.detach):
        blocks = blocks.detach()
    made = x.like(mean, blocks)
    return made if operation in (torch.clone, Tensor.clone) else made.view_of(x)
