"""Batch norm and random weights: why statistics are held while a net with one draw for a batch trains."""

from collections.abc import Iterator
from typing import TypeVar

from torch import nn

__all__ = ["fix_statistics", "has_statistics"]

Module = TypeVar("Module", bound=nn.Module)


def fix_statistics(model: Module) -> Module:
    """Put every layer with running statistics in eval mode; call it after ``train()``. Their γ and β train on.

    In train mode a batch norm divides by the statistics of the batch, which are those of the present weight draw. It
    undoes every change of scale and shift that the draw made before it, so the loss does not feel that noise, the KL
    widens it to the prior, and in eval mode, where the statistics no longer follow the draw, the prediction is worse.
    With held statistics, training sees what prediction will see. But the weights lose what batch norm is there for:
    at the learning rates of the plain net they wander. Better are draws that differ within a batch and cancel in its
    statistics: ``propagate="mirrored"``, or "flipout", which costs more (`benchmarks/batch_norm.py` measures all).

    >>> model = fix_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train())
    >>> model[0].training, model[1].training
    (True, False)
    """
    for module in _with_statistics(model):
        module.eval()
    return model


def has_statistics(model: nn.Module) -> bool:
    """Whether a layer of it keeps running statistics.

    >>> has_statistics(nn.BatchNorm1d(2)), has_statistics(nn.GroupNorm(1, 2))
    (True, False)
    """
    return any(True for _ in _with_statistics(model))


def _with_statistics(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if getattr(module, "running_mean", None) is not None)
