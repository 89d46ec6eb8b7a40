"""`torch.compile`: how a pass through a random network becomes a part of a graph.

Two programs trace compiled code. The first one, dynamo, reads Python bytecode, and cannot read the stand-ins of random
weights, which are tensors of our own classes with rules of their own. The second one, AOTAutograd, runs Python and
records the operations of torch that it ends in. Everything that our propagations do ends in such operations. So a pass
is one opaque call for dynamo (``torch._dynamo.nonstrict_trace``), and AOTAutograd records what happens inside: the
graph has no break, and the compiler behind it sees plain operations.

Dynamo compiles anew if a value that it has read is another one later, and it reads nothing inside an opaque call. So
`settings_of` reads the settings of all modules for it: their mode, and their numbers and words. Other attributes, such
as lists and tensors that are no buffers, count as they are when the code is compiled.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.errors import InputError

__all__ = ["computed_once", "eager", "inside", "inside_law", "opaque", "settings_of"]

T = TypeVar("T")


def computed_once(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that computes the answer to each question once, with real numbers even inside a trace.

    While a graph is recorded, torch makes tensors without values. Later code would get one that stays in a cache.

    >>> computed_once(lambda n: torch.ones(n).sum().item())(3)
    3.0
    """

    @functools.cache
    def cached(*args: Any) -> T:
        if not torch.compiler.is_compiling():
            return function(*args)
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            return function(*args)

    return functools.update_wrapper(cached, function)


def inside(tensor: Tensor) -> Tensor:
    """Return a tensor that code in a graph may use: a real tensor becomes a constant of the graph, by its values.

    Inductor refuses a real tensor that the recorded code takes from elsewhere, such as a prior.
    """
    if not torch.compiler.is_compiling() or type(tensor) is not Tensor:
        return tensor
    if tensor.requires_grad:
        raise InputError(
            "compiled code cannot train a tensor that is no parameter of the model, such as one of a prior; leave the "
            "loss uncompiled, or fix the tensor: tensor.detach()"
        )
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        values = tensor.tolist()
    return torch.tensor(values, dtype=tensor.dtype, device=tensor.device)


def inside_law(law: Distribution) -> Distribution:
    """Return a distribution whose real tensors are constants of the graph that is being recorded, if there is one."""
    if not torch.compiler.is_compiling():
        return law
    copied = copy.copy(law)
    for name, value in vars(law).items():
        if isinstance(value, Tensor):
            vars(copied)[name] = inside(value)
        elif isinstance(value, Distribution):
            vars(copied)[name] = inside_law(value)
    return copied


def settings_of(module: nn.Module) -> list[Any]:
    """Return the modes, numbers and words that a module and its parts hold, for the guards of compiled code.

    >>> settings_of(nn.Dropout(0.5))
    [True, 0.5, False]
    """
    settings: list[Any] = []
    for part in module.modules():
        for value in part.__dict__.values():
            if type(value) in (bool, int, float, str):
                settings.append(value)
    return settings


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that dynamo takes as one call. It may take modules, whose parameters keep their gradients.

    A version of torch that cannot do this with modules gets the function itself, which dynamo then reads as far as it
    can. Importing dynamo takes about a second, so call this only when something is being compiled.
    """
    from torch import _dynamo
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    if not hasattr(TorchInGraphFunctionVariable, "_extract_nn_module_states"):
        return function
    wrapped: Callable[..., Any] = _dynamo.nonstrict_trace(function)
    return wrapped


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is never compiled: the graph breaks there, and ``fullgraph=True`` raises an error."""
    from torch import _dynamo

    uncompiled: Callable[..., Any] = _dynamo.disable(
        function, reason="LeanBayes does not compile a pass while weights are held (at_mean, frozen, drawn)"
    )
    return uncompiled
