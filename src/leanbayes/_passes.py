"""Passes through a model whose parameters are replaced meanwhile: one at a time, and again when torch recomputes.

A pass puts tensors in the place of parameters, and the modules are shared by all threads. So every pass holds the lock
of its modules. Activation checkpointing (`torch.utils.checkpoint`) runs parts of a pass a second time, in the backward
pass, when the parameters are back in their places. Those parts then run with the tensors of their own pass.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.func import functional_call

from leanbayes.errors import InputError

__all__ = ["call_with", "exclusive", "inside_pass"]

_PATIENCE = 120.0  # seconds that a recomputation waits for the lock, which its own waiting caller may hold on a GPU


class _Lock:
    """A re-entrant lock with a number, by which several of them are always taken in the same order."""

    count = 0

    def __init__(self) -> None:
        _Lock.count += 1
        self.number, self.lock = _Lock.count, threading.RLock()


class _Locks:
    """The locks of all modules. A module has the lock of the first model that it was used in."""

    def __init__(self) -> None:
        self.table: weakref.WeakKeyDictionary[nn.Module, _Lock] = weakref.WeakKeyDictionary()
        self.guard = threading.Lock()

    def of(self, modules: tuple[nn.Module, ...]) -> list[_Lock]:
        """Return the locks of these modules and of all modules inside them, in their one order."""
        inside = {child for module in modules for child in module.modules()}
        with self.guard:
            known = {lock for child in inside if (lock := self.table.get(child)) is not None}
            new = next(iter(known)) if len(known) == 1 else None
            for child in inside:
                if child not in self.table:
                    new = new or _Lock()
                    self.table[child] = new
                    known.add(new)
        return sorted(known, key=lambda lock: lock.number)


_LOCKS = _Locks()


class _Held(threading.local):
    """The locks that this thread holds, by the identities of the modules that they were taken for."""

    def __init__(self) -> None:
        self.locks: dict[tuple[int, ...], list[_Lock]] = {}


_held = _Held()


def _forget_locks() -> None:
    """In a forked process no other thread lives that could release a lock."""
    global _LOCKS, _held
    _LOCKS, _held = _Locks(), _Held()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def exclusive(*modules: nn.Module, patience: float = -1) -> Iterator[None]:
    """Inside this context no other thread runs a pass through these modules or changes their mode.

    The context may be entered again by the same thread.

    Args:
        modules: the modules; models that have a module in common exclude each other, too.
        patience: for how many seconds to wait; for ever by default.
    """
    key = tuple(map(id, modules))
    known = _held.locks.get(key)  # the context is entered again: nobody need look for the locks
    locks = _LOCKS.of(modules) if known is None else known
    with ExitStack() as stack:
        for lock in locks:
            if not lock.lock.acquire(timeout=patience):
                raise InputError(
                    "the model is in use by another thread, which seems to wait for this one: a checkpoint cannot be "
                    "computed again inside a prediction; call backward() outside of it"
                )
            stack.callback(lock.lock.release)
        if known is None:
            _held.locks[key] = locks
            stack.callback(_held.locks.pop, key, None)
        yield


@dataclass(frozen=True)
class _Pass:
    """A pass that is running: the model, and the tensors in the place of its parameters."""

    model: nn.Module
    tensors: Mapping[str, Tensor]


_RUNNING: ContextVar[tuple[_Pass, ...]] = ContextVar("running passes", default=())


def inside_pass(model: nn.Module) -> bool:
    """Return whether this thread is inside a pass through ``model``."""
    return any(running.model is model for running in _RUNNING.get())


def call_with(model: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return ``model(*args, **kwargs)`` with ``tensors`` in the place of parameters; tied ones are replaced together.

    Only one thread at a time runs such a pass through a model. Parts that `torch.utils.checkpoint` computes again in
    the backward pass see the same tensors.

    >>> call_with(nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[2.0]])}, (torch.ones(1, 1),), {})
    tensor([[2.]])
    """
    if torch.compiler.is_compiling():
        return functional_call(model, dict(tensors), args, dict(kwargs))
    if tensors and torch.is_grad_enabled():
        _watch_checkpoints()
    with exclusive(model):
        token = _RUNNING.set((*_RUNNING.get(), _Pass(model, tensors)))
        try:
            return _replaced(model, model, tensors, args, kwargs)
        finally:
            _RUNNING.reset(token)


