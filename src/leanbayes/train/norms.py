"""Batch norm under randomness: why its statistics stay fixed while all examples of a batch share one draw."""

from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from leanbayes.bayesian import Bayesian

__all__ = ["fix_statistics", "has_statistics", "must_hold_statistics"]

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


def _with_statistics(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if getattr(module, "running_mean", None) is not None)
