"""NumPy arrays and pandas frames as tensors.

One rule decides the type of the numbers, because NumPy makes every fraction a float64, and few networks are:

- fractions become the floating type of the model;
- whole numbers become int64, which torch expects of indices and of classes;
- truth values stay truth values.

Tensors are never converted, because whoever made a tensor has chosen its type. Anything that is no number, such as a
column of words, is an error.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leanbayes._calls import map_leaves
from leanbayes.errors import InputError

__all__ = ["dtype_of", "is_array", "is_whole", "numbers_of", "tensors_of"]


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the floating type of a model: that of its first parameter or buffer that is not of whole numbers.

    >>> dtype_of(nn.Linear(1, 1).double()), dtype_of(nn.Flatten())
    (torch.float64, torch.float32)
    """
    for group in (model.parameters(), model.buffers()):
        for tensor in group:
            if tensor.is_floating_point():
                return tensor.dtype
    return torch.get_default_dtype()


def is_array(value: Any) -> bool:
    """Return whether a value is a NumPy array, or a pandas frame or column.

    >>> is_array(np.ones(2)), is_array(torch.ones(2)), is_array([1, 2])
    (True, False, False)
    """
    return isinstance(value, np.ndarray) or (hasattr(value, "to_numpy") and not isinstance(value, type))


def is_whole(data: Any) -> bool:
    """Return whether data are a whole data set, a tuple (inputs, targets) of arrays or tensors, and not batches."""
    return (
        isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) or is_array(part) for part in data)
    )


def tensors_of(value: Any, dtype: torch.dtype, device: torch.device | None = None) -> Any:
    """Replace every array inside a value by a tensor, and leave everything else as it is.

    Args:
        value: an array, or tuples, lists, mappings and dataclasses that hold arrays.
        dtype: the type of fractions, usually that of the model.
        device: where the tensors should lie; on the CPU by default.

    >>> tensors_of({"a": np.array([0.5]), "b": np.array([1], dtype=np.int8)}, torch.float32)
    {'a': tensor([0.5000]), 'b': tensor([1])}
    """
    return map_leaves(lambda leaf: numbers_of(leaf, dtype).to(device) if is_array(leaf) else leaf, value)


def numbers_of(array: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return the numbers of one array, frame or column as a tensor.

    Args:
        array: a NumPy array or what has the method ``to_numpy``, such as a pandas frame.
        dtype: the type of fractions; by default they keep their own.
    """
    numbers = array if isinstance(array, np.ndarray) else _from_frame(array)
    if isinstance(numbers, np.ma.MaskedArray):
        if np.ma.is_masked(numbers):
            raise InputError("the array is masked, and a tensor has no mask; fill the gaps: array.filled(value)")
        numbers = numbers.data
    kind = numbers.dtype.kind
    if kind not in "biufc":
        raise InputError(f"the array holds {numbers.dtype}, which are no numbers; encode them as numbers first")
    if kind == "u" and numbers.dtype.itemsize == 8 and numbers.size and numbers.max() > np.iinfo(np.int64).max:
        raise InputError(f"the array holds the whole number {numbers.max()}, which does not fit into int64")
    if kind in "iu":
        numbers = numbers.astype(np.int64, copy=False)
    elif kind == "f" and numbers.dtype.itemsize > 8:  # torch has no longer fractions
        numbers = numbers.astype(np.float64)
    numbers = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("=")).reshape(numbers.shape)
    tensor = torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())
    return tensor.to(dtype) if kind == "f" and dtype is not None else tensor


def _from_frame(frame: Any) -> np.ndarray[Any, Any]:
    """Return the numbers of a frame; an error names the columns that hold none."""
    if not hasattr(frame, "iloc") or getattr(frame, "ndim", 1) != 2:
        numbers = np.asarray(frame.to_numpy())
        if not _plain(frame, numbers):
            raise InputError(f"{_named(frame)}; {_ADVICE}")
        return numbers
    columns = [frame.iloc[:, position] for position in range(frame.shape[1])]
    arrays = [np.asarray(column.to_numpy()) for column in columns]
    strange = [_named(column) for column, array in zip(columns, arrays, strict=True) if not _plain(column, array)]
    if strange:
        shown = ", ".join(strange[:5]) + (f" and {len(strange) - 5} others" if len(strange) > 5 else "")
        raise InputError(f"{shown}; {_ADVICE}")
    if not arrays:
        return np.zeros(frame.shape)
    # Column by column, because pandas itself makes objects of truth values beside numbers.
    return np.stack(arrays, axis=1).astype(np.result_type(*arrays), copy=False)


_ADVICE = "encode words and dates as numbers, fill gaps, or leave such columns out"


def _plain(column: Any, numbers: np.ndarray[Any, Any]) -> bool:
    """Whether a column holds numbers; pandas makes fractions of whole numbers that have gaps, with NaN for the gaps."""
    gaps = getattr(getattr(column, "dtype", None), "kind", "f") in "iub" and numbers.dtype.kind == "f"
    return numbers.dtype.kind in "biufc" and not gaps


def _named(column: Any) -> str:
    return f"the column {getattr(column, 'name', None)!r} holds {getattr(column, 'dtype', 'objects')}, no plain numbers"
