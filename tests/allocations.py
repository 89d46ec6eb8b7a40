"""Counts the bytes of all tensors that live at one time, so that a test notices a copy of a whole model."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Inside this context, ``peak`` is the largest number of bytes that tensors made inside had at one time.

    What an operation needs for itself while it runs does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()
        self._keep: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        returned = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(returned):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._count(leaf.untyped_storage(), before)
        return returned

    def _count(self, storage: Any, before: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in before or key in self._known:
            return
        self._known.add(key)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        self._keep.append(weakref.finalize(storage, self._free, key, size))

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return the largest number of bytes of tensors that ``work`` held at one time."""
    with Allocations() as allocations:
        work()
    return allocations.peak


def parameter_bytes(model: nn.Module) -> int:
    """Return how many bytes the parameters of a model take."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
