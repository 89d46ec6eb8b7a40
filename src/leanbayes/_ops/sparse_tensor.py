"""A weight of which only some entries are stored; the others are exactly zero."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from leanbayes._ops import sparse
from leanbayes._ops.questions import QUESTIONS
from leanbayes.errors import InputError

__all__ = ["SPARSE_OPS", "SparseTensor"]

SPARSE_OPS = (F.linear, F.conv1d, F.conv2d, F.conv3d)
"""What is computed from the stored entries alone."""


class SparseTensor(Tensor):
    """Has the shape of the dense weight and the memory of its non-zeros.

    A linear map or a convolution by it runs over the non-zeros. Anything else gets the dense tensor, made for that
    operation alone. Gradients reach the stored values.
    """

    stored: Tensor
    positions: Tensor

    @staticmethod
    def of(values: Tensor, index: Tensor, shape: tuple[int, ...]) -> "SparseTensor":
        """Values at the sorted flat positions ``index`` of a tensor of this shape.

        >>> SparseTensor.of(torch.tensor([5.0]), torch.tensor([2]), (2, 2)).dense()
        tensor([[0., 0.],
                [5., 0.]])
        """
        made: SparseTensor = Tensor._make_wrapper_subclass(
            SparseTensor, shape, dtype=values.dtype, device=values.device
        )
        made.stored, made.positions = values, index
        return made

    def dense(self) -> Tensor:
        """The whole tensor, zeros too."""
        flat = self.stored.new_zeros(prod(self.shape))
        whole = flat.index_copy(0, self.positions.long(), self.stored).view(self.shape)
        sparse.watch(self.positions, whole, lambda gradient: gradient)
        return whole

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the stored values do."""
        return self.stored.requires_grad

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SparseTensor({len(self.positions)} of {prod(self.shape)}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run over the non-zeros where there is a way, else make the tensor dense."""
        kwargs = kwargs or {}
        if func in QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in SPARSE_OPS:
            return _product(func, *args, **kwargs)
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], SparseTensor):
            raise InputError(f"{name} would change a copy of a sparse weight; change its stored values instead")
        args, kwargs = tree_map(_dense_of, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """What has gone round the rules above."""
        args, kwargs = tree_map(_dense_of, (args, kwargs or {}))
        return func(*args, **kwargs)


def _dense_of(value: Any) -> Any:
    return value.dense() if isinstance(value, SparseTensor) else value


def _product(operation: Any, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    x = _dense_of(input)
    if not isinstance(weight, SparseTensor) or type(x) not in (Tensor, torch.nn.Parameter):
        result: Tensor = operation(x, _dense_of(weight), _dense_of(bias), *args, **kwargs)
        return result
    multiply = sparse.linear if operation is F.linear else sparse.conv
    product = multiply(x, weight.positions, tuple(weight.shape), weight.stored, *args, **kwargs)
    if bias is None:
        return product
    shift: Tensor = _dense_of(bias)
    return product + shift.view(-1, *[1] * (len(weight.shape) - 2))
