"""The loss of a batch and of a validation set, and what is to blame if it is not finite."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import batch_size, call, map_tensors
from leanbayes._sharding import is_sharded_module, local
from leanbayes._wrappers import computed_inside
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite
from leanbayes.objective import Objective
from leanbayes.train.batches import mix, ordered
from leanbayes.train.data import Reading

__all__ = ["culprit", "divergence", "validation_loss"]

_LARGE = 1e4  # weights of trained networks are of the order of 1, and learning rates are below


@torch.no_grad()
def divergence(objective: Objective, generator: torch.Generator) -> float:
    """Return the KL of the model as it is now, for the report alone; a plain module has none."""
    return objective.model.kl(generator=generator).item() if isinstance(objective.model, Bayesian) else 0.0


@torch.no_grad()
def validation_loss(
    objective: Objective,
    batches: Iterable[Any],
    device: torch.device,
    seed: int,
    position: str = "validation",
    reading: Reading | None = None,
) -> float:
    """Return the mean negative log-likelihood of an example, with one draw of the weights for each batch.

    Args:
        objective: model and likelihood.
        batches: the validation set.
        device: the device to which batches go.
        seed: the seed of the draws.
        position: where the training is, for the error after a loss that is not finite.
        reading: how a batch becomes inputs and targets; by default a batch is a pair.
    """
    objective.eval()
    read = reading or Reading()
    noise = torch.Generator(device=device).manual_seed(seed)
    options = {"generator": noise} if isinstance(objective.model, Bayesian) else {}
    losses: list[Tensor] = []
    finite_data: list[Tensor] = []
    count = 0

    def loss_of(objective: Objective, pair: tuple[Any, Any]) -> Tensor:
        returned = call(lambda *args, **kwargs: objective.model(*args, **kwargs, **options), pair[0])
        return objective.likelihood.nll(objective.output(returned), pair[1]).double()

    with ordered(batches, mix(seed, "order")):
        for batch in batches:
            x, y = read(batch, device)
            losses.append(computed_inside(objective, loss_of, (x, y)))
            finite_data.append(torch.stack([_finite(x, device), _finite(y, device)]))
            count += batch_size(x)
    if is_sharded_module(objective):
        objective.reshard()  # type: ignore[operator] # without a backward pass, torch keeps the weights that it gathered
    if not count:
        raise InputError("the validation set is empty; give at least one batch, or leave validate=None")
    score = torch.stack(losses).sum().item() / count
    if not math.isfinite(score):
        index = int((~torch.isfinite(torch.stack(losses))).nonzero()[0]) if len(losses) else 0
        reason = _data_culprit(*finite_data[index].tolist()) or culprit(objective)
        raise NonFinite(
            f"{position}, batch {index} of the validation set: the loss is {losses[index].item()}; {reason}. Without a "
            "finite validation loss no epoch is the best one"
        )
    return score


def culprit(module: nn.Module, inputs: Any = None, targets: Any = None, rates: Iterable[float] = ()) -> str:
    """Say what most likely made a loss that is not finite: the data, the learning rate or the loss itself.

    Args:
        module: the model and its likelihood.
        inputs: the inputs of the batch.
        targets: the targets of the batch.
        rates: the learning rates of the optimizer at the start.
    """
    first = next((p.device for p in module.parameters()), torch.device("cpu"))
    reason = _data_culprit(bool(_finite(inputs, first)), bool(_finite(targets, first)))
    if reason:
        return reason
    largest = max(rates, default=None)
    advice = "the learning rate" + ("" if largest is None else f" ({largest:g})")
    for name, parameter in module.named_parameters():
        short = name.removeprefix("model.")
        if not torch.isfinite(local(parameter.detach())).all():
            return (
                f"the data are finite, and {short!r} has NaN or infinite values already, so {advice} is the likely "
                "cause; lower it, or clip the gradients: Optimization(clip=1.0)"
            )
    values = [local(parameter.detach()) for parameter in module.parameters()]
    size = max((float(value.abs().max()) for value in values if value.numel()), default=0.0)
    if size > _LARGE or (largest or 0.0) > _LARGE:
        return (
            f"the data are finite, and weights have sizes up to {size:.3g}, so {advice} is the likely cause; lower it, "
            "or clip the gradients: Optimization(clip=1.0)"
        )
    return (
        f"the data and all parameters are finite (the largest is {size:.3g}), so look at the loss itself and at the "
        "initial scales"
    )


def _data_culprit(inputs: bool, targets: bool) -> str:
    if not inputs:
        return "the inputs of this batch hold NaN or infinite values; clean the data"
    return "" if targets else "the targets of this batch hold NaN or infinite values; clean the data"


def _finite(data: Any, device: torch.device) -> Tensor:
    """Return, as a tensor on the device, whether all numbers in the data are finite."""
    checks: list[Tensor] = []
    map_tensors(lambda leaf: checks.append(torch.isfinite(leaf).all().to(device)), data)
    return torch.stack(checks).all() if checks else torch.ones((), dtype=torch.bool, device=device)