def _replaced(
    model: nn.Module, called: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    try:
        placed = _placed(called, tensors)
        return functional_call(called, placed, args, dict(kwargs), tie_weights=False)
    finally:
        for module in model.modules():
            if isinstance(module, nn.RNNBase):  # it caches its weights and would keep the replacements alive
                module._init_flat_weights()


def _placed(called: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by all names of the parameters whose place they take, one name for each place.

    A parameter that is tied has several places. A module that is a part of another in two positions has two names for
    each of its places; torch, if it gets both, leaves the replacement in the module after the call.
    """
    own: dict[str, Tensor] = {}
    places: list[tuple[str, Tensor]] = []
    seen: set[int] = set()
    for path, module in called.named_modules(remove_duplicate=False):
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None:
                full = f"{path}.{name}" if path else name
                own[full] = value
                if id(module) not in seen:
                    places.append((full, value))
        seen.add(id(module))
    wanted = {id(own[name]): tensor for name, tensor in tensors.items() if name in own}
    placed = {name: tensor for name, tensor in tensors.items() if name not in own}
    placed |= {name: wanted[id(value)] for name, value in places if id(value) in wanted}
    return placed


class _Part(nn.Module):
    """A function that belongs to a model: with it, the parameters are replaced while the function alone runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as it must run when a checkpoint is computed again: inside the passes of now."""
    running = tuple(one for one in _RUNNING.get() if one.tensors)
    if not running or not torch.is_grad_enabled():
        return function
    tensors = [tensor for one in running for tensor in one.tensors.values()]
    strange = next((t for t in tensors if not getattr(t, "recomputable", isinstance(t, Tensor))), None)
    if strange is not None:
        raise InputError(
            f"the model checkpoints its activations, but a {type(strange).__name__} cannot be computed again; turn "
            'gradient checkpointing off, or train by draws: propagate="sample" or "mirrored"'
        )
    # A stand-in may draw as it is used: the second time it must draw the same numbers, in the same order.
    drawing: list[Any] = [tensor for tensor in tensors if hasattr(tensor, "recomputable")]
    for tensor in drawing:
        tensor.settle()
    drawn = [tensor.recall() for tensor in drawing]
    sources = list({id(generator): generator for generator in map(_generator_of, drawing)}.values())
    states = [generator.get_state() for generator in sources]

    def again(*args: Any, **kwargs: Any) -> Any:
        later = [tensor.recall(before) for tensor, before in zip(drawing, drawn, strict=True)]
        ends = [generator.get_state() for generator in sources]
        try:
            for generator, state in zip(sources, states, strict=True):
                generator.set_state(state)
            return _inside(running, function, args, kwargs)
        finally:
            for generator, state in zip(sources, ends, strict=True):
                generator.set_state(state)
            for tensor, end in zip(drawing, later, strict=True):
                tensor.recall(end)

    return again


def _generator_of(tensor: Any) -> torch.Generator:
    """The source of the numbers that a stand-in draws."""
    generator: torch.Generator | None = tensor.generator
    if generator is not None:
        return generator
    if tensor.is_cuda:
        return torch.cuda.default_generators[tensor.device.index or 0]
    return torch.default_generator


def _inside(running: tuple[_Pass, ...], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function inside passes, the innermost of which is the last."""
    if not running:
        return function(*args, **kwargs)
    one, inner = running[0], running[1:]
    tensors = {f"model.{name}": tensor for name, tensor in one.tensors.items()}
    with exclusive(one.model, patience=_PATIENCE):
        token = _RUNNING.set((*_RUNNING.get(), one))
        try:
            return _replaced(
                one.model, _Part(one.model), tensors, (lambda: _inside(inner, function, args, kwargs), (), {}), {}
            )
        finally:
            _RUNNING.reset(token)


_watching = False


def _watch_checkpoints() -> None:
    """Let `torch.utils.checkpoint` run what it computes again inside the pass to which it belongs.

    Outside of passes checkpoints stay as they are. Inside, a checkpoint with ``use_reentrant=True`` is computed as
    one with ``use_reentrant=False``: its own way knows nothing of tensors that are not arguments, such as weight draws,
    and runs backward through their graph a second time.
    """
    global _watching
    if _watching:
        return
    _watching = True
    generator, kind = checkpointing._checkpoint_without_reentrant_generator, checkpointing.CheckpointFunction

    def watched(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generator(_again(fn), *args, **kwargs)

    def apply(cls: Any, *args: Any) -> Any:
        if cls is not kind or not any(one.tensors for one in _RUNNING.get()) or not torch.is_grad_enabled():
            return super(kind, cls).apply(*args)
        function, preserve, *inputs = args
        return checkpointing.checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)

    checkpointing._checkpoint_without_reentrant_generator = watched
    kind.apply = classmethod(apply)  # type: ignore[assignment]
