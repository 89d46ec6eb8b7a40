"""The costs of a method as one record."""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes.errors import InputError
from leanbayes.evaluation.cost.flops import count_flops, forward_flops, left_as_found, training_step
from leanbayes.evaluation.cost.parameters import count_parameters, tensors_of
from leanbayes.evaluation.cost.resources import peak_memory
from leanbayes.likelihood import Likelihood

__all__ = ["Cost", "cost_of"]


@dataclass(frozen=True)
class Cost:
    """The costs of one run, as a comparison keeps them. None stands for what was not measured.

    The metrics called ``cost/<field>`` in `leanbayes.metrics.METRICS` give each field a title and a meaning.

    Attributes:
        parameters: the number of means and scales.
        random: the number of scales alone.
        bytes: the size of everything that the model keeps.
        flops_forward: the FLOPs of predicting one batch.
        flops_train: the FLOPs of one training step on that batch.
        flops_formula: the FLOPs of one training step by a formula of the caller.
        train_seconds: the wall-clock time of training.
        predict_seconds: the wall-clock time of prediction.
        peak_memory: the bytes that one training step needs at its peak.
        density: the share of the means that a sparse model stores.
    """

    parameters: int
    random: int
    bytes: int
    flops_forward: int | None = None
    flops_train: int | None = None
    flops_formula: float | None = None
    train_seconds: float | None = None
    predict_seconds: float | None = None
    peak_memory: int | None = None
    density: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name} must be finite and at least 0, got {value}")


def cost_of(
    model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, *, samples: int = 1, draws: int | None = None
) -> Cost:
    """Measure all costs of a model that one batch can tell. The caller adds the seconds and the formula.

    The model is left as it was. ``peak_memory`` is that of one training step with ``samples`` draws: its activations
    and gradients. What an optimizer keeps comes on top; for Adam these are two numbers for each parameter.

    Args:
        model: anything that `predict` takes.
        x: the inputs of the batch.
        y: its targets.
        likelihood: what the outputs mean.
        samples: how many draws a training step makes.
        draws: how many draws a prediction makes; by default one, or every member of a predictor that has members.

    >>> from leanbayes.likelihood import Categorical
    >>> cost = cost_of(nn.Linear(4, 3), torch.zeros(8, 4), torch.zeros(8, dtype=torch.long), Categorical())
    >>> cost.parameters, cost.bytes, cost.flops_forward, cost.flops_train
    (15, 60, 192, 384)
    """
    size = count_parameters(model)
    with left_as_found(model, likelihood, training=True):
        flops = count_flops(lambda: training_step(model, x, y, likelihood, samples))
        peak = peak_memory(lambda: training_step(model, x, y, likelihood, samples), _device(model))
    return Cost(
        size.trained,
        size.scales,
        size.bytes,
        forward_flops(model, x, draws=draws),
        flops,
        peak_memory=peak,
        density=size.density if size.zeros else None,
    )


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for _, tensor in tensors_of(model)), torch.device("cpu"))
