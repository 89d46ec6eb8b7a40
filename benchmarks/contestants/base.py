"""What every contestant has: a training step, a prediction, and an audit that it does the work it claims."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_DATA = 50_000
DRAWS = 8


@dataclass(frozen=True)
class Task:
    """What all contestants of one network start from.

    Attributes:
        name: the name of the network.
        plain: the network, which no contestant changes.
        x: a batch of images.
        y: their classes.
        folder: a folder for graphs, which take long to write.
    """

    name: str
    plain: nn.Module
    x: Tensor
    y: Tensor
    folder: Path


@dataclass
class Contestant:
    """A method whose work is measured.

    Attributes:
        name: the name in tables.
        package: the name of the package that does the work.
        model: everything that is trained.
        predict: returns class probabilities of a batch.
        passes: what a prediction consists of, for tables.
        audit: raises unless the contestant does the work it claims, and returns what it saw, for the record.
        step: does one training step and returns the loss; None for methods that only predict.
        fit: what comes once after the training, with the number of batches that it reads; None for most methods.
        optimizer: the optimizer, whose state counts as memory.
        networks: the networks whose layers have the names of the plain one; by default the model.
        streams: how many numbers stand for each activation in a prediction: two with means and variances.
        zeros: how many entries of the weights are zero under a mask, and need not be kept.
        masks: the masks of layers, by their names; their products count for stored entries only.
        others: how many numbers are trained that are no parameters, such as scales that an optimizer keeps.
        predict_as: a prediction in torch that does the same products, where ``predict`` leaves torch, or does the work
            that draws share more than once while layers are watched.
    """

    name: str
    package: str
    model: nn.Module
    predict: Callable[[Tensor], Tensor]
    passes: str
    audit: Callable[[], dict[str, Any]]
    step: Callable[[Tensor, Tensor], float] | None = None
    fit: tuple[Callable[[], object], int] | None = None
    optimizer: Any = None
    networks: list[nn.Module] = field(default_factory=list)
    streams: int = 1
    zeros: int = 0
    masks: dict[str, Tensor] = field(default_factory=dict)
    others: int = 0
    predict_as: Callable[[Tensor], object] | None = None

    def __post_init__(self) -> None:
        self.networks = self.networks or [self.model]

    @property
    def trained(self) -> int:
        """The number of trainable numbers; entries under a mask are none."""
        own = {p.data_ptr(): p.numel() for p in self.model.parameters() if p.requires_grad}  # blitz has each twice
        return sum(own.values()) - self.zeros + self.others

    def kept(self) -> list[Tensor]:
        """Return all tensors that stay between steps: parameters, buffers, and what the optimizer remembers."""
        groups = [] if self.optimizer is None else [*self.optimizer.param_groups, self.optimizer.state]
        return [*self.model.parameters(), *self.model.buffers(), *self.masks.values(), *tensors_in(groups)]

    def gradients(self) -> list[Tensor]:
        """Return the gradients that the last step has left."""
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def moved(self) -> list[Tensor]:
        """Return the tensors that a training step reads and writes: parameters and what the optimizer remembers."""
        still = {id(tensor) for tensor in (*self.model.buffers(), *self.masks.values())}
        return [tensor for tensor in self.kept() if id(tensor) not in still]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (tensor for item in value.values() for tensor in tensors_in(item))
    elif isinstance(value, list | tuple):
        yield from (tensor for item in value for tensor in tensors_in(item))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with momentum, with a rate at which nothing diverges while the work is measured."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def stepper(
    optimizer: torch.optim.Optimizer, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], float]:
    """Return a training step: gradients of a loss, and an update."""

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def cross_entropy(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a plain network."""
    return lambda x, y: F.cross_entropy(model(x), y)


def mean_of_passes(model: nn.Module, passes: int = 1) -> Callable[[Tensor], Tensor]:
    """Return a prediction in eval mode: the mean of the probabilities of several passes."""

    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        model.eval()
        total = model(x).softmax(-1)
        for _ in range(passes - 1):
            total += model(x).softmax(-1)
        model.train()
        return total / passes

    return predict


def require(holds: bool, name: str, problem: str) -> None:
    """Stop the benchmark if a contestant does not do the work it claims."""
    if not holds:
        raise SystemExit(f"{name}: {problem}")


def replace(module: nn.Module, convert: Callable[[str, nn.Module], nn.Module | None], prefix: str = "") -> nn.Module:
    """Replace every layer by ``convert(name, layer)``, unless that is None."""
    for name, child in module.named_children():
        converted = convert(prefix + name, child)
        if converted is None:
            replace(child, convert, f"{prefix}{name}.")
        else:
            setattr(module, name, converted)
    return module


def product_layers(plain: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Return every convolution and linear layer of a plain network with its name."""
    return ((name, layer) for name, layer in plain.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear))
