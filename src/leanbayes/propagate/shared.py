"""What no random weight has touched is computed once for all draws, whatever the model's code looks like.

The first pass over a batch is recorded, operation by operation: an operation on tensors that no random weight has
touched is *clean*. In later passes over the same batch a clean operation is not run again: it is answered by an empty
token that carries the serial number of the result, and an operation that random weights do touch gets the results that
its tokens stand for. Only those results are kept; what clean operations pass among themselves is not.

Nothing is assumed of the model but that it calls torch. What would make an answer wrong is seen, and ends the sharing:
operations that use random numbers are told by the random state, changes in place by the tensors' version counters,
and a later pass that takes another way through the code finds no record and says so (`Diverged`).
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Diverged", "SharedPrefix"]


class Diverged(Exception):
    """A later pass needs something that the first did not keep."""


class _Unknown(Exception):
    """An argument that cannot be part of a key."""


@dataclass
class _Entry:
    """What a clean operation returned: serial numbers for tensors, anything else as it was."""

    leaves: list[Any]
    spec: Any
    serials: list[int | None]
    changed: list[tuple[int, int]] = field(default_factory=list)  # position among the tensor arguments, new serial


class SharedPrefix(TorchFunctionMode):
    """A mode to run passes over one batch in: the first records, later ones (`replay`) answer clean operations.

    Tensors carry serial numbers, one for each value: a change in place gives a tensor a new one.
    """

    def __init__(self, roots: list[Tensor]) -> None:
        super().__init__()
        self.recording = True
        self.usable = True
        self.clean_seconds = 0.0
        self.random_seconds = 0.0
        self.random_calls = 0
        self.random_bytes = 0
        self._record: dict[Hashable, _Entry] = {}
        self._made_by: dict[int, Hashable] = {}
        self._kept: dict[int, tuple[Tensor, int]] = {}  # the frontier: clean results that random operations use
        self._serials = WeakIdKeyDictionary()
        self._next = 0
        self._roots = [(self._name(root), root, root._version) for root in roots]

    def finish_recording(self) -> None:
        """Call after the first pass: from here on clean operations are answered."""
        if any(root._version != version for _, root, version in self._roots):
            self.usable = False  # the pass changed an input, a parameter or a buffer: it must run every time
        if any(tensor._version != version for tensor, version in self._kept.values()):
            self.usable = False  # a result was used by a random operation, and changed in place after
        self.recording = False

    def replay(self) -> "SharedPrefix":
        """Enter this for each later pass."""
        self._serials = WeakIdKeyDictionary()
        for serial, root, version in self._roots:
            self._serials[root] = (serial, version)
            self._kept[serial] = (root, version)
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer, or run and remember."""
        kwargs = kwargs or {}
        if not self.usable and self.recording:
            return func(*args, **kwargs)
        tensors: list[Tensor] = []
        try:
            key: Hashable = (func, self._key(args, tensors), self._key(kwargs, tensors))
        except _Unknown:
            return self._run_random(func, args, kwargs)
        if self.recording:
            return self._run_clean(func, args, kwargs, key, tensors)
        entry = self._record.get(key)
        return self._run_random(func, args, kwargs) if entry is None else self._answer(entry, tensors)

    def _key(self, value: Any, tensors: list[Tensor]) -> Hashable:
        """A hashable picture of an argument in which clean tensors are their serials; unknown tensors raise."""
        if isinstance(value, Tensor):
            known = self._serials.get(value)
            if known is None or type(value) not in (Tensor, torch.nn.Parameter):
                raise _Unknown
            serial, version = known
            if value._version != version:  # changed through an alias: the value is no longer the one on record
                self.usable = False
                raise _Unknown if self.recording else Diverged
            tensors.append(value)
            return ("tensor", serial)
        if isinstance(value, tuple | list):
            return (type(value), *[self._key(item, tensors) for item in value])
        if isinstance(value, dict):
            return (dict, *[(name, self._key(item, tensors)) for name, item in value.items()])
        if isinstance(value, slice):
            return (slice, *[self._key(part, tensors) for part in (value.start, value.stop, value.step)])
        if value is None or isinstance(value, int | float | str | complex | torch.dtype | torch.device | type(...)):
            return (type(value), value)
        if isinstance(value, torch.memory_format | torch.layout):
            return value
        raise _Unknown

    def _run_clean(self, func: Any, args: Any, kwargs: Any, key: Hashable, tensors: list[Tensor]) -> Any:
        states, versions = self._random_states(), [tensor._version for tensor in tensors]
        start = time.perf_counter()
        result = func(*args, **kwargs)
        self.clean_seconds += time.perf_counter() - start
        leaves, spec = tree_flatten(result)
        made = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors and not made:  # no tensor comes or goes: called for what it does, not for what it returns
            return result
        if any(not torch.equal(a, b) for a, b in zip(states, self._random_states(), strict=True)):
            return result  # uses random numbers: what it returns is not clean
        again = self._record.get(key)  # the same operation on the same values: the same serials
        entry = _Entry(list(leaves), spec, [None] * len(leaves))
        for position, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
            if tensor._version != version:
                entry.changed.append((position, self._name(tensor)))
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                known = self._serials.get(leaf)
                if again is not None and (serial := again.serials[position]) is not None:
                    self._serials[leaf] = (serial, leaf._version)
                else:
                    serial = self._name(leaf) if known is None or known[1] != leaf._version else known[0]
                entry.leaves[position], entry.serials[position] = None, serial
                self._made_by[serial] = key
        self._record[key] = entry
        return result

    def _run_random(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that a random weight has touched; the clean results that it uses are the frontier."""
        used: dict[int, Tensor] = {}

        def real(leaf: Any) -> Any:
            known = self._serials.get(leaf) if isinstance(leaf, Tensor) else None
            if known is None:
                return leaf
            serial: int = known[0]
            if self.recording:
                self._kept[serial] = (leaf, leaf._version)
            elif serial not in self._kept:
                raise Diverged
            used[serial] = self._kept[serial][0]
            return used[serial]

        args, kwargs = tree_map(real, (args, kwargs))
        versions = [tensor._version for tensor in used.values()]
        start = time.perf_counter()
        result = func(*args, **kwargs)
        if self.recording:
            self.random_seconds += time.perf_counter() - start
            self.random_calls += 1
            self.random_bytes += sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        for (serial, tensor), version in zip(used.items(), versions, strict=True):
            if tensor._version == version:
                continue
            if not self.recording:
                raise Diverged
            del self._serials[tensor]  # filled with random values: to be made anew in every pass
            del self._kept[serial]
            self._record.pop(self._made_by.get(serial), None)
        return result

    def _answer(self, entry: _Entry, tensors: list[Tensor]) -> Any:
        for position, serial in entry.changed:
            self._serials[tensors[position]] = (serial, tensors[position]._version)
        leaves = list(entry.leaves)
        for position, made in enumerate(entry.serials):
            if made is not None:
                leaves[position] = next((t for t in tensors if self._serials[t][0] == made), None)
                if leaves[position] is None:
                    leaves[position] = token = torch.empty(0)
                    self._serials[token] = (made, token._version)
        return tree_unflatten(leaves, entry.spec)

    def _name(self, tensor: Tensor) -> int:
        self._next += 1
        self._serials[tensor] = (self._next, tensor._version)
        return self._next

    def _random_states(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        devices = {root.device for _, root, _ in self._roots if root.device.type == "cuda"}
        return states + [torch.cuda.get_rng_state(device) for device in devices]
