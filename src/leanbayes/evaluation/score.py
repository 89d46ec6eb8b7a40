"""The quantity that an explanation explains, as one deterministic and differentiable function of the inputs.

A predictor with draws gives no such function by itself. The expectation over draws whose noise is fixed is one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import map_tensors, prediction_tensor
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.likelihood import Likelihood, Uncertainty
from leanbayes.prediction import in_eval
from leanbayes.prediction.prediction import networks_of
from leanbayes.propagate import OnePass
from leanbayes.propagate.outputs import IndependentOutputs

__all__ = ["Network", "Quantity", "Score"]

Quantity = Literal["prediction", "total", "aleatoric", "epistemic"]
Network = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Score:
    """One number for each input: a predicted probability or mean, or an uncertainty. The fields are `Explainer`'s."""

    predictor: nn.Module | Network
    likelihood: Likelihood
    of: Quantity
    samples: int
    seed: int

    def uncertainty(self, x: Tensor) -> Uncertainty:
        """Return the prediction that `predict` makes, with gradients and always the same for ``x``."""
        modules = [part for part in (self.predictor, self.likelihood) if isinstance(part, nn.Module)]
        with in_eval(*modules):
            bnn = self.predictor
            if isinstance(bnn, Bayesian) and isinstance(bnn.predict_by, OnePass) and not bnn.held:
                law = bnn.predict_by.law(bnn, x)
                if not isinstance(law, IndependentOutputs):
                    raise InputError(
                        f"a model with predict_by={bnn.predict_by} cannot be explained; "
                        'give the model predict_by="moments"'
                    )
                mean, variance = (map_tensors(_tamed, part) for part in (law.mean, law.variance))
                return _finite(self.likelihood.uncertainty_of_moments(mean, variance, self.samples))
            total, centre = None, None
            networks = networks_of(bnn, self.samples, torch.Generator().manual_seed(self.seed))
            for network in networks:
                output = map_tensors(_tamed, prediction_tensor(network(x)))
                centre = self.likelihood.centre(output) if total is None else centre
                statistics = self.likelihood.statistics(output, centre)
                total = statistics if total is None else total + statistics
            assert total is not None
            averages = _tamed(total / len(networks))
            draws = torch.full((len(averages),), len(networks), device=averages.device)
            return _finite(self.likelihood.uncertainty(averages, draws, centre))

    @torch.no_grad()
    def target(self, x: Tensor) -> Tensor | None:
        """Return the most probable class of each input; None for models of one output."""
        mean = self.uncertainty(x).mean
        if mean.dim() == 1 or mean.shape[1] == 1:
            return None
        if not self.likelihood.has_logits:
            raise InputError(f"the model has {mean.shape[1]} outputs; say which one to explain with target=...")
        return mean.argmax(1)

    def __call__(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """Return the quantity for each input, with gradients."""
        prediction = self.uncertainty(x)
        if self.of != "prediction":
            return _per_input(getattr(prediction, self.of))
        mean = prediction.mean
        if target is not None:
            mean = mean.gather(1, _index(target, mean))
        elif mean.dim() > 1 and mean.shape[1] > 1:
            raise InputError(f"the model has {mean.shape[1]} outputs; say which one to explain with target=...")
        return _per_input(mean)


def _tamed(value: Tensor) -> Tensor:
    """Where p rounds to 0, the slope of p log p is infinite and that of p is 0; the limit of their product is 0."""
    if value.requires_grad:
        value.register_hook(lambda slope: slope.nan_to_num(0.0, posinf=0.0, neginf=0.0))
    return value


def _finite(prediction: Uncertainty) -> Uncertainty:
    if not (torch.isfinite(prediction.mean).all() and torch.isfinite(prediction.total).all()):
        raise NonFinite("the model's output has NaN or infinite values; check the inputs and the weights")
    return prediction


def _index(target: Tensor, mean: Tensor) -> Tensor:
    """Return the index along axis 1 of the outputs: one for each input, or one for each pixel."""
    pixels = (len(mean), *mean.shape[2:])
    if (
        mean.dim() < 2
        or target.is_floating_point()
        or tuple(target.shape) not in (pixels, pixels[:1])
        or not 0 <= int(target.min()) <= int(target.max()) < mean.shape[1]
    ):
        raise ShapeMismatch(
            f"targets must be integers of shape {pixels[:1]} or {pixels} that index axis 1 of outputs of shape "
            f"{tuple(mean.shape)}; got {target.dtype} of shape {tuple(target.shape)} from {target.min().item()} to "
            f"{target.max().item()}"
        )
    return target.view(len(mean), 1, *(target.shape[1:] or [1] * (mean.dim() - 2))).expand(-1, 1, *mean.shape[2:])


def _per_input(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values
