"""What a propagation is: a value that says how randomness passes through a network.

A propagation is a small frozen dataclass. It owns the tensors that take the place of random weights in a pass, the
expected loss for training, the outputs for prediction, and what batch norm needs to know about it. To add one, write
one class with a ``name`` and a method ``stand_ins``; see `Propagation`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, map_tensors, prediction_tensor
from leanbayes._catalogue import Catalogue
from leanbayes._sharding import is_piece
from leanbayes.errors import InputError
from leanbayes.posteriors import Family, RandomWeight
from leanbayes.propagate.last_layer import nll_of_last_layer
from leanbayes.propagate.outputs import Outputs, ScoresOutputs
from leanbayes.propagate.stand_in import draw_of
from leanbayes.propagate.uses import Reuse

__all__ = ["PROPAGATIONS", "OnePass", "Propagation", "PropagationLike", "RandomNetwork", "Weights", "as_propagation"]

Weights = Mapping[str, RandomWeight]
"""The random weights of a network by name."""


class RandomNetwork(Protocol):
    """What a propagation needs to know of a `leanbayes.Bayesian`, which is the one class that provides it."""

    model: nn.Module
    posterior: Family
    reuse: Reuse

    @property
    def held(self) -> bool:
        """Whether every pass uses the same weights at present."""

    @property
    def propagate(self) -> "Propagation":
        """The propagation of training."""

    @property
    def predict_by(self) -> "Propagation":
        """The propagation of predictions."""

    def weights(self) -> dict[str, RandomWeight]:
        """The random weights as they are now."""

    def run(
        self,
        weights: Weights | None,
        x: Inputs,
        by: "Propagation",
        generator: torch.Generator | None = None,
    ) -> Any:
        """What the model itself returns in one pass under ``by``."""


class Propagation(ABC):
    """How randomness passes through a network. Each kind is a frozen dataclass that derives from this class.

    A new kind needs a ``name`` and the method `stand_ins`; everything else has a default that suits propagations which
    draw. Its fields must have defaults, because its name alone is a shorthand for the value with these defaults. A
    program registers its own kind with ``@PROPAGATIONS.register``, and a package through an entry point of the group
    "leanbayes.propagations".

    >>> from dataclasses import dataclass
    >>> from leanbayes import Bayesian
    >>> @dataclass(frozen=True)
    ... class AtTheMean(Propagation):
    ...     name = "at the mean"
    ...     def stand_ins(self, weights, model, generator):
    ...         return {name: weight.mean for name, weight in weights.items()}
    >>> bnn = Bayesian(nn.Linear(3, 2), propagate=AtTheMean())
    >>> bool((bnn(torch.ones(1, 3)) == bnn.model(torch.ones(1, 3))).all())
    True
    """

    name: ClassVar[str]
    """The shorthand: ``Bayesian(..., propagate=name)``."""

    differs_within_batch: ClassVar[bool] = False
    """Whether the examples of one batch see different weight draws.

    Where they do, batch norm may take its statistics from the batch. Where the whole batch shares one draw, batch norm
    would normalise the noise away, and `leanbayes.fit` holds the statistics.
    """

    plain_draws: ClassVar[bool] = False
    """Whether the stand-ins are ordinary tensors, one weight sample for the whole batch.

    `leanbayes.predict` may then write the samples into memory that it uses again, and compute many of them with `vmap`.
    """

    draws_ahead: ClassVar[bool] = False
    """Whether `stand_ins` takes all noise of a pass from the generator, weight after weight in the order of the names.

    Weights that torch gathers only when a part of a sharded model runs then get the noise that the whole model gives
    them. Other stand-ins draw when they are used.
    """

    works_on_pieces: ClassVar[bool] = False
    """Whether the stand-ins also take the place of DTensors, so that tensor parallelism can share a product.

    Under another propagation every process gathers the weights of such a layer and computes the whole layer.
    """

    crosses_shards: ClassVar[bool] = True
    """Whether the tensors of a pass may enter and leave a module that ``fully_shard`` has sharded.

    Hooks of torch follow the gradients of such tensors. Tensors of an own kind need a method ``apart``, which returns a
    dataclass of plain tensors with a method ``together``; see `leanbayes.propagate.moments.MomentTensor`.
    """

    @abstractmethod
    def stand_ins(self, weights: Weights, model: nn.Module, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Make the tensors that take the place of the random weights in one pass.

        Args:
            weights: the random weights by name.
            model: the network that they belong to; errors name its modules.
            generator: the source of all random numbers of this pass.
        """

    @property
    def group(self) -> int:
        """How many successive draws of a prediction depend on each other; other draws are independent."""
        return 1

    def noises(self, weights: Weights, generator: torch.Generator | None) -> Iterator[dict[str, Tensor]]:
        """Yield the noise of one draw of all weights after the other, for predictions from plain draws.

        The first ``group`` of them belong together, and so do the next.
        """
        while True:
            yield {name: weight.noise(generator) for name, weight in weights.items()}

    @property
    def for_prediction(self) -> "Propagation":
        """The propagation that predicts after training with this one, unless the user names another."""
        return self

    def lean(self) -> Self:
        """This propagation with the settings that need the least memory in training."""
        return self

    def prepare(self, x: Inputs) -> Inputs:
        """Bring the inputs of a pass into the form that this propagation works fastest with; values do not change."""
        return x

    def drawn(self, returned: Any, generator: torch.Generator | None) -> Any:  # noqa: ARG002
        """Turn what the model returned in a pass into plain tensors: one draw of them."""
        return map_tensors(draw_of, returned)

    def expected_nll(
        self,
        bnn: RandomNetwork,
        weights: Weights,
        x: Inputs,
        y: Tensor,
        likelihood: ScoresOutputs,
        *,
        samples: int = 1,
        last_layer_samples: int = 1,
        generator: torch.Generator | None = None,
        output: Callable[[Any], Any] = prediction_tensor,
    ) -> Tensor:
        """Estimate E[−log p(y | x, w)], summed over the batch: the mean over ``samples`` passes with draws.

        Args:
            bnn: the network.
            weights: its random weights, which the KL term shares.
            x: a batch of inputs.
            y: their targets.
            likelihood: what scores the targets.
            samples: how many passes are averaged.
            last_layer_samples: how many draws of the last layer each pass averages.
            generator: the source of all random numbers.
            output: picks the tensor that is scored from what the model returns.
        """
        if last_layer_samples > 1 and any(is_piece(weight.mean) for weight in weights.values()):
            raise InputError(
                "many draws of the last layer need whole weights, and those of this model are sharded; leave "
                "last_layer_samples 1, or shard the loss as one module, fully_shard(lb.Objective(...)), alone"
            )
        if last_layer_samples > 1 and not bnn.held:
            draws = [
                nll_of_last_layer(self, bnn, weights, x, y, likelihood, last_layer_samples, generator, output)
                for _ in range(samples)
            ]
        else:
            draws = [
                likelihood.nll(output(self.drawn(bnn.run(weights, x, self, generator), generator)), y)
                for _ in range(samples)
            ]
        return torch.stack(draws).mean()


