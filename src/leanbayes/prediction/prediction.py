"""What a prediction is, and what can make one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs

__all__ = ["Prediction", "Predictor", "in_eval", "joined"]


@dataclass(frozen=True)
class Prediction:
    """What a model says of a batch, and how sure it is.

    For classes, pixels and labels ``mean`` holds probabilities and the uncertainties are in nats: the entropy of the
    mean (total), the mean entropy (aleatoric) and the mutual information of prediction and weights (epistemic).
    For regression ``mean`` is the mean and the uncertainties are variances.
    ``standard_error`` is that of the total in nats (for regression of ½ log of it), one number for each input;
    ``draws`` says how many were made for each input. ``samples`` holds each draw's own mean, if asked for.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    standard_error: Tensor
    draws: Tensor
    samples: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mean)


class Predictor(nn.Module, ABC):
    """A module with draws of its own, which `predict` asks for: an ensemble, dropout, SWAG, Laplace.

    ``members`` is how many draws there are in all; None: as many as are asked for.
    Of what a file must keep, ``parts`` names the modules inside, ``config`` the numbers, and the buffers registered on
    the predictor itself are its tensors; ``rebuild`` puts it together again.
    """

    members: int | None = None

    @abstractmethod
    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """What the model returns in each of so many draws, in eval mode and without gradients."""

    @abstractmethod
    def parts(self) -> dict[str, nn.Module]:
        """The modules inside, by name."""

    def config(self) -> dict[str, Any]:
        """Arguments of ``rebuild`` that JSON can hold."""
        return {}

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """A predictor of these parts; its own buffers are filled in after."""
        return cls(*parts.values(), **config)


@contextmanager
def in_eval(*modules: nn.Module) -> Iterator[None]:
    """Inside, all modules are in eval mode; each is left in its own."""
    modes = {child: child.training for module in modules for child in module.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for child, mode in modes.items():
            child.training = mode


def joined(parts: list[Prediction], places: Tensor) -> Prediction:
    """One prediction, each input in its place."""
    if len(parts) == 1 and torch.equal(places, torch.arange(len(places))):
        return parts[0]
    order = places.argsort()

    def join(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])[order]

    names = ("mean", "total", "aleatoric", "epistemic", "standard_error", "draws")
    kept = [part.samples for part in parts if part.samples is not None]
    return Prediction(**{name: join(name) for name in names}, samples=torch.cat(kept, dim=1) if kept else None)
