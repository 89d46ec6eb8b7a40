"""What a prediction is, and what can make one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes._passes import exclusive
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError

__all__ = ["Prediction", "Predictor", "in_eval", "joined"]


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for a batch, and how sure it is.

    For classes, pixels and labels the uncertainties are in nats. For regression they are variances.

    Attributes:
        mean: the predicted probabilities; for regression the predicted mean.
        total: the entropy of the mean; for regression the variance of the target.
        aleatoric: the mean entropy of the draws, which more data would not reduce; for regression the noise.
        epistemic: the mutual information of prediction and weights, which more data would reduce; for regression the
            variance over draws.
        standard_error: the standard error of the total in nats (for regression of ½ log of it), one for each input.
        draws: how many draws were made for each input.
        samples: what each draw predicts, (draws, N, ...), if the caller asked for it.
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
    """A module that makes draws by itself, which `predict` asks for: an ensemble, dropout, SWAG or Laplace.

    A file keeps three things of a predictor: the modules that ``parts`` names, the numbers that ``config`` gives, and
    the buffers that are registered on the predictor itself. ``rebuild`` puts it together again.

    Attributes:
        members: how many draws there are in all; None if there is no limit.
    """

    members: int | None = None

    @abstractmethod
    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield what the model returns in each of ``draws`` draws, in eval mode and without gradients."""

    @abstractmethod
    def parts(self) -> dict[str, nn.Module]:
        """Return the modules inside, by name."""

    def config(self) -> dict[str, Any]:
        """Return the arguments of ``rebuild`` that JSON can hold."""
        return {}

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """Make a predictor of these parts; its own buffers are filled in afterwards."""
        return cls(*parts.values(), **config)

    def random_tensors(self) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Yield each parameter that this predictor itself makes random, with its mean and variance, for pruning."""
        return iter(())

    def make_certain(self, kept: Mapping[nn.Parameter, Tensor]) -> None:
        """Take away, in place, the randomness of pruned weights. Pruning sets the weights themselves to zero.

        Args:
            kept: for parameters that were pruned, which of their entries stay.
        """

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:  # noqa: ARG002
        """Return draws as functions of a batch, for explanations.

        Each function always gives the same output for an input, alone or among others. Unlike ``outputs`` it has
        gradients.

        Args:
            draws: how many functions; fewer are returned if there are only so many members.
            source: gives the seeds of the functions.
        """
        raise InputError(
            f"{type(self).__name__} does not say what its draws are as differentiable functions; define its method "
            "networks(draws, source)"
        )


def networks_of(model: Any, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
    """Return the draws of any model as differentiable functions; a plain module or function has one, itself."""
    return model.networks(draws, source) if isinstance(model, Bayesian | Predictor) else [model]


@contextmanager
def in_eval(*modules: nn.Module) -> Iterator[None]:
    """Inside this context, all modules are in eval mode; afterwards each is in the mode that it had.

    Other threads that use the modules wait meanwhile, because all threads share the mode.
    """
    with exclusive(*modules):
        modes = {child: child.training for module in modules for child in module.modules()}
        for module in modules:
            module.eval()
        try:
            yield
        finally:
            for child, mode in modes.items():
                child.training = mode


def joined(parts: list[Prediction], places: Tensor) -> Prediction:
    """Join predictions for parts of a batch; ``places`` says where in the batch each input stands."""
    if len(parts) == 1 and torch.equal(places, torch.arange(len(places))):
        return parts[0]
    order = places.argsort()

    def join(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])[order]

    names = ("mean", "total", "aleatoric", "epistemic", "standard_error", "draws")
    samples = [part.samples for part in parts if part.samples is not None]
    return Prediction(**{name: join(name) for name in names}, samples=torch.cat(samples, dim=1) if samples else None)
