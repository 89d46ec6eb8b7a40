"""How often each random weight is used in a pass.

A rule of a stand-in is right for one use of a weight: the noise of two uses must be the same, and a rule that moves
noise to the outputs forgets it. So stand-ins count their uses. A pass in which a weight was used in two ways that do
not agree is undone and run again, and that weight is then drawn plainly: one draw for the whole pass.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.errors import InputError

__all__ = ["Origin", "Reuse", "Uses", "consistently", "uses_of_now"]

T = TypeVar("T")


@dataclass
class Reuse:
    """What is known of a model: which weights are drawn plainly under which rules, and which buffers a pass changes.

    A weight that stays in this list although its model has changed is still drawn correctly, only with more noise.
    """

    plain: dict[str, set[str]] = field(default_factory=dict)
    changing: dict[bool, set[str]] = field(default_factory=dict)


@dataclass
class Uses:
    """The uses of random weights in one pass.

    Attributes:
        reuse: what earlier passes have shown.
        examples: the length of the batch; None if unknown.
        ruled: how often a rule has answered for a weight, by the names of rules and weight.
        drawn: how often an operation got the draw of a weight.
        conflicts: the names of rules and weights whose uses do not agree.
    """

    reuse: Reuse
    examples: int | None = None
    ruled: Counter[tuple[str, str]] = field(default_factory=Counter)
    drawn: Counter[tuple[str, str]] = field(default_factory=Counter)
    conflicts: set[tuple[str, str]] = field(default_factory=set)
    made: int = 0

    def is_plain(self, rules: str, weight: str) -> bool:
        """Return whether the weight is drawn once for the whole pass, and no rule is used."""
        self.made += 1
        return weight in self.reuse.plain.get(rules, ())

    def note(self, rules: str, weight: str, *, by_rule: bool, agree: bool) -> None:
        """Count a use.

        Args:
            rules: the name of the rules.
            weight: the name of the weight.
            by_rule: whether a rule has answered; else the operation got the draw of the pass.
            agree: whether two answers of the rules show the same draw.
        """
        key = (rules, weight)
        (self.ruled if by_rule else self.drawn)[key] += 1
        if self.ruled[key] and (self.drawn[key] or (self.ruled[key] > 1 and not agree)):
            self.conflicts.add(key)


_NOW: ContextVar[Uses | None] = ContextVar("uses of weights in this pass", default=None)


def uses_of_now() -> Uses | None:
    """Return the count of the pass that is running, to which new stand-ins belong; None outside of `consistently`."""
    return _NOW.get()


def consistently(
    attempt: Callable[[], T], reuse: Reuse, model: nn.Module, inputs: Any, generator: torch.Generator | None
) -> T:
    """Run a pass. If a weight was used in two ways that do not agree, undo the pass and run it again.

    The second pass starts from the same random states and buffers as the first one, so the result and every state are
    as if the weight had been drawn plainly from the start.

    Args:
        attempt: makes the stand-ins and runs the pass.
        reuse: what is known of the model, which is added to.
        model: the model.
        inputs: the inputs of the pass.
        generator: the source of random numbers; the default one if it is None.
    """
    while torch.compiler.is_compiling():
        # Dynamo first runs the pass on tensors without values, to see its outputs. Nothing need be undone after that
        # run, and it tells what is used twice, so that later runs, which record operations, need no second attempt.
        uses = Uses(reuse, _length(inputs))
        with _counting(uses):
            result = attempt()
        if not uses.conflicts:
            return result
        for rules, weight in uses.conflicts:
            reuse.plain.setdefault(rules, set()).add(weight)
    while True:
        uses = Uses(reuse, _length(inputs))
        before = _Before(model, inputs, generator, reuse)
        try:
            with _counting(uses):
                result = attempt()
        except Exception:
            if not uses.conflicts:
                raise
        if not uses.conflicts:
            before.learn()
            return result
        before.restore(uses.conflicts)
        for rules, weight in uses.conflicts:
            reuse.plain.setdefault(rules, set()).add(weight)


@contextmanager
def _counting(uses: Uses) -> Iterator[None]:
    token = _NOW.set(uses)
    try:
        yield
    finally:
        _NOW.reset(token)


class _Before:
    """The states that a pass may change: random states, buffers and inputs.

    The first pass in each mode keeps copies of all of them. Later passes copy only the buffers that changed before.
    Values are compared, because batch norm changes its statistics without a trace in their version counters.
    """

    def __init__(self, model: nn.Module, inputs: Any, generator: torch.Generator | None, reuse: Reuse) -> None:
        self.reuse, self.mode, self.model = reuse, model.training, model
        known = reuse.changing.get(self.mode)
        self.first = known is None
        self.generators = [torch.default_generator]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self.generators += list(torch.cuda.default_generators)
        if generator is not None:
            self.generators.append(generator)
        self.states = [source.get_state() for source in self.generators]
        self.buffers: list[tuple[str, dict[str, Any], str, Tensor, int, Tensor | None]] = []
        with torch.no_grad():
            for path, module in model.named_modules():
                for name, value in module._buffers.items():
                    if value is not None:
                        full = f"{path}.{name}"
                        copy = value.clone() if known is None or full in known else None
                        self.buffers.append((full, module._buffers, name, value, _version(value), copy))
            tensors = [leaf for leaf in tree_leaves(inputs) if type(leaf) is Tensor]
            self.inputs = [(leaf, _version(leaf), leaf.clone() if self.first else None) for leaf in tensors]

    def learn(self) -> None:
        """Remember which buffers the pass has changed. A comparison waits for a GPU, so none is made twice."""
        known = self.reuse.changing.get(self.mode, set())
        changed = {
            full for full, home, name, was, version, copy in self.buffers
            if full not in known and (home.get(name) is not was or _changed(was, version, copy))
        }  # fmt: skip
        self.reuse.changing[self.mode] = known | changed

    def restore(self, conflicts: set[tuple[str, str]]) -> None:
        """Undo what the pass has changed."""
        for source, state in zip(self.generators, self.states, strict=True):
            source.set_state(state)
        lost = False
        with torch.no_grad():
            for _, home, name, was, version, copy in self.buffers:
                home[name] = was
                lost |= _put_back(was, version, copy)
            for leaf, version, copy in self.inputs:
                lost |= _put_back(leaf, version, copy)
        if lost:
            names = ", ".join(sorted(repr(weight) for _, weight in conflicts))
            for rules, weight in conflicts:
                self.reuse.plain.setdefault(rules, set()).add(weight)
            raise InputError(
                f"this pass used {names} more than once, as earlier passes did not, and changed a buffer or an input "
                "that they did not change, so it cannot be run again by itself; call the model once more"
            )


def _put_back(tensor: Tensor, version: int, copy: Tensor | None) -> bool:
    """Write the copy back if the tensor was changed; return whether it was changed and has no copy."""
    if not _changed(tensor, version, copy):
        return False
    if copy is None:
        return True
    tensor.copy_(copy)
    return False


def _changed(tensor: Tensor, version: int, copy: Tensor | None) -> bool:
    return _version(tensor) != version if copy is None else not torch.equal(tensor, copy)


def _version(tensor: Tensor) -> int:
    """The count of changes in place; −1 for tensors of inference mode, which count nothing."""
    return -1 if tensor.is_inference() else tensor._version


def _length(inputs: Any) -> int | None:
    """The length of the batch: that of the first axis of the first tensor which has axes."""
    return next((len(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()), None)


class Origin:
    """The random weight that a tensor without values was made of by moving entries, and which of them were used.

    Propagations of one pass take the weight of an operation as independent of everything before. That holds if each
    entry of a weight is used once, as the rows of a packed weight of attention are.
    """

    def __init__(self, name: str, whole: Tensor) -> None:
        self.name = name
        whole = whole.stored if isinstance(whole, SparseTensor) else whole
        self._storage, self._size = _storage_of(whole), whole.numel()
        self._used: list[tuple[torch.Size, tuple[int, ...], int] | None] = []

    def use(self, part: Tensor) -> bool:
        """Note that the entries in ``part`` are used; return whether one of them was used before."""
        part = part.stored if isinstance(part, SparseTensor) else part
        view = (part.shape, part.stride(), int(part.storage_offset())) if _storage_of(part) == self._storage else None
        before = [other for other in self._used if self._overlap(view, other)]
        self._used.append(view)
        return bool(before)

    def _overlap(self, one: Any, other: Any) -> bool:
        if one is None or other is None:  # a copy, of which it is not known which entries it has
            return True
        (first, past), (start, end) = _extent(*one), _extent(*other)
        if past <= start or end <= first:
            return False
        marks = np.zeros(max(past, end), dtype=np.bool_)  # not of torch, whose tensors have no values in a trace
        _strided(marks, *one)[...] = True
        return bool(_strided(marks, *other).any())


def _strided(marks: Any, shape: torch.Size, stride: tuple[int, ...], offset: int) -> Any:
    """Return the entries of one byte each that a tensor of this shape has in memory."""
    return np.lib.stride_tricks.as_strided(marks[offset:], tuple(shape), tuple(stride))


def _storage_of(tensor: Tensor) -> int | None:
    try:
        if torch.compiler.is_compiling():
            # Dynamo's first run has tensors without values, which share storages as real ones do. In later runs nothing
            # shares a storage, and all parts count as views; the first run has judged them.
            fake = type(tensor).__name__ == "FakeTensor"
            return tensor.untyped_storage()._cdata if fake else None
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


def _extent(shape: torch.Size, stride: tuple[int, ...], offset: int) -> tuple[int, int]:
    """The first position in memory, and the one behind the last."""
    if 0 in shape:
        return offset, offset
    return offset, offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1
