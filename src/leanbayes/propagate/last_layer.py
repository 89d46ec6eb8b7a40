"""The likelihood term with many draws of the last layer, given its input (Nazarovs et al. 2021, section 4.2).

The last layer is small, so many draws of it cost little. They are folded into the batch, because nothing after the last
layer mixes rows.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._calls import Inputs, call, call_with, map_tensors
from leanbayes._passes import exclusive
from leanbayes.errors import InputError
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate.linear_ops import LINEAR_OPS, Operation, plain_input, weight_of
from leanbayes.propagate.moments import MomentTensor, Setting
from leanbayes.propagate.outputs import ScoresOutputs
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.stand_in import make_stand_in
from leanbayes.propagate.uses import consistently
from leanbayes.subspace import dense_name, last_layer

if TYPE_CHECKING:
    from leanbayes.propagate.propagation import Propagation, RandomNetwork, Weights

__all__ = ["nll_of_last_layer"]


def nll_of_last_layer(
    by: "Propagation",
    bnn: "RandomNetwork",
    weights: "Weights",
    x: Inputs,
    y: Tensor,
    likelihood: ScoresOutputs,
    draws: int,
    generator: torch.Generator | None,
    output: Callable[[Any], Any],
) -> Tensor:
    """Compute −log p, summed over the batch, from one draw of all other weights and ``draws`` draws of the last layer.

    The part of the variance that comes from the last layer, the first term of eq. 8 of Nazarovs et al. 2021, is divided
    by ``draws``. Normal weights make the outputs Gaussian, given the input of the layer. Their moments are then enough:
    regression has a closed form, as if ``draws`` were infinite, and for classes only the logits are drawn. For other
    families the weights themselves are drawn.
    """
    layer = last_layer(bnn.model)
    inside = [name for name in weights if dense_name(name).rpartition(".")[0] == layer]
    if not inside:
        raise InputError(
            f"the last layer {layer!r} is not random, so it cannot be drawn many times; leave last_layer_samples 1"
        )
    before = {name: weight for name, weight in weights.items() if name not in inside}
    normal = isinstance(bnn.posterior, Normal)
    setting = Setting(model=bnn.model)
    prepared = by.prepare(x)

    def attempt() -> Any:
        tensors = by.stand_ins(before, bnn.model, generator)
        for name in inside:
            if normal:
                tensors[name] = MomentTensor.of_weight(weights[name], setting)
            else:
                tensors[name] = _folded_stand_in(weights[name], draws, generator)
        return call(lambda *args, **kwargs: call_with(bnn.model, tensors, args, kwargs), prepared)

    with exclusive(bnn.model):
        returned = consistently(attempt, bnn.reuse, bnn.model, prepared, generator)
    outputs = by.drawn(output(returned), generator)
    parts: list[Tensor] = []
    map_tensors(parts.append, outputs)
    if normal:
        if not all(isinstance(part, MomentTensor) for part in parts):
            raise InputError(f"what the model returns does not come from its last layer {layer!r} alone")
        mean, variance = (map_tensors(attrgetter(name), outputs) for name in ("expected", "variance"))
        return likelihood.expected_nll(mean, variance, y, samples=draws, generator=generator)
    rows = [len(part) for part in parts]
    if set(rows) != {draws * len(y)}:
        raise InputError(
            f"what the model returns has {rows} rows, not {draws * len(y)}: {layer!r} is not its last layer"
        )
    return likelihood.nll(outputs, torch.cat([y] * draws)) / draws


def _folded_stand_in(weight: RandomWeight, draws: int, generator: torch.Generator | None) -> Tensor:
    """A stand-in whose linear operation gives (draws · N, ...): all rows at the first draw, then at the second, ..."""
    rules = Registry("many draws of the last layer")
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
    outputs = [operation(x, weights[i], None if biases is None else biases[i], *args, **kwargs) for i in range(draws)]
    return torch.cat(outputs)


def _drawn(value: Any, draws: int) -> Any:
    if value is None:
        return None
    weight = weight_of(value)
    if weight is None:
        return value.expand(draws, *value.shape)
    return weight.sample(weight.noise(value.generator, draws))
