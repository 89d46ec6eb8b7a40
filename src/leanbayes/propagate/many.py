"""Many draws of one layer given its input, folded into the batch: for a last layer, after which nothing mixes rows."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.linear_ops import LINEAR_OPS, Operation, plain_input, weight_of
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.stand_in import make_stand_in

__all__ = ["stand_in"]


def stand_in(weight: RandomWeight, draws: int, generator: torch.Generator | None) -> Tensor:
    """A stand-in whose linear operation gives (draws · N, ...): all rows at the first draw, then at the second, ..."""
    rules = Registry("many")
    rules.rule(*LINEAR_OPS, exact=True)(partial(_linear, draws))
    return make_stand_in(weight, rules, generator)


def _linear(
    draws: int, operation: Operation, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
) -> Tensor:
    """One product for all draws where their weights can stand side by side, as outputs of one layer."""
    x = plain_input(input)
    weights, biases = _drawn(weight, draws), _drawn(bias, draws)
    if operation is F.linear:
        flat = biases if biases is None else biases.flatten()
        out: Tensor = F.linear(x, weights.flatten(0, 1), flat)
        return out.view(*out.shape[:-1], draws, -1).movedim(-2, 0).flatten(0, 1)
    each = [operation(x, weights[i], None if biases is None else biases[i], *args, **kwargs) for i in range(draws)]
    return torch.cat(each)


def _drawn(value: Any, draws: int) -> Any:
    if value is None:
        return None
    weight = weight_of(value)
    if weight is None:
        return value.expand(draws, *value.shape)
    return weight.sample(weight.noise(value.generator, draws))
