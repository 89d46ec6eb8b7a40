"""`Covariance`: the mean and the full covariance of each example pass through the network (the original VDP)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, map_tensors, prediction_tensor
from leanbayes._wrappers import unwrap
from leanbayes.errors import InputError
from leanbayes.propagate.covariance import CovarianceTensor, Setting, draw_covariance, full
from leanbayes.propagate.noisy_inputs import with_variance
from leanbayes.propagate.outputs import CorrelatedOutputs
from leanbayes.propagate.propagation import (
    OnePass,
    PropagationLike,
    RandomNetwork,
    Weights,
    as_propagation,
    require_random,
)

__all__ = ["Covariance", "covariance"]


@dataclass(frozen=True)
class Covariance(OnePass):
    """Mean and covariance of all activations of an example, in one pass: the method whose diagonal VDP++ keeps.

    All numbers of one example are correlated as they are, through shared filters and from layer to layer. Only the two
    branches of a sum are taken as independent. Memory grows with the square of the width, so this is for small models,
    and it serves as a reference for `Moments`. Every operation needs a rule; one without a rule raises `MissingRule`.

    Args:
        limit: the largest single covariance that may be made, in GB; a larger one raises at once.

    >>> Covariance(limit=0.5)
    Covariance(limit=0.5)
    """

    name: ClassVar[str] = "covariance"
    crosses_shards: ClassVar[bool] = False
    limit: float = 2.0

    def __post_init__(self) -> None:
        self.setting(None)  # which checks the value

    def setting(self, model: nn.Module | None) -> Setting:
        """The setting that every tensor of one pass through ``model`` carries."""
        return Setting(model, self.limit)

    def stand_ins(
        self,
        weights: Weights,
        model: nn.Module,
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """Represent every weight by its mean and variance; nothing is drawn."""
        setting = self.setting(model)
        return {name: CovarianceTensor.of_weight(weight, setting) for name, weight in weights.items()}

    def drawn(self, returned: Any, generator: torch.Generator | None) -> Any:
        """Draw the outputs of each example once, all together."""
        return map_tensors(lambda value: draw_covariance(value, generator), returned)

    def law(
        self,
        bnn: RandomNetwork,
        x: Inputs,
        *,
        weights: Weights | None = None,
        input_variance: Any = None,
        output: Callable[[Any], Any] = prediction_tensor,
    ) -> CorrelatedOutputs:
        """Compute the mean and covariance of the outputs."""
        setting = self.setting(bnn.model)
        noisy = with_variance(
            x, input_variance, lambda value, noise: CovarianceTensor.independent(value, noise, setting)
        )
        chosen = output(bnn.run(weights, noisy, self))
        return CorrelatedOutputs(map_tensors(_mean, chosen), map_tensors(_covariance, chosen))


def covariance(
    bnn: RandomNetwork,
    x: Inputs,
    *,
    by: PropagationLike | None = None,
    input_variance: Any = None,
    weights: Weights | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
) -> tuple[Any, Any]:
    """Compute the mean and covariance of what a Bayesian model returns, in one pass and without samples.

    Args:
        bnn: the `leanbayes.Bayesian`, with any posterior that has a variance; it may be inside a wrapper.
        x: what the model takes: a tensor, a tuple of arguments or a mapping of them.
        by: a `Covariance` value. By default the model's own: its ``predict_by`` if that is one, else its ``propagate``
            if that is one, else ``Covariance()``.
        input_variance: the variance of sensor noise in ``x``, as for `leanbayes.moments`.
        weights: the random weights, if they are computed already (see `leanbayes.Bayesian.weights`).
        output: picks the tensor, or tuple of tensors, from what the model returns.

    Returns:
        The mean (N, ...), and the covariance (N, D, D) of the D flattened outputs of each example.

    >>> from leanbayes import Bayesian
    >>> bnn = Bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> mean, spread = covariance(bnn, torch.ones(5, 3))
    >>> mean.shape, spread.shape, bool((spread.diagonal(dim1=1, dim2=2) > 0).all())
    (torch.Size([5, 2]), torch.Size([5, 2, 2]), True)
    """
    bnn = require_random(unwrap(bnn), "covariance")
    candidates = [bnn.predict_by, bnn.propagate, Covariance()] if by is None else [as_propagation(by)]
    chosen = next((value for value in candidates if isinstance(value, Covariance)), None)
    if chosen is None:
        raise InputError(f"covariance needs by=leanbayes.propagate.Covariance(...), got {by!r}")
    outputs = chosen.law(bnn, x, weights=weights, input_variance=input_variance, output=output)
    return outputs.mean, outputs.covariance


def _mean(value: Tensor) -> Tensor:
    return value.expected if isinstance(value, CovarianceTensor) else value


def _covariance(value: Tensor) -> Tensor:
    if isinstance(value, CovarianceTensor):
        return full(value)
    size = value[:1].numel()
    return torch.zeros((), dtype=value.dtype, device=value.device).expand(len(value), size, size)
