"""A weight tensor that stores only its non-zero entries."""

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
"""The operations that are computed from the stored entries alone."""


class SparseTensor(Tensor):
    """A tensor with the shape of the dense weight and the memory of its non-zeros.

    A linear map or a convolution by it runs over the non-zeros. Any other operation gets a dense tensor, which is made
    for that operation alone. Gradients reach the stored values.

    Attributes:
        stored: the values of the non-zeros.
        positions: their sorted positions in the flattened tensor.
    """

    stored: Tensor
    positions: Tensor

    @staticmethod
    def of(values: Tensor, index: Tensor, shape: tuple[int, ...]) -> "SparseTensor":
        """Build a tensor from values at the sorted flat positions ``index``.

        >>> SparseTensor.of(torch.tensor([5.0]), torch.tensor([2]), (2, 2)).dense()
        tensor([[0., 0.],
                [5., 0.]])
        """
        tensor: SparseTensor = Tensor._make_wrapper_subclass(
            SparseTensor, shape, dtype=values.dtype, device=values.device
        )
        tensor.stored, tensor.positions = values, index
        return tensor

    def dense(self) -> Tensor:
        """Return the dense tensor, zeros included."""
        flat = self.stored.new_zeros(prod(self.shape))
        whole = flat.index_copy(0, self.positions.long(), self.stored).view(self.shape)
        sparse.watch(self.positions, whole, lambda gradient: gradient)
        return whole

    def plus(self, offset: Tensor, index: Tensor) -> "SparseTensor":
        """Return this tensor with numbers added to stored entries, whose sorted flat positions are ``index``.

        >>> SparseTensor.of(torch.ones(2), torch.tensor([0, 3]), (2, 2)).plus(torch.tensor([5.0]), torch.tensor([3]))
        SparseTensor(2 of 4, shape=(2, 2))
        """
        if index is self.positions:
            moved = self.stored + offset
        else:
            moved = self.stored.index_add(0, torch.searchsorted(self.positions, index), offset)
        return SparseTensor.of(moved, self.positions, tuple(self.shape))

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the stored values require gradients."""
        return self.stored.requires_grad

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SparseTensor({len(self.positions)} of {prod(self.shape)}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run over the non-zeros where an operation can do so, and make the tensor dense elsewhere."""
        kwargs = kwargs or {}
        if func in QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in SPARSE_OPS:
            bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
            if type(bias) not in (type(None), Tensor, torch.nn.Parameter, SparseTensor):
                return NotImplemented  # a bias that stands for a random one has rules of its own for the operation
            return _product(func, *args, **kwargs)
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], SparseTensor):
            raise InputError(f"{name} would change a copy of a sparse weight; change its stored values instead")
        args, kwargs = tree_map(_dense_of, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Make the tensor dense for operations that bypass ``__torch_function__``."""
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
