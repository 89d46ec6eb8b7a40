"""Passes through a model whose parameters are replaced meanwhile: one at a time, and again when torch recomputes.

A pass puts tensors in the place of parameters, and the modules are shared by all threads. So every pass holds the lock
of its modules. Activation checkpointing (`torch.utils.checkpoint`) runs parts of a pass a second time, in the backward
pass, when the parameters are back in their places. Those parts then run with the tensors of their own pass.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.func import functional_call

from leanbayes._sharding import Part
from leanbayes.errors import InputError

__all__ = ["LateTensors", "call_with", "exclusive", "inside_pass", "modules_inside"]

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

    def of(self, inside: set[nn.Module]) -> list[_Lock]:
        """Return the locks of these modules, which are all modules of some models, in their one order."""
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


@dataclass(frozen=True)
class _Taken:
    """Locks that a thread holds, and all modules that they were taken for."""

    locks: list[_Lock]
    inside: set[nn.Module]


class _Held(threading.local):
    """What this thread holds, the innermost context last."""

    def __init__(self) -> None:
        self.taken: list[_Taken] = []


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
    known = next((taken for taken in _held.taken if taken.inside.issuperset(modules)), None)
    if known is None:  # otherwise nobody need look for the locks: an outer context of this thread holds them
        inside = modules_inside(*modules)
        mine = _Taken(_LOCKS.of(inside), inside)
    else:
        mine = known
    with ExitStack() as stack:
        for lock in mine.locks:
            if not lock.lock.acquire(timeout=patience):
                raise InputError(
                    "the model is in use by another thread, which seems to wait for this one: a checkpoint cannot be "
                    "computed again inside a prediction; call backward() outside of it"
                )
            stack.callback(lock.lock.release)
        if known is None:
            _held.taken.append(mine)
            stack.callback(_release, _held.taken, mine)
        yield


def _release(taken: list[_Taken], mine: _Taken) -> None:
    """Forget what is not held any more. Contexts of generators may end in another order than they began."""
    taken[:] = [one for one in taken if one is not mine]


def modules_inside(*modules: nn.Module) -> set[nn.Module]:
    """Return these modules and all inside them, without their names, which `torch.nn.Module.modules` spells out.

    >>> len(modules_inside(nn.Sequential(nn.Linear(1, 1), nn.ReLU())))
    3
    """
    inside: set[nn.Module] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in inside:
            inside.add(module)
            waiting.extend(module.children())
    return inside


class LateTensors:
    """Tensors that take the place of parameters only while the part of the model that gathers these parameters runs.

    The hooks of ``fully_shard`` put the whole weights into a module just before it runs. The hooks of this class run
    after those, and put the tensors of the pass over the weights; they also take them away again before torch frees the
    weights.

    Args:
        parts: the parts of the model that gather weights.
        make: makes the tensors of a part from the weights that have just been gathered.
        generator: the source of random numbers of the pass.
        keep: whether a part that runs a second time in the pass meets the same tensors again. Otherwise they are made
            again, which must give the same values.
        recomputable: whether a checkpoint may use the tensors again in the backward pass.
    """

    def __init__(
        self,
        parts: list[Part],
        make: Callable[[Part], dict[str, Tensor]],
        generator: torch.Generator | None,
        *,
        keep: bool,
        recomputable: bool = True,
    ) -> None:
        self.parts, self.make, self.generator, self.keep = parts, make, generator, keep
        self.recomputable = recomputable
        self.made: dict[str, Tensor] = {}
        self.inside: tuple[Part, ...] = ()  # the parts that are running now

    @contextmanager
    def installed(self, inside: tuple[Part, ...] = ()) -> Iterator[None]:
        """Inside this context, the parts of the model meet these tensors; those of ``inside`` run already."""
        with ExitStack() as stack:
            for part in inside:
                # A checkpoint compares what its operations save with what they saved the first time, when these tensors
                # were made already; so it must not see what is saved here.
                with torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
                    covered = self._cover(part)
                stack.callback(self._uncover, part, covered)
            for part in self.parts:
                module, left = part.module, list[_Covered]()
                handles = (
                    module.register_forward_pre_hook(_apart, prepend=True, with_kwargs=True),
                    module.register_forward_pre_hook(partial(self._enter, part, left), with_kwargs=True),
                    module.register_forward_hook(partial(self._leave, part, left), prepend=True, always_call=True),
                    module.register_forward_hook(_together),
                )
                for handle in handles:
                    stack.callback(handle.remove)
            yield

    def _enter(self, part: Part, covered: list["_Covered"], module: nn.Module, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        covered.extend(self._cover(part))
        return map_parts(args, "together"), map_parts(kwargs, "together")

    def _leave(self, part: Part, covered: list["_Covered"], module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG002
        if covered:  # nothing is, if the part was left by an error before it was entered
            self._uncover(part, covered)
            covered.clear()
        return map_parts(output, "apart")

    def _cover(self, part: Part) -> list["_Covered"]:
        """Put the tensors of a part over its weights, and return what they cover."""
        tensors = self.make(part)
        if self.keep:
            self.made = tensors | self.made
            tensors = self.made
        covered: list[_Covered] = []
        for name in part.names:
            for home, key in part.holders[name]:
                covered.append((home, key, home._parameters[key]))
                home._parameters[key] = tensors[name]  # type: ignore[assignment]
        _renew_flat_weights(covered)
        self.inside = (*self.inside, part)
        return covered

    def _uncover(self, part: Part, covered: list["_Covered"]) -> None:
        """Bring the weights of a part back, before torch frees them."""
        for home, key, value in covered:
            home._parameters[key] = value  # type: ignore[assignment]
        _renew_flat_weights(covered)
        self.inside = tuple(one for one in self.inside if one is not part)


_Covered = tuple[nn.Module, str, Tensor | None]
"""A module, the name of one of its parameters, and that parameter."""


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _renew_flat_weights(covered: list[_Covered]) -> None:
    for home in {home for home, _, _ in covered}:
        if isinstance(home, nn.RNNBase):
            home._init_flat_weights()


def _apart(module: nn.Module, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    """Show torch the plain tensors of which the arguments are made, because it follows their gradients."""
    return map_parts(args, "apart"), map_parts(kwargs, "apart")


def _together(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG001
    return map_parts(output, "together")


def map_parts(value: Any, method: str) -> Any:
    """Call the method of everything inside a value that has it: "apart" or "together"; see `MomentTensor.apart`."""
    if hasattr(value, method):
        return getattr(value, method)()
    if isinstance(value, dict):
        items = {name: map_parts(item, method) for name, item in value.items()}
        changed = any(items[name] is not item for name, item in value.items())
        return items if changed else value
    if isinstance(value, tuple | list):
        parts = [map_parts(item, method) for item in value]
        if all(part is item for part, item in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


@dataclass(frozen=True)
class _Pass:
    """A pass that is running: the model, and the tensors in the place of its parameters, some of which come late."""

    model: nn.Module
    tensors: Mapping[str, Tensor]
    late: LateTensors | None = None

    def tensors_of_now(self) -> list[Tensor]:
        """Return the tensors whose weights are there now; torch has freed those of the parts that do not run."""
        if self.late is None:
            return list(self.tensors.values())
        names = [name for part in self.late.inside for name in part.names if name in self.late.made]
        return [*self.tensors.values(), *(self.late.made[name] for name in names)]

    def replaces(self) -> bool:
        """Return whether any parameter is replaced."""
        return bool(self.tensors) or self.late is not None

    def late_installed(self, inside: tuple[Part, ...] = ()) -> AbstractContextManager[None]:
        """Install the tensors that come late."""
        return nullcontext() if self.late is None else self.late.installed(inside)


_RUNNING: ContextVar[tuple[_Pass, ...]] = ContextVar("running passes", default=())


def inside_pass(model: nn.Module) -> bool:
    """Return whether this thread is inside a pass through ``model``."""
    return any(running.model is model for running in _RUNNING.get())


def call_with(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    late: LateTensors | None = None,
) -> Any:
    """Return ``model(*args, **kwargs)`` with ``tensors`` in the place of parameters; tied ones are replaced together.

    Only one thread at a time runs such a pass through a model. Parts that `torch.utils.checkpoint` computes again in
    the backward pass see the same tensors. ``late`` holds further tensors, for parameters that torch gathers.

    >>> call_with(nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[2.0]])}, (torch.ones(1, 1),), {})
    tensor([[2.]])
    """
    if torch.compiler.is_compiling():
        return functional_call(model, dict(tensors), args, dict(kwargs))
    one = _Pass(model, tensors, late)
    if one.replaces() and torch.is_grad_enabled():
        _watch_checkpoints()
    with exclusive(model):
        token = _RUNNING.set((*_RUNNING.get(), one))
        try:
            with one.late_installed():
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
    running = tuple(one for one in _RUNNING.get() if one.replaces())
    if not running or not torch.is_grad_enabled():
        return function
    tensors = [tensor for one in running for tensor in one.tensors_of_now()]
    used = [*tensors, *(one.late for one in running if one.late is not None)]
    strange = next((t for t in used if not getattr(t, "recomputable", isinstance(t, Tensor))), None)
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
    lates = [one.late for one in running if one.late is not None]
    sources += [late.generator for late in lates if late.generator is not None and late.generator not in sources]
    states = [generator.get_state() for generator in sources]
    made = [(dict(late.made), late.inside) for late in lates]

    def again(*args: Any, **kwargs: Any) -> Any:
        later = [tensor.recall(before) for tensor, before in zip(drawing, drawn, strict=True)]
        ends = [generator.get_state() for generator in sources]
        made_later = [(late.made, late.inside) for late in lates]
        try:
            for generator, state in zip(sources, states, strict=True):
                generator.set_state(state)
            for late, (tensors_then, _) in zip(lates, made, strict=True):
                late.made, late.inside = dict(tensors_then), ()
            return _inside(running, function, args, kwargs, tuple(part for _, inside in made for part in inside))
        finally:
            for late, (tensors_now, inside) in zip(lates, made_later, strict=True):
                late.made, late.inside = tensors_now, inside
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


def _inside(
    running: tuple[_Pass, ...], function: Callable[..., Any], args: Any, kwargs: Any, parts: tuple[Part, ...] = ()
) -> Any:
    """Call a function inside passes, the innermost of which is the last, and inside parts of their models."""
    if not running:
        return function(*args, **kwargs)
    one, inner = running[0], running[1:]
    tensors = {f"model.{name}": tensor for name, tensor in one.tensors.items()}
    with exclusive(one.model, patience=_PATIENCE):
        token = _RUNNING.set((*_RUNNING.get(), one))
        try:
            own = () if one.late is None else tuple(part for part in parts if part in one.late.parts)
            with one.late_installed(own):
                return _replaced(
                    one.model,
                    _Part(one.model),
                    tensors,
                    (lambda: _inside(inner, function, args, kwargs, parts), (), {}),
                    {},
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
        if cls is not kind or not any(one.replaces() for one in _RUNNING.get()) or not torch.is_grad_enabled():
            return super(kind, cls).apply(*args)
        function, preserve, *inputs = args
        return checkpointing.checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)

    checkpointing._checkpoint_without_reentrant_generator = watched
    kind.apply = classmethod(apply)  # type: ignore[assignment]
