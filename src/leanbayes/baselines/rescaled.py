"""What `Temperature` and `NoiseScale` have in common: a model whose outputs are changed by one fitted number."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError
from leanbayes.prediction import Predictor, in_eval, outputs_of
from leanbayes.prediction.prediction import networks_of

__all__ = ["Rescaled", "draws_of"]


class Rescaled(Predictor):
    """A model each of whose outputs, in every draw, is changed by one positive number.

    Args:
        model: a plain module, a `Bayesian` or another `Predictor`.

    Attributes:
        validation_nll: the mean negative log-likelihood that ``fit`` reached; None for a number from elsewhere.
        validation_targets: how many targets it is the mean of.
    """

    _buffer: ClassVar[str]
    """The name of the buffer that holds the logarithm of the number."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        model = unwrap(model)
        if not isinstance(model, Predictor):
            refuse_random_parts(model)
        self.model = model
        self.register_buffer(self._buffer, torch.zeros((), device=_device_of(model)))
        self.validation_nll: float | None = None
        self.validation_targets = 0

    @classmethod
    def by(cls, model: nn.Module, number: float) -> Self:
        """Rescale a model by a number that is known."""
        if not 0 < number < math.inf:
            raise InputError(f"{cls.__name__} needs a positive finite number, got {number}")
        rescaled = cls(model)
        rescaled.get_buffer(cls._buffer).fill_(math.log(number))
        return rescaled

    @property
    def number(self) -> float:
        """The number."""
        return math.exp(self.get_buffer(self._buffer).item())

    @abstractmethod
    def rescaled(self, out: Any) -> Any:
        """Return the output as it is predicted."""

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of draws of the model inside, which is one for a plain module."""
        if isinstance(self.model, Predictor):
            return self.model.members
        return None if isinstance(self.model, Bayesian) else 1

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run one pass and change its outputs."""
        return self.rescaled(self.model(*args, **kwargs))

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield the draws of the model inside, changed."""
        for out in draws_of(self.model, x, draws, generator):
            yield self.rescaled(out)

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return the draws of the model inside as differentiable functions, changed."""

        def rescaled(x: Tensor, network: Callable[[Tensor], Any]) -> Any:
            return self.rescaled(network(x))

        return [partial(rescaled, network=network) for network in networks_of(self.model, draws, source)]

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}


def draws_of(model: nn.Module, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
    """Yield outputs of any model in eval mode and without gradients; between two draws neither is in force."""
    source = outputs_of(model, x, draws, generator)
    for _ in range(draws):
        with in_eval(model), torch.no_grad():
            out = next(source)
        yield out


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
