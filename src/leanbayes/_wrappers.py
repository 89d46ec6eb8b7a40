"""Models inside wrappers of torch and accelerate: what is in them, and how a loss is computed through them.

The usual wrappers are `DistributedDataParallel` (DDP), `nn.DataParallel`, what ``torch.compile`` returns,
`AveragedModel` of ``torch.optim.swa_utils``, and what ``accelerator.prepare`` returns. Most functions work on the
module inside. A loss is different: DDP averages gradients over processes only if the loss was computed inside its own
forward pass. So `elbo` hands a `Pass` to the wrapper, and the module inside runs it.

The bare module of a living DDP trains without that average, and its copies drift apart without a word. A hook of torch
(``register_module_module_registration_hook``) notes every DDP when it is built, so that `refuse_bare` can tell.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from leanbayes._sharding import is_piece, is_sharded_module
from leanbayes.errors import InputError

__all__ = ["Pass", "chain", "computed_inside", "gradients_averaged_by_hand", "refuse_bare", "refuse_pieces", "unwrap"]

_living: "WeakSet[DistributedDataParallel]" = WeakSet()
_by_hand: ContextVar[bool] = ContextVar("gradients_averaged_by_hand", default=False)


def _note(parent: nn.Module, name: str, child: Any) -> None:  # noqa: ARG001
    """Remember every DDP that is built. Torch calls this whenever a module becomes a part of another."""
    if isinstance(parent, DistributedDataParallel) and name == "module":
        _living.add(parent)


register_module_module_registration_hook(_note)


class Pass:
    """A computation with a module, which a wrapper's forward pass carries to the module inside."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        """Return what the computation gives for the module that the wrapper holds."""
        return self.function(module, *args)


def chain(model: Any) -> list[nn.Module]:
    """Return the model, what it wraps, and so on down to the module that is no wrapper.

    >>> [type(module).__name__ for module in chain(AveragedModel(nn.Linear(1, 1)))]
    ['AveragedModel', 'Linear']
    """
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise InputError(
            f"the model must be a torch.nn.Module, got {kind}; put a function into the forward of a module, and give "
            "an instance rather than a class"
        )
    modules = [model]
    while (inner := _inside(modules[-1])) is not None:
        modules.append(inner)
    return modules


def unwrap(model: Any) -> Any:
    """Return the module inside all wrappers; a module that is no wrapper is returned itself.

    >>> linear = nn.Linear(1, 1)
    >>> unwrap(linear) is linear, unwrap(nn.DataParallel(linear)) is linear
    (True, True)
    """
    return chain(model)[-1]


def computed_inside(model: nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(module, *args)`` for the module inside the wrappers, computed inside DDP's forward pass.

    Wrappers that matter for a loss are DDP, which averages the gradients, ``fully_shard``, which also gathers the
    weights, and a module whose ``forward`` accelerate has replaced, which sets the precision. Other wrappers are left
    out: the module inside does the same work.

    Args:
        model: a module, maybe in wrappers. The forward of the module inside must run a `Pass`.
        function: takes the module inside and ``args``, and returns a tuple of tensors.
        args: go through the wrapper, so that DDP brings them to its device.
    """
    modules = chain(model)
    for module in modules:
        wraps = isinstance(module, DistributedDataParallel) or is_sharded_module(module)
        if wraps or "_original_forward" in vars(module):
            # A compiled part of the wrapper would be traced anew for every Pass.
            compiled = any("_orig_mod" in inner._modules for inner in modules)
            eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
            with eager:
                return module(Pass(function), *args)
    return function(modules[-1], *args)


def refuse_bare(model: nn.Module, learned: Iterator[Tensor]) -> None:
    """Raise if a loss of this model would train the copies of several processes apart from each other.

    Args:
        model: the model as the caller gave it.
        learned: further tensors that the loss trains, those of the likelihood.
    """
    if not torch.is_grad_enabled() or not _living or _by_hand.get():
        return
    modules = chain(model)
    wrapper = next((module for module in modules if isinstance(module, DistributedDataParallel)), None)
    if wrapper is None:
        wrapper = _wrapper_of(modules[-1])
        if wrapper is not None:
            gc.collect()  # a wrapper that is thrown away may wait in a cycle of references; a living one stays
            del wrapper
            wrapper = _wrapper_of(modules[-1])
        if wrapper is not None:
            raise InputError(
                "the model is the bare module of a DistributedDataParallel over "
                f"{wrapper.process_group.size()} processes: its gradients would not be averaged, and the processes "
                "would train different models; give the wrapper itself: elbo(ddp, ...) and not elbo(ddp.module, ...)"
            )
        return
    if _synchronises(wrapper):
        known = {id(parameter) for parameter in wrapper.parameters()}
        if any(tensor.requires_grad and id(tensor) not in known for tensor in learned):
            raise InputError(
                "the likelihood learns a parameter that DistributedDataParallel does not know, so its gradient would "
                "not be averaged over the processes; make the likelihood a part of the model before you wrap it "
                "(bnn.likelihood = likelihood), or train with leanbayes.fit"
            )


def refuse_pieces(model: nn.Module) -> None:
    """Raise if this process holds pieces of weights that no hook of torch would gather or use in a pass.

    Hooks of ``fully_shard`` gather the weights inside a module, and layers under tensor parallelism use the pieces.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized() or is_sharded_module(model):
        return
    gathered = {id(part) for module in model.modules() if is_sharded_module(module) for part in module.modules()}
    for path, module in model.named_modules():
        if id(module) in gathered or hasattr(module, "_distribute_module_applied") or path.startswith("coordinates."):
            continue
        for name, parameter in module._parameters.items():
            if is_piece(parameter):
                raise InputError(
                    f"{path}.{name} is sharded, and this process holds a piece of it, which nothing gathers now: the "
                    "loss is not computed inside the module that was sharded. Make the loss a module, objective = "
                    "lb.Objective(bnn, likelihood, n_data=...), call fully_shard(objective) after its parts, and "
                    "compute objective(x, y)"
                )


@contextmanager
def gradients_averaged_by_hand() -> Iterator[None]:
    """Inside this context, the caller averages the gradients over processes, so a bare module is accepted."""
    token = _by_hand.set(True)
    try:
        yield
    finally:
        _by_hand.reset(token)


def _inside(module: nn.Module) -> nn.Module | None:
    """What a wrapper holds; None for a module that is no wrapper."""
    if isinstance(module, torch.jit.ScriptModule):  # its children do not lie in an ordinary dictionary
        return None
    if type(module).__name__ == "FullyShardedDataParallel":
        raise InputError(
            "the model is in FullyShardedDataParallel, whose processes hold pieces of the weights; a draw needs whole "
            "weights. Use DistributedDataParallel, or leanbayes.fit"
        )
    if isinstance(module, DistributedDataParallel | DataParallel | AveragedModel):
        held: nn.Module = module.module
        return held
    return module._modules.get("_orig_mod")  # what torch.compile returns; its class is slow to import


def _wrapper_of(module: nn.Module) -> DistributedDataParallel | None:
    """The DDP that holds a module and averages its gradients, unless its forward pass is under way."""
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if active is not None and any(part is module for part in active.modules()):
        return None
    for wrapper in list(_living):
        if _synchronises(wrapper) and any(part is module for part in wrapper.modules()):
            return wrapper
    return None


def _synchronises(wrapper: DistributedDataParallel) -> bool:
    """Whether there are several processes, and the caller is not inside ``ddp.no_sync()``."""
    group = getattr(wrapper, "process_group", None)  # missing while the wrapper is being built
    return group is not None and group.size() > 1 and bool(wrapper.require_backward_grad_sync)
