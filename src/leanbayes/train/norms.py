"""Batch norm under randomness: why its statistics stay fixed while all examples of a batch share one draw."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch import Tensor, nn

from leanbayes.bayesian import Bayesian

__all__ = ["fix_statistics", "has_statistics", "must_hold_statistics", "recompute_statistics"]

Module = TypeVar("Module", bound=nn.Module)


def fix_statistics(model: Module) -> Module:
    """Put every layer with running statistics into evaluation mode. Call it after ``model.train()``.

    The weights γ and β of these layers still train.

    In training mode a batch norm divides by the statistics of the batch, and these belong to the present draw of the
    weights. So the batch norm undoes every change of scale and shift that the draw made before it. The loss does not
    feel that noise, and the KL widens it to the prior. In evaluation mode the statistics no longer follow the draw, so
    the prediction gets worse. With fixed statistics, training sees what prediction will see. But the weights lose what
    batch norm is there for: at the learning rates of the plain model they wander. Draws that differ within a batch, and
    that cancel in its statistics, are better: ``propagate="mirrored"``, or "flipout", which costs more.
    ``benchmarks/batch_norm.py`` measures all of them.

    Args:
        model: the model; its layers are changed in place.

    Returns:
        The same model.

    >>> model = fix_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train())
    >>> model[0].training, model[1].training
    (True, False)
    """
    for module in _with_statistics(model):
        module.eval()
    return model


def has_statistics(model: nn.Module) -> bool:
    """Return whether a layer of the model keeps running statistics.

    >>> has_statistics(nn.BatchNorm1d(2)), has_statistics(nn.GroupNorm(1, 2))
    (True, False)
    """
    return any(True for _ in _with_statistics(model))


def must_hold_statistics(model: nn.Module) -> bool:
    """Return whether `fit` holds statistics by default: if all examples of a batch share one draw of the weights."""
    return isinstance(model, Bayesian) and not model.propagate.differs_within_batch


def recompute_statistics(
    model: nn.Module, passes: Iterable[Callable[[], object]], mean: Callable[[Tensor], Tensor]
) -> None:
    """Forget all running statistics, and compute them as plain averages over some passes.

    Args:
        model: the model, in training mode.
        passes: functions that pass a batch through the model.
        mean: the mean of a tensor over all processes, each of which sees its own part of the data.
    """
    layers: list[Any] = list(_with_statistics(model))
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
    try:
        for number, run in enumerate(passes, start=1):
            for layer in layers:
                layer.momentum = 1 / number  # the new batch counts as much as each of those before it
            run()
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    for layer in layers:
        layer.running_mean.copy_(mean(layer.running_mean))
        layer.running_var.copy_(mean(layer.running_var))


def _with_statistics(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if getattr(module, "running_mean", None) is not None)
