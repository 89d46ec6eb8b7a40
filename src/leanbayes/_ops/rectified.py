"""Rectified activations that are computed again in the backward pass, and not kept until then.

In a ResNet each convolution takes y = relu(norm(z)), or y = relu(norm(z) + shortcut). Norms keep their input z, and y
follows from z in one sweep. Without this module, autograd also keeps y, once for the convolution and the rectifier
together. A product by sparse weights costs so little that these activations are most of the memory of a training step.

`release` looks at the graph behind the input of a product. If y can be computed again, it replaces what the rectifier
and the product have saved by one shared `Rectified`. No result changes: values are computed by the same operations on
the same numbers, and torch's own hooks of saved tensors keep the graph of second derivatives.

The information lies where the graph is. `remember` writes into the node of a norm how its output is computed again, and
`release` writes into the node of a rectifier who has its output. Both write nothing that keeps tensors alive.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

__all__ = ["Norm", "Rectified", "Saved", "is_watched", "release", "remember"]

_NORM, _ACTIVATION = "leanbayes.norm", "leanbayes.activation"  # keys of the metadata of nodes
_LEAST = 2**16  # numbers of an activation from which its memory is worth the calls
_DEEPEST = 4  # sums on top of each other that are released; the next one is kept, so no recomputation goes far back
_LOCK = threading.Lock()  # two threads may give one activation to two products


class Norm(Protocol):
    """The output of a norm as a function of tensors that are kept anyway."""

    like: Tensor
    """A tensor of the shape, strides and dtype of the output."""

    def rectified(self, plus: Tensor | None) -> Tensor:
        """Compute max(norm + plus, 0) as a new tensor."""

    def value(self) -> Tensor:
        """Compute the output of the norm as a new tensor."""


class Saved:
    """A tensor that is needed later, and must not be changed in place until then.

    >>> saved = Saved(torch.ones(2))
    >>> saved.get()
    tensor([1., 1.])
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor.detach(), tensor._version  # both share one counter of versions
        self.like = self.tensor

    def get(self) -> Tensor:
        """Return the tensor, or raise torch's error if it was changed."""
        if self.tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.tensor.type()} {list(self.tensor.shape)}] is at version {self.tensor._version}; expected "
                f"version {self.version} instead"
            )
        return self.tensor


class Rectified:
    """A rectified activation: what it is computed from, and its value while users are waiting for it.

    Users are the rectifier, the products that take the activation, and activations of which it is the shortcut. The
    first of them lets it be computed, and the last one lets it go. In a second backward pass the same begins anew.

    Args:
        y: the activation.
        norm: the norm whose output is rectified.
        shortcut: what is added to the norm before: another norm, an activation, or None.
    """

    def __init__(self, y: Tensor, norm: Norm, shortcut: "Norm | Rectified | Saved | None") -> None:
        witness = y.detach()  # shares the counter of versions with y, and without data it needs no memory
        witness.data = y.new_empty(0)
        self.witness, self.address = Saved(witness), y.data_ptr()
        self.like, self.norm = norm.like, norm
        self.depth: int = 1 + shortcut.depth if isinstance(shortcut, Rectified) else 1
        self.shortcut = User(shortcut) if isinstance(shortcut, Rectified) else shortcut
        self._lock = threading.Lock()
        self._value: Tensor | None = None
        self._users, self._served = weakref.WeakSet[User](), weakref.WeakSet[User]()

    def is_value(self, y: Tensor) -> bool:
        """Return whether a tensor still is the activation that this object stands for, unchanged."""
        return y._version == self.witness.version and y.data_ptr() == self.address and _alike(y, self.like)

    def join(self, user: "User") -> None:
        """Let a user wait for the activation."""
        with self._lock:
            self._users.add(user)

    def get(self, user: "User") -> Tensor:
        """Return the activation to a user, or raise torch's error if the tensor with its values was changed."""
        self.witness.get()
        with self._lock:
            value = self._compute() if self._value is None else self._value
            self._served.add(user)
            waiting = len(self._served) < len(self._users)
            self._value = value if waiting else None
            if not waiting:
                self._served.clear()
            return value

    @torch.no_grad()
    def _compute(self) -> Tensor:
        if self.shortcut is None:
            return self.norm.rectified(None)
        known = isinstance(self.shortcut, User | Saved)
        return self.norm.rectified(self.shortcut.get() if known else self.shortcut.value())  # type: ignore[union-attr]


class User:
    """A user of a rectified activation. It is what keeps the activation, and it waits for it as long as it lives."""

    def __init__(self, activation: Rectified) -> None:
        self.activation = activation
        activation.join(self)

    def get(self) -> Tensor:
        """Return the activation."""
        return self.activation.get(self)


