"""The likelihood term with many draws of the last layer, given its input: at little cost, as it is small (003, 4.2)."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from leanbayes._calls import Inputs, call, call_with, map_tensors
from leanbayes.bayesian import Bayesian, Weights
from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.posteriors import Normal
from leanbayes.propagate import PROPAGATIONS, many
from leanbayes.propagate.moments import MomentTensor, Setting
from leanbayes.propagate.stand_in import draw_of
from leanbayes.subspace import dense_name, last_layer

__all__ = ["nll_of_last_layer"]


def nll_of_last_layer(
    bnn: Bayesian,
    weights: Weights,
    x: Inputs,
    y: Tensor,
    likelihood: Likelihood,
    *,
    draws: int,
    propagate: str,
    generator: torch.Generator | None,
    output: Callable[[Any], Any],
) -> Tensor:
    """−log p, summed over the batch: one draw of every other weight, and the mean over ``draws`` of the last layer's.

    The first term of 003's eq. 8, the variance that comes from the last layer, is divided by ``draws``. For Normal
    weights the outputs given the layer's input are Gaussian: their moments are enough, regression is in closed form
    (as if ``draws`` were infinite), and for classes only logits are drawn. For other families the weights are.
    """
    place = last_layer(bnn.model)
    own = [name for name in weights if dense_name(name).rpartition(".")[0] == place]
    if not own:
        raise InputError(
            f"the last layer {place!r} is not random, so it cannot be drawn many times; leave last_layer_samples 1"
        )
    normal = isinstance(bnn.posterior, Normal)
    setting = Setting(model=bnn.model)
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name not in own:
            tensors[name] = PROPAGATIONS[propagate](weight, generator)
        elif normal:
            tensors[name] = MomentTensor.of_weight(weight, setting)
        else:
            tensors[name] = many.stand_in(weight, draws, generator)
    returned = call(lambda *args, **kwargs: call_with(bnn.model, tensors, args, kwargs), x)
    chosen = map_tensors(draw_of, output(returned))
    if normal:
        parts: list[Tensor] = []
        map_tensors(parts.append, chosen)
        if not all(isinstance(part, MomentTensor) for part in parts):
            raise InputError(f"what the model returns does not come from its last layer {place!r} alone")
        mean, variance = (map_tensors(attrgetter(name), chosen) for name in ("expected", "variance"))
        return likelihood.expected_nll(mean, variance, y, samples=draws, generator=generator)
    rows: list[int] = []
    map_tensors(lambda part: rows.append(len(part)), chosen)
    if set(rows) != {draws * len(y)}:
        raise InputError(
            f"what the model returns has {rows} rows, not {draws * len(y)}: {place!r} is not its last layer"
        )
    return likelihood.nll(chosen, torch.cat([y] * draws)) / draws
