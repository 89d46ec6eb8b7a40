"""Work that no random weight touches is done once for all draws, whatever the code of the model looks like.

The first pass over a batch is recorded, operation by operation. An operation is *clean* if no random weight has touched
its tensors. In later passes over the same batch the code of the model runs as always, but clean operations are answered
from the record. If a random operation read a result, or if the result outlived the first pass, the answer is a fresh
alias of the recorded tensor, so the model works with the real values. If a result died in the first pass, only clean
operations needed it. It is not kept, and a tensor without memory (on the meta device) takes its place.

The only assumption about the model is that it calls torch. Everything that would make an answer wrong is detected and
ends the sharing. The random state reveals operations that use random numbers. Version counters, and a comparison of
buffers and inputs before and after, reveal changes in place. A later pass that reads a value which is overwritten
or not kept raises `Diverged`.
"""

import time
import weakref
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from leanbayes._calls import map_tensors

__all__ = ["Diverged", "SharedPrefix"]

_MOST_BYTES = 2**30  # a record that would keep more than this is given up, because memory matters more than speed

# Operations that reach the memory of a tensor without a trace in its version counter.
_BACK_DOORS = {Tensor.data.__get__, Tensor.data.__set__, Tensor.set_, Tensor.resize_, Tensor.numpy, Tensor.__array__}  # type: ignore[attr-defined]
_BACK_DOORS |= {Tensor.untyped_storage, Tensor.data_ptr, Tensor.__dlpack__}


class Diverged(Exception):
    """A later pass needs a value that the first pass has overwritten or did not keep."""


class _Unknown(Exception):
    """Raised for an argument that cannot be part of a key."""


@dataclass
class _Entry:
    """What a clean operation returned, with serial numbers in the place of tensors."""

    leaves: list[Any]
    spec: Any
    serials: list[int | None]
    changed: list[tuple[int, int]] = field(default_factory=list)  # position among the tensor arguments, new serial


