"""`Moments`: mean and variance pass through the network together, in one pass and without samples (VDP++)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, map_tensors, prediction_tensor
from leanbayes._ops.moments import channels_innermost
from leanbayes._wrappers import unwrap
from leanbayes.errors import InputError
from leanbayes.propagate.moments import MomentTensor, Setting, draw_moments
from leanbayes.propagate.noisy_inputs import with_variance
from leanbayes.propagate.outputs import IndependentOutputs
from leanbayes.propagate.propagation import (
    OnePass,
    PropagationLike,
    RandomNetwork,
    Weights,
    as_propagation,
    require_random,
)

__all__ = ["Moments", "moments"]


@dataclass(frozen=True)
class Moments(OnePass):
    """Mean and variance of every activation, in one pass: nothing is sampled (VDP++).

    Every operation of the model needs a rule; an operation without one raises `MissingRule`. The outputs of one layer
    are taken as independent of each other, except for what the positions that share a filter have in common
    (``positions``) and for a few factors that the units of a layer have in common (``rank``).

    Training keeps what the backward pass needs, and the factors of the defaults make that a lot. A training step of
    ResNet-18 in batches of 64 takes 2.1 times the time and 2.2 times the memory of a plain step with ``rank=0``, and
    3.3 times the time and 2.5 times the memory with ``rank=0, kernels="exact"`` (benchmarks/moments_cost.py). So choose
    ``rank=0`` where training needs too much: ``Bayesian(model, propagate=Moments(rank=0), predict_by=Moments())``.

    Args:
        rank: how many factors of the noise the units of a layer have in common; 0 takes the units as independent. In
            trained networks 8 is 1.1 to 11 times more accurate than 0 (docs/results/moments_accuracy.json).
        positions: how positions that share a random filter are treated: "split", "shared" or "independent".
        kernels: how a convolution treats the variance of its input. "exact" uses the squares of each filter; "box"
            spreads them evenly over the filter's window, which needs a ninth of the multiplications for 3x3 and is as
            close to weight samples (docs/results/moments_accuracy.json).
        order: how activations are treated: "gaussian" gives the moments of the activation of a Gaussian, "taylor"
            goes to first order only (VDP++, eq. 4 and 5).

    >>> Moments(rank=0).name
    'moments'
    """

    name: ClassVar[str] = "moments"
    rank: int = 8
    positions: str = "split"
    kernels: str = "box"
    order: str = "gaussian"

    def __post_init__(self) -> None:
        self.setting(None)  # which checks the values

    def setting(self, model: nn.Module | None) -> Setting:
        """The setting that every tensor of one pass through ``model`` carries."""
        return Setting(order=self.order, positions=self.positions, model=model, rank=self.rank, kernels=self.kernels)

    def stand_ins(
        self,
        weights: Weights,
        model: nn.Module,
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """Represent every weight by its mean and variance; nothing is drawn."""
        setting = self.setting(model)
        return {name: MomentTensor.of_weight(weight, setting) for name, weight in weights.items()}

    def lean(self) -> Self:
        """Return these moments without factors, which need memory in training, and with exact kernels."""
        return replace(self, rank=0, kernels="exact")

    def prepare(self, x: Inputs) -> Inputs:
        """Lay images out with their channels innermost, which is fastest for the convolutions of the CPU."""
        return map_tensors(_channels_innermost, x)

    def drawn(self, returned: Any, generator: torch.Generator | None) -> Any:
        """Draw the outputs once from their moments."""
        return map_tensors(lambda value: draw_moments(value, generator), returned)

    def law(
        self,
        bnn: RandomNetwork,
        x: Inputs,
        *,
        weights: Weights | None = None,
        input_variance: Any = None,
        output: Callable[[Any], Any] = prediction_tensor,
    ) -> IndependentOutputs:
        """Compute the mean and variance of the outputs."""
        setting = self.setting(bnn.model)
        noisy = with_variance(
            self.prepare(x), input_variance, lambda value, noise: MomentTensor.of(value, noise, None, setting)
        )
        chosen = output(bnn.run(weights, noisy, self))
        return IndependentOutputs(map_tensors(_mean, chosen), map_tensors(_variance, chosen))


def moments(
    bnn: RandomNetwork,
    x: Inputs,
    *,
    by: PropagationLike | None = None,
    input_variance: Any = None,
    weights: Weights | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
) -> tuple[Any, Any]:
    """Compute the mean and variance of what a Bayesian model returns, in one pass and without samples.

    Args:
        bnn: the `leanbayes.Bayesian`, with any posterior that has a variance; it may be inside a wrapper.
        x: what the model takes: a tensor, a tuple of arguments or a mapping of them.
        by: a `Moments` value. By default the model's own: its ``predict_by`` if that is one, else its ``propagate`` if
            that is one, else ``Moments()``.
        input_variance: the variance of sensor noise in ``x``: a number, or a tensor that broadcasts to ``x``; for a
            tuple or mapping one for each part, and None for parts without noise.
        weights: the random weights, if they are computed already (see `leanbayes.Bayesian.weights`).
        output: picks the tensor, or tuple of tensors, from what the model returns.

    Returns:
        The mean and the variance of each output, as plain tensors with gradients.

    >>> from leanbayes import Bayesian
    >>> bnn = Bayesian(nn.Linear(3, 2))
    >>> mean, variance = moments(bnn, torch.ones(4, 3))
    >>> bool((mean == bnn.model(torch.ones(4, 3))).all()), tuple(variance.shape)
    (True, (4, 2))
    """
    bnn = require_random(unwrap(bnn), "moments")
    candidates = [bnn.predict_by, bnn.propagate, Moments()] if by is None else [as_propagation(by)]
    chosen = next((value for value in candidates if isinstance(value, Moments)), None)
    if chosen is None:
        raise InputError(f"moments needs by=leanbayes.propagate.Moments(...), got {by!r}")
    outputs = chosen.law(bnn, x, weights=weights, input_variance=input_variance, output=output)
    return outputs.mean, outputs.variance


def _channels_innermost(x: Tensor) -> Tensor:
    images = x.dim() == 4 and x.is_floating_point() and x.device.type == "cpu" and not isinstance(x, MomentTensor)
    return channels_innermost(x) if images else x


def _mean(value: Tensor) -> Tensor:
    return value.expected if isinstance(value, MomentTensor) else value


def _variance(value: Tensor) -> Tensor:
    return value.variance if isinstance(value, MomentTensor) else torch.zeros_like(value)