class OnePass(Propagation):
    """A propagation that gives the distribution of the outputs in one pass, without a draw of any weight."""

    @abstractmethod
    def law(
        self,
        bnn: RandomNetwork,
        x: Inputs,
        *,
        weights: Weights | None = None,
        input_variance: Any = None,
        output: Callable[[Any], Any] = prediction_tensor,
    ) -> Outputs:
        """Compute the distribution of the outputs for a batch.

        Args:
            bnn: the network.
            x: a batch of inputs.
            weights: its random weights, if they are computed already.
            input_variance: the variance of noise in the inputs; see `leanbayes.moments`.
            output: picks the tensor, or tuple of tensors, from what the model returns.
        """

    def expected_nll(
        self,
        bnn: RandomNetwork,
        weights: Weights,
        x: Inputs,
        y: Tensor,
        likelihood: ScoresOutputs,
        *,
        samples: int = 1,
        last_layer_samples: int = 1,
        generator: torch.Generator | None = None,
        output: Callable[[Any], Any] = prediction_tensor,
    ) -> Tensor:
        """Compute E[−log p(y | x, w)], summed over the batch, from the distribution of the outputs.

        Where the likelihood has no closed form, ``samples`` outputs are drawn after the one pass.
        """
        if last_layer_samples > 1:
            raise InputError(f"under {self} no layer is drawn; leave last_layer_samples 1, got {last_layer_samples}")
        law = self.law(bnn, x, weights=weights, output=output)
        return law.expected_nll(likelihood, y, samples=samples, generator=generator)


def require_random(model: Any, function: str) -> Any:
    """Return the model if it is a `leanbayes.Bayesian`, else raise an error in the name of ``function``."""
    if not isinstance(model, nn.Module) or not hasattr(model, "predict_by"):
        raise InputError(
            f"{function} needs random weights, and a {type(model).__name__} has none; convert it: "
            "leanbayes.Bayesian(model)"
        )
    return model


def _name_of(member: object) -> str | None:
    """The name of a kind of propagation; None for anything else, such as the abstract classes."""
    if isinstance(member, type) and issubclass(member, Propagation):
        return getattr(member, "name", None)
    return None


PROPAGATIONS: Catalogue[type[Propagation]] = Catalogue(
    "propagation", _name_of, package="leanbayes.propagate", group="leanbayes.propagations"
)
"""Every kind of propagation by its name, those of other packages included."""

PropagationLike = Propagation | str
"""A propagation, or the name of one as shorthand for the value with its defaults."""


def as_propagation(value: PropagationLike) -> Propagation:
    """Return a propagation; a name stands for the value with its defaults.

    >>> from leanbayes.propagate import Moments
    >>> as_propagation("moments") == Moments() and as_propagation(Moments(rank=0)) == Moments(rank=0)
    True
    """
    if isinstance(value, Propagation):
        return value
    if isinstance(value, str):
        return PROPAGATIONS.named(value)()
    raise InputError(
        f'a propagation is a name such as "sample" or a value such as leanbayes.propagate.Sample(), got {value!r}'
    )
