"""Passes through a model of whose weights each process holds a piece.

Under ``fully_shard`` the weights of a part are whole only while that part runs, so their draws are made then
(`leanbayes._passes.LateTensors`). Under tensor parallelism the pieces stay pieces: each process computes its share of a
layer where the propagation can, and elsewhere gathers the weights and computes the whole layer.
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from leanbayes._calls import call_with
from leanbayes._passes import LateTensors
from leanbayes._sharding import Part, is_piece, parts_of, refuse_other_noise, whole, whole_layers
from leanbayes.errors import InputError
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate import OnePass, Propagation
from leanbayes.propagate.propagation import Weights

__all__ = ["run_sharded"]

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The positional and the keyword arguments of a model."""

_SAME_NOISE: "WeakSet[nn.Module]" = WeakSet()
"""Models under tensor parallelism whose processes were seen to draw the same noise."""


def run_sharded(
    model: nn.Module,
    weights: Weights,
    coordinates: Mapping[str, nn.Module],
    arguments: Arguments,
    by: Propagation,
    generator: torch.Generator | None,
) -> Any:
    """Run one random pass through a model some of whose random weights are DTensors.

    Args:
        model: the plain model.
        weights: its random weights.
        coordinates: for each of them the module with its scales (``rho``) and positions (``index``), whose call
            returns the scales.
        arguments: what the model is called with.
        by: the propagation.
        generator: the source of all random numbers of this pass.
    """
    parts = parts_of(model, {name: weight.mean for name, weight in weights.items()})
    if not parts:
        return _run_on_pieces(model, weights, arguments, by, generator)
    tensors, late = _late_tensors(model, weights, coordinates, parts, by, generator)
    return call_with(model, tensors, *arguments, late)


def _late_tensors(
    model: nn.Module,
    weights: Weights,
    coordinates: Mapping[str, nn.Module],
    parts: list[Part],
    by: Propagation,
    generator: torch.Generator | None,
) -> tuple[dict[str, Tensor], LateTensors]:
    """Make the tensors of a pass of which some must wait until torch has gathered their weights.

    Noise that is drawn ahead comes from one generator, in the order of the names. So the state of the generator before
    each late draw is kept, and the draw is made from there: it is the same as without shards, and the same again if a
    checkpoint computes it anew. Other stand-ins draw as they are used, in the order of the pass.
    """
    if not by.crosses_shards:
        raise InputError(
            f"under {by} tensors cannot pass from one sharded module to the next; shard the loss as one module, "
            "fully_shard(lb.Objective(...)), and none of its parts, or choose another propagation"
        )
    later = {name for part in parts for name in part.names}
    tensors: dict[str, Tensor] = {}
    states: dict[str, Tensor] = {}
    if by.draws_ahead:
        for name, weight in weights.items():
            if name not in later:
                tensors |= by.stand_ins({name: weight}, model, generator)
                continue
            states[name] = _source(generator, weight.mean.device).get_state()
            _skip_noise(weight, generator)
    else:
        tensors = by.stand_ins(
            {name: weight for name, weight in weights.items() if name not in later}, model, generator
        )

    def make(part: Part) -> dict[str, Tensor]:
        ready = {name: _gathered(weights[name], coordinates[name], part) for name in part.names}
        if not by.draws_ahead:
            return by.stand_ins(ready, model, generator)
        made: dict[str, Tensor] = {}
        for name, weight in ready.items():
            source = torch.Generator(weight.mean.device)
            source.set_state(states[name])
            made |= by.stand_ins({name: weight}, model, source)
        return made

    again = not isinstance(by, OnePass)
    return tensors, LateTensors(parts, make, generator, keep=not by.plain_draws, recomputable=again)


def _gathered(weight: RandomWeight, coordinates: nn.Module, part: Part) -> RandomWeight:
    """Return a random weight that torch has gathered for a part of the model that runs now."""
    holder, key = part.holders[weight.name][0]
    mean, rho = holder._parameters[key], coordinates()
    assert mean is not None
    if is_piece(mean):
        raise InputError(
            f"{weight.name!r} is cut by tensor parallelism and sharded by fully_shard as well, which is not supported; "
            "use one of the two"
        )
    if is_piece(coordinates.rho):  # torch has freed them again, or never gathered them
        raise InputError(
            f"the scales of {weight.name!r} are sharded apart from their weight, and are not whole when the weight is "
            "used: shard them with it, fully_shard([part, *bnn.scales_of(part)]), or leave them to "
            "fully_shard(objective)"
        )
    return RandomWeight(weight.name, mean, weight.index, None, weight.family, rho)


def _run_on_pieces(
    model: nn.Module, weights: Weights, arguments: Arguments, by: Propagation, generator: torch.Generator | None
) -> Any:
    """Run a pass through a model whose layers are cut by tensor parallelism."""
    cut = {name: weight for name, weight in weights.items() if is_piece(weight.mean)}
    for name, weight in cut.items():
        if weight.index is None and not is_piece(weight.rho):
            raise InputError(
                f"{name!r} is cut by tensor parallelism, and its scales are not; call bnn.shard_scales() after "
                "parallelize_module, and build the optimizer afterwards"
            )
    if model not in _SAME_NOISE:  # asked once, because each answer takes a message between the processes
        means = [weight.mean for weight in cut.values()]
        refuse_other_noise(means, _source(generator, means[0].device))
        _SAME_NOISE.add(model)
    products_shared = by.works_on_pieces and all(weight.index is None for weight in cut.values())
    if products_shared and all(isinstance(weight.family, Normal) for weight in weights.values()):
        return call_with(model, by.stand_ins(weights, model, generator), *arguments)
    gathered = {
        name: RandomWeight(name, whole(weight.mean), weight.index, None, weight.family, whole(weight.rho))
        for name, weight in weights.items()
    }
    tensors = {name: whole(value) for name, value in model.named_parameters() if is_piece(value)}
    with whole_layers(model):
        return call_with(model, tensors | by.stand_ins(gathered, model, generator), *arguments)


def _source(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """Return the source of random numbers that draws on a device use."""
    if generator is not None:
        return generator
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator


def _skip_noise(weight: RandomWeight, generator: torch.Generator | None) -> None:
    """Take the noise of a weight from the generator and throw it away."""
    assert weight.rho is not None
    shape = weight.mean.shape if weight.index is None else weight.rho.shape
    like = torch.empty((), dtype=weight.mean.dtype, device=weight.mean.device).expand(shape)
    weight.family.noise(like, None, generator)
