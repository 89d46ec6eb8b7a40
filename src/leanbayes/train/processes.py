"""Where a training runs: in one process by torch alone; in several, or in mixed precision, by accelerate."""

import atexit
import copy
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from leanbayes._sharding import is_sharded_module
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.objective import Objective
from leanbayes.train.batches import one_order

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["Engine", "OneProcess", "accelerate_untouched", "engine"]


class Engine(Protocol):
    """What `fit` needs from the place where it runs.

    Attributes:
        device: the device to which batches go.
        index: the number of this process, from 0.
        number: how many processes there are.
        precision: the mixed precision, or "no".
        shards: whether each process holds a piece of every weight. Then `fit` calls `shard` in place of `prepare`.
    """

    device: torch.device
    index: int
    number: int
    precision: str
    shards: bool

    def prepare(self, objective: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Put the objective on the device, and return it and the optimizer as training uses them."""
        ...

    def shard(self, objective: Objective) -> Objective:
        """Return a copy of the objective, of whose weights each process holds a piece."""
        ...

    def share(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the part of each batch that this process takes."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss."""
        ...

    def clip(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Scale the gradients down so that their joint norm is at most ``norm``."""
        ...

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a tensor over all processes."""
        ...

    def share_statistics(self, module: nn.Module) -> None:
        """Give all processes the running statistics of the first one, where nothing else does."""
        ...

    def wait(self) -> None:
        """Wait until every process is here."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must know of the engine, as JSON."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring back what `state` returned."""
        ...


class OneProcess:
    """One process and full precision: torch alone, on the device where the model lies."""

    def __init__(self, model: nn.Module) -> None:
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.index, self.number, self.precision, self.shards = 0, 1, "no", False

    def prepare(self, objective: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Put what the likelihood learns beside the model."""
        return objective.to(self.device), optimizer

    def shard(self, objective: Objective) -> Objective:
        """Return the objective itself, since there is only one process."""
        return objective

    def share(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return all batches."""
        return batches

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss."""
        loss.backward()

    def clip(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Scale the gradients down so that their joint norm is at most ``norm``."""
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    def mean(self, value: Tensor) -> Tensor:
        """Return the tensor, since there is only one process."""
        return value

    def share_statistics(self, module: nn.Module) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Return at once."""

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class Accelerated:
    """Several processes or mixed precision, by Hugging Face accelerate, which also places the model."""

    def __init__(self, accelerator: "Accelerator") -> None:
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device
        self.index: int = accelerator.process_index
        self.number: int = accelerator.num_processes
        self.precision = str(accelerator.mixed_precision)
        self.shards = False

    def prepare(self, objective: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Wrap both as accelerate does."""
        wrapped, prepared = self.accelerator.prepare(objective, optimizer)
        return wrapped, prepared

    def shard(self, objective: Objective) -> Objective:
        """Return the objective itself, which accelerate wraps and does not shard."""
        return objective

    def share(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return this process's part of each batch.

        In one process the loader stays as it is. Accelerate's loader reads one batch ahead, and a checkpoint would then
        hold random states from after that batch.
        """
        if self.accelerator.num_processes == 1 or not isinstance(batches, DataLoader):
            return batches
        prepared: Iterable[Any] = self.accelerator.prepare(batches)
        one_order(prepared, batches)
        return prepared

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss, scaled in mixed precision."""
        self.accelerator.backward(loss)

    def clip(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Scale the gradients down so that their joint norm is at most ``norm``."""
        self.accelerator.clip_grad_norm_(parameters, norm)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a tensor over all processes."""
        mean: Tensor = self.accelerator.reduce(value, reduction="mean")
        return mean

    def share_statistics(self, module: nn.Module) -> None:
        """Do nothing: DistributedDataParallel shares the statistics at the start of each pass."""

    def wait(self) -> None:
        """Wait until every process is here."""
        self.accelerator.wait_for_everyone()

    def state(self) -> dict[str, Any]:
        """Return the state of the gradient scaler, which "fp16" has."""
        scaler = self.accelerator.scaler
        return {} if scaler is None else {"scaler": scaler.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring back the state of the gradient scaler."""
        if self.accelerator.scaler is not None and state.get("scaler"):
            self.accelerator.scaler.load_state_dict(state["scaler"])


class Sharded(Accelerated):
    """Several processes of which each holds a piece of every weight: ``fully_shard`` of torch (FSDP2).

    Accelerate joins the processes and shares the batches, and its configuration says which modules are sharded as units
    of their own. This class calls ``fully_shard`` itself, because the scales of a module are sharded with its weights.

    Args:
        accelerator: joins the processes.
        plugin: accelerate's configuration of FSDP.
    """

    def __init__(self, accelerator: "Accelerator", plugin: Any) -> None:
        super().__init__(accelerator)
        _check_plugin(plugin, self.precision)
        self.plugin, self.shards = plugin, True

    def shard(self, objective: Objective) -> Objective:
        """Return a copy of the objective whose weights are sharded; the objective itself stays whole."""
        from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        copied: Any = copy.deepcopy(objective)
        core = copied.model
        network = core.model if isinstance(core, Bayesian) else core
        self.plugin.set_auto_wrap_policy(network)
        policy = fsdp2_prepare_auto_wrap_policy(self.plugin, network)
        mesh = init_device_mesh(self.device.type, (self.number,))
        options = {"mesh": mesh, "reshard_after_forward": self.plugin.reshard_after_forward}
        for module in reversed(list(network.modules())[1:]):  # the inner ones first
            container = isinstance(module, nn.ModuleList | nn.ModuleDict)  # it has no forward, so nothing would gather
            if policy is not None and not container and policy(module):
                scales = core.scales_of(module) if isinstance(core, Bayesian) else []
                fully_shard([module, *(one for one in scales if not is_sharded_module(one))], **options)
        fully_shard(copied, mesh=mesh)
        sharded: Objective = copied
        return sharded

    def share_statistics(self, module: nn.Module) -> None:
        """Send the running statistics of batch norms from the first process to the others."""
        for layer in module.modules():
            if getattr(layer, "running_mean", None) is not None:
                for value in layer.buffers(recurse=False):
                    torch.distributed.broadcast(value, src=0)


@contextmanager
def engine(model: nn.Module, mixed_precision: str | None, accelerator: "Accelerator | None" = None) -> Iterator[Engine]:
    """Give the engine that this training needs.

    A launcher such as ``accelerate launch`` or ``torchrun`` tells in the environment how many processes there are.
    ``accelerate launch`` tells the precision there as well.

    Args:
        model: the model that is trained.
        mixed_precision: the precision that the user asks for.
        accelerator: the user's own Accelerator, which is used as it is and left as it was.
    """
    if accelerator is not None:
        _check_accelerator(accelerator, mixed_precision)
        before = {name: list(getattr(accelerator, name)) for name in _HELD_BY_ACCELERATE if hasattr(accelerator, name)}
        try:
            yield Accelerated(accelerator)
        finally:  # what fit prepared must not be in the files of accelerator.save_state()
            for name, values in before.items():
                getattr(accelerator, name)[:] = values
        return
    if mixed_precision is None:
        mixed_precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not several and torch.distributed.is_available() and torch.distributed.is_initialized():
        count = torch.distributed.get_world_size()
        if count > 1:
            raise InputError(
                f"torch.distributed joins {count} processes, but WORLD_SIZE in the environment does not say so: each "
                "process would train a model of its own; start the program with torchrun or accelerate launch"
            )
    if not several and mixed_precision in (None, "no"):
        yield OneProcess(model)
        return
    try:
        from accelerate import Accelerator, DataLoaderConfiguration
        from accelerate.state import AcceleratorState, GradientState
    except ImportError as error:
        reason = "training on several processes" if several else f"mixed_precision={mixed_precision!r}"
        raise InputError(
            f"{reason} needs the package accelerate, which is not installed: pip install 'leanbayes[distributed]'"
        ) from error
    joined_before = torch.distributed.is_available() and torch.distributed.is_initialized()
    with accelerate_untouched():
        # Accelerate keeps one state for the whole program, and refuses another precision than that of the first use.
        AcceleratorState._shared_state.clear()
        GradientState._shared_state.clear()
        sharing = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=False)
        # Without a GPU, accelerate joins the processes of torchrun only if it is told that they use the CPU.
        on_cpu = several and not torch.accelerator.is_available()
        made = Accelerator(mixed_precision=mixed_precision, dataloader_config=sharing, cpu=on_cpu)
        if made.num_processes != int(os.environ.get("WORLD_SIZE", "1")):
            raise InputError(
                f"WORLD_SIZE in the environment says {os.environ['WORLD_SIZE']} processes, and accelerate joins "
                f"{made.num_processes}: each process would train a model of its own; start with accelerate launch"
            )
        if several and not joined_before:
            _leave_at_exit()
        if several and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            from accelerate.utils import FullyShardedDataParallelPlugin

            yield Sharded(made, FullyShardedDataParallelPlugin())
        else:
            yield Accelerated(made)


@cache
def _leave_at_exit() -> None:
    """Leave the processes that `fit` joined before the interpreter ends.

    The threads of a process group that is still joined then may need the interpreter when it is gone, and end the
    process with SIGABRT after all work is done.
    """
    atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_initialized():  # the user may have left already
        torch.distributed.destroy_process_group()
        # The threads of gloo go on as long as anything refers to the group. One that has just finished may wait for the
        # lock of the interpreter, to let a tensor go, and gets it while this thread sleeps.
        time.sleep(_FAREWELL)


@contextmanager
def accelerate_untouched() -> Iterator[None]:
    """Leave the state that accelerate keeps for the whole program as it was, also after an error."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    states = [kind._shared_state for kind in (PartialState, AcceleratorState, GradientState)]
    before = [dict(state) for state in states]
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        yield
    finally:
        for state, values in zip(states[several:], before[several:], strict=True):  # a process group stays joined
            state.clear()
            state.update(values)


_FAREWELL = 0.2  # seconds that a process waits for the threads of its group before it ends
_HELD_BY_ACCELERATE = ("_models", "_optimizers", "_schedulers", "_dataloaders", "_custom_objects")
_WHOLE_WEIGHTS = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_HPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA")


def _check_plugin(plugin: Any, precision: str) -> None:
    """Raise if the configuration of FSDP asks for what `fit` does not do."""
    if plugin.fsdp_version != 2:
        raise InputError(
            f"accelerate is configured for FSDP version {plugin.fsdp_version}, and fit shards by version 2: "
            "accelerate launch --use_fsdp --fsdp_version 2"
        )
    asked = {
        f"mixed_precision={precision!r}": precision != "no",
        "fsdp_offload_params": type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy",
        "fsdp_activation_checkpointing": bool(plugin.activation_checkpointing),
        "fsdp_ignored_modules": plugin.ignored_modules is not None,
    }
    for name, value in asked.items():
        if value:
            raise InputError(
                f"fit shards weights in full precision and on one kind of device, and cannot follow {name} of the FSDP "
                "configuration of accelerate; leave it out, or write a loop of your own (docs/sharded.md)"
            )


def _check_accelerator(accelerator: Any, mixed_precision: str | None) -> None:
    """Raise if `fit` cannot train with this Accelerator and keep what it promises."""
    if not hasattr(accelerator, "prepare") or not hasattr(accelerator, "backward"):
        raise InputError(f"accelerator must be an accelerate.Accelerator, got {accelerator!r}")
    precision = str(accelerator.mixed_precision)
    if mixed_precision not in (None, precision):
        raise InputError(
            f"the Accelerator has mixed_precision={precision!r}, and Optimization has {mixed_precision!r}; leave it to "
            "the Accelerator"
        )
    kind = accelerator.distributed_type.name
    if kind not in _WHOLE_WEIGHTS:
        raise InputError(
            f"the Accelerator trains by {kind}, whose processes hold pieces of the weights, and a draw needs whole "
            "weights; use an Accelerator without this plugin, or let fit shard the weights by itself: accelerate "
            "launch --use_fsdp --fsdp_version 2, without accelerator="
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise InputError(
            f"the Accelerator accumulates gradients over {accelerator.gradient_accumulation_steps} steps, which would "
            "shrink the loss of fit; use Optimization(micro_batches=...) for smaller parts of a batch"
        )
    if accelerator.num_processes > 1 and not accelerator.split_batches:
        raise InputError(
            "the Accelerator gives each process whole batches, and fit shares every batch among the processes: "
            "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))"
        )