class SharedPrefix(TorchFunctionMode):
    """A mode for passes over one batch: the first pass is recorded, and later ones (`replay`) answer clean operations.

    Every value of a tensor has a serial number; a change in place gives the tensor a new one.
    """

    def __init__(self, model: nn.Module, random: Iterable[str], inputs: Any) -> None:
        super().__init__()
        names = set(random)
        self.recording = True
        self.usable = _transparent(model)
        self.clean_seconds = 0.0
        self.random_seconds = 0.0
        self.random_calls = 0
        self.random_bytes = 0
        self._record: dict[Hashable, _Entry] = {}
        self._times: dict[Hashable, int] = {}  # how often each operation was met in this pass
        self._made_by: dict[int, Hashable] = {}
        self._met: dict[int, tuple[Any, int, Tensor]] = {}  # a weak reference, the version, and the same without memory
        self._saved: dict[int, tuple[Tensor, int]] = {}  # the value with this serial, and its version then
        self._read: dict[int, tuple[Tensor, int]] = {}  # clean values that random operations read
        self._serials = WeakIdKeyDictionary()
        self._next = 0
        given = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
        roots = [p for name, p in model.named_parameters() if name not in names] + list(model.buffers()) + given
        self._roots: dict[int, Tensor] = {}
        self._before: list[tuple[Tensor, Tensor]] = []
        if self.usable:
            self._roots = {self._name(root): root for root in roots}
            self._before = [(tensor, tensor.clone()) for tensor in [*model.buffers(), *given]]

    def finish_recording(self, output: Any = None) -> None:
        """End the first pass, given what it returned; from now on clean operations are answered."""
        self._note_read(_tensors_in(output))
        self.recording = False
        if any(tensor._version != version for tensor, version in self._read.values()):
            self.usable = False  # a random operation read a value that was overwritten afterwards
        if any(not torch.equal(now, then) for now, then in self._before):
            self.usable = False  # the pass changed an input or a buffer, so all of it must run every time
        for serial, (reference, version, shape) in self._met.items():
            tensor = reference()
            self._saved[serial] = (shape, -1) if tensor is None else (tensor, version)
        self._saved |= {serial: (root, root._version) for serial, root in self._roots.items()} | self._read
        kept = {
            id(tensor): tensor.nbytes for tensor, _ in self._saved.values() if not (tensor.is_meta or tensor._is_view())
        }
        self.usable = self.usable and sum(kept.values()) - sum(r.nbytes for r in self._roots.values()) <= _MOST_BYTES
        self._met, self._read = {}, {}
        if not self.usable:
            self._saved, self._record, self._before = {}, {}, []

    def replay(self) -> "SharedPrefix":
        """Prepare a later pass: enter the result as a context, and `check` what the pass returns."""
        self._times = {}
        self._serials = WeakIdKeyDictionary()
        for serial, root in self._roots.items():
            self._serials[root] = (serial, root._version)
        return self

    def check(self, output: Any) -> None:
        """Raise `Diverged` if a returned value does not exist any more; note if a buffer or an input was changed."""
        known = [tensor for tensor in _tensors_in(output) if tensor in self._serials]
        if any(self._stale(self._serials[leaf][0]) for leaf in known):
            raise Diverged
        self.usable = all(torch.equal(now, then) for now, then in self._before)

    def restore(self) -> None:
        """Undo the changes to inputs and buffers by a pass that diverged."""
        for now, then in self._before:
            now.copy_(then)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer an operation from the record, or run it and record it."""
        kwargs = kwargs or {}
        if not self.usable:
            return func(*args, **kwargs)
        tensors: list[Tensor] = []
        try:
            key: Hashable = (func, _ambience(), self._key(args, tensors), self._key(kwargs, tensors))
        except _Unknown:
            return self._run_random(func, args, kwargs)
        # The same operation on the same values again has a result of its own, which may be changed in place.
        self._times[key] = self._times.get(key, 0) + 1
        key = (key, self._times[key])
        if func in _BACK_DOORS:
            if not self.recording:
                raise Diverged
            self.usable = False
            return func(*args, **kwargs)
        if self.recording:
            return self._run_clean(func, args, kwargs, key, tensors)
        entry = self._record.get(key)
        return self._run_random(func, args, kwargs) if entry is None else self._answer(entry, tensors)

    def _key(self, value: Any, tensors: list[Tensor]) -> Hashable:
        """Return a hashable form of an argument, with serial numbers for clean tensors; raise for unknown tensors."""
        if isinstance(value, Tensor):
            known = self._serials.get(value)
            if known is None or type(value) not in (Tensor, nn.Parameter):
                raise _Unknown
            serial, version = known
            if value._version != version:  # changed through an alias, so it is no longer the recorded value
                if not self.recording:
                    raise Diverged
                self.usable = False
                raise _Unknown
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
        if not tensors and not any(isinstance(leaf, Tensor) for leaf in leaves):
            return result  # without tensors: it is called for its effect, not for what it returns
        changed = [
            (at, t) for at, (t, version) in enumerate(zip(tensors, versions, strict=True)) if t._version != version
        ]
        if any(not torch.equal(a, b) for a, b in zip(states, self._random_states(), strict=True)):
            self._forget([tensor for _, tensor in changed])
            self._note_read(tensors)
            return result  # it uses random numbers, so its result is not clean
        if any(self._serials[tensor][0] in self._roots for _, tensor in changed):
            self._forget([tensor for _, tensor in changed])
            return result  # it changes an input, a parameter or a buffer, so it must run in every pass
        entry = _Entry(list(leaves), spec, [None] * len(leaves))
        entry.changed = [(position, self._name(tensor)) for position, tensor in changed]
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                known = self._serials.get(leaf)
                serial = self._name(leaf) if known is None or known[1] != leaf._version else known[0]
                entry.leaves[position], entry.serials[position] = None, serial
                self._made_by[serial] = key
        self._record[key] = entry
        return result

    def _run_random(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that a random weight has touched, or that is not recorded."""
        used = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf in self._serials]
        if self.recording:
            self._note_read(used)
        elif any(self._stale(self._serials[leaf][0]) for leaf in used):
            raise Diverged
        versions = [leaf._version for leaf in used]
        start = time.perf_counter()
        result = func(*args, **kwargs)
        if self.recording:
            made = [leaf.nbytes for leaf in tree_leaves(result) if type(leaf) is Tensor]
            self.random_seconds += time.perf_counter() - start
            self.random_calls += bool(made)
            self.random_bytes += sum(made)
        # Tensors that now hold random values are not clean any more, and every pass must make them anew.
        self._forget([leaf for leaf, version in zip(used, versions, strict=True) if leaf._version != version])
        return result

    def _answer(self, entry: _Entry, tensors: list[Tensor]) -> Any:
        for position, serial in entry.changed:  # an alias of memory that the first pass has changed already
            self._serials[tensors[position]] = (serial, tensors[position]._version)
        leaves = list(entry.leaves)
        for position, made in enumerate(entry.serials):
            if made is not None:
                leaves[position] = next((t for t in tensors if self._serials[t][0] == made), None)
                if leaves[position] is None:
                    leaves[position] = alias = self._saved[made][0].detach()
                    self._serials[alias] = (made, alias._version)
        return tree_unflatten(leaves, entry.spec)

    def _stale(self, serial: int) -> bool:
        """Whether the value has been overwritten since, or was not kept."""
        tensor, version = self._saved[serial]
        return tensor._version != version

    def _note_read(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if tensor in self._serials:
                serial, version = self._serials[tensor]
                self.usable = self.usable and tensor._version == version  # else changed through an alias
                self._read[serial] = (tensor, version)

    def _forget(self, tensors: list[Tensor]) -> None:
        for tensor in {id(tensor): tensor for tensor in tensors}.values():
            serial = self._serials.pop(tensor)[0]
            self._roots.pop(serial, None)
            self._read.pop(serial, None)
            if self.recording:
                self._record.pop(self._made_by.get(serial), None)

    def _name(self, tensor: Tensor) -> int:
        """Give a serial number to the present value of ``tensor``."""
        self._next += 1
        self._serials[tensor] = (self._next, tensor._version)
        self._met[self._next] = (weakref.ref(tensor), tensor._version, torch.empty_like(tensor, device="meta"))
        return self._next

    def _random_states(self) -> list[Tensor]:
        devices = {root.device for root in self._roots.values() if root.device.type == "cuda"}
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _tensors_in(output: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    map_tensors(tensors.append, output)
    return tensors


def _transparent(model: nn.Module) -> bool:
    """Whether all operations of the model are visible: no compiled parts, no hooks, and version counters everywhere."""
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    everywhere = nn.modules.module
    return not (
        torch.is_inference_mode_enabled()
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
        or any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
        or any(getattr(module, name, None) for module in model.modules() for name in hooks)
        or any(tensor.is_inference() for tensor in [*model.parameters(), *model.buffers()])
    )


def _ambience() -> Hashable:
    """The settings that an operation depends on, besides its arguments."""
    cpu, cuda = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    dtypes = (torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")) if cpu or cuda else ()
    return (cpu, cuda, dtypes, torch.get_default_dtype())