def remember(result: Tensor, norm: Callable[[Any], Norm | None]) -> Tensor:
    """Note how the output of a norm can be computed again, for `release`, and return the output.

    Args:
        result: the output.
        norm: gives the `Norm` from the node of the output, as long as the graph is there. It must not hold that node,
            which would then hold itself.
    """
    if not is_watched(result) and result.grad_fn is not None:
        node: Any = result.grad_fn  # whose metadata torch declares as a method
        node.metadata[_NORM] = norm
    return result


def release(y: Tensor, saved: Tensor, result: Tensor) -> None:
    """Let a product and the rectifier before it keep no activation, if it can be computed again from a norm's input.

    Nothing happens in all other cases: for other inputs, while somebody traces the call or has hooks for saved tensors
    (`torch.utils.checkpoint`, ``save_on_cpu``), and for small activations.

    Args:
        y: the input of the product.
        saved: the tensor that the product has saved first, which is ``y`` or a view of it in the order of its kernels.
        result: a result of the product, which is the output of a `torch.autograd.Function`.
    """
    rectifier: Any = y.grad_fn
    product: Any = result.grad_fn
    if rectifier is None or product is None or rectifier.name() != "ReluBackward0" or y.numel() < _LEAST:
        return
    if is_watched(y) or saved.data_ptr() != y.data_ptr() or saved.numel() != y.numel():
        return
    with _LOCK:
        kept = rectifier.metadata.get(_ACTIVATION, lambda: None)()
        activation = kept or _rectified(rectifier, y) or Saved(y)
        if isinstance(activation, Rectified):
            if not activation.is_value(y):  # somebody has changed it since the first product took it
                return
            if kept is None and not _hook(rectifier, "_raw_saved_result", User(activation), y):
                return
            _hook(product, "_raw_saved_tensors", User(activation), saved)
        elif kept is None:  # the next sum may have it as its shortcut
            _hook(product, "_raw_saved_tensors", activation, saved)
        # The node lives as long as the loss, and a strong reference would keep tensors for so long.
        rectifier.metadata[_ACTIVATION] = weakref.ref(activation)


def is_watched(tensor: Tensor) -> bool:
    """Return whether somebody traces or transforms operations on a tensor, or has hooks for saved tensors."""
    if type(tensor) not in (Tensor, nn.Parameter) or torch.compiler.is_compiling() or _in_jit_trace():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return hooks is None or hooks(False) is not None


def _rectified(rectifier: Any, y: Tensor) -> Rectified | None:
    """Return the output y of a rectifier as a function of tensors that are kept anyway, or None."""
    source, number = rectifier.next_functions[0]
    nodes: Any = [(source, number)]
    if source is not None and source.name() == "AddBackward0":
        nodes = source.next_functions if source._saved_alpha == 1 else ()
    terms = [None if node is None or number else _term(node) for node, number in nodes]
    if not terms or None in terms or not _is_output(rectifier, y):
        return None
    terms.sort(key=lambda term: isinstance(term, Rectified | Saved))  # norms first; a sum has the same bits either way
    norm, shortcut = [*terms, None][:2]
    if isinstance(norm, Rectified | Saved) or norm is None:
        return None
    if isinstance(shortcut, Rectified) and shortcut.depth >= _DEEPEST:
        return None
    alike = all(_alike(y, term.like) for term in (norm, shortcut) if term is not None)
    return Rectified(y, norm, shortcut) if alike else None


def _term(node: Any) -> Norm | Rectified | Saved | None:
    """Return what is known of the output of a node."""
    metadata = node.metadata
    if _NORM in metadata:
        norm: Norm | None = metadata[_NORM](node)
        return norm
    activation: Rectified | Saved | None = metadata.get(_ACTIVATION, lambda: None)()
    return activation


def _in_jit_trace() -> bool:
    return torch._C._get_tracing_state() is not None


def _is_output(rectifier: Any, y: Tensor) -> bool:
    """Return whether a tensor is what a rectifier has returned, unchanged; torch raises an error if it is changed."""
    try:
        return bool(rectifier._saved_result.data_ptr() == y.data_ptr())
    except RuntimeError:
        return False


def _alike(one: Tensor, other: Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.device == other.device
    )


def _hook(node: Any, name: str, keeper: User | Saved, like: Tensor) -> bool:
    """Let a node keep ``keeper`` and not the tensor that it has saved; False if the user has hooks there already.

    Args:
        node: the node of a rectifier or a product.
        name: the attribute that holds what it has saved: one tensor, or several of which the first is meant.
        keeper: what gives the tensor back.
        like: a tensor that has the shape and the strides of what was saved.
    """
    raw, shape, strides = getattr(node, name), like.shape, like.stride()

    def unpack(keeper: User | Saved) -> Tensor:
        return keeper.get().as_strided(shape, strides)

    try:
        (raw[0] if isinstance(raw, tuple) else raw).register_hooks(lambda _: keeper, unpack)
    except RuntimeError:
        return False
    return True
