"""Batch norm and random weights: why statistics are held while a random net trains."""

from typing import TypeVar

from torch import nn

__all__ = ["fix_statistics"]

Module = TypeVar("Module", bound=nn.Module)


def fix_statistics(model: Module) -> Module:
    """Put every layer with running statistics in eval mode; call it after ``train()``. Their γ and β train on.

    In train mode a batch norm divides by the statistics of the batch, which are those of the present weight draw. It
    undoes every change of scale and shift that the draw made before it, so the loss does not feel that noise, the KL
    widens it to the prior, and in eval mode, where the statistics no longer follow the draw, the prediction is worse.
    With held statistics, training sees what prediction will see (`benchmarks/batch_norm.py` measures both).

    >>> model = fix_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train())
    >>> model[0].training, model[1].training
    (True, False)
    """
    for module in model.modules():
        if getattr(module, "running_mean", None) is not None:
            module.eval()
    return model
