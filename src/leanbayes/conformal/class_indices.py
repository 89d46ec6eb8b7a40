"""The check of class indices that every calibration by classes makes before it counts errors."""

from collections.abc import Sequence

from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.likelihood import Likelihood

__all__ = ["class_indices"]


def class_indices(
    y: Tensor, likelihood: Likelihood, mean: Tensor, shape: Sequence[int], needs: str
) -> tuple[Tensor, Tensor]:
    """Return the class indices of a batch as integers, and which of them count.

    Args:
        y: the targets of the batch.
        likelihood: says which targets do not count, such as an ``ignore_index``.
        mean: the mean of the prediction, with the classes along its second axis.
        shape: the shape that the targets must have.
        needs: what is needed, for the message about another shape or type.

    Raises:
        ShapeMismatch: the targets have another shape, or they are not integers.
        InputError: a target that counts is not the index of a class.
    """
    labels = y.to(mean.device)
    if labels.shape != tuple(shape) or labels.is_floating_point() or labels.is_complex():
        raise ShapeMismatch(f"{needs}, got {labels.dtype} of shape {tuple(labels.shape)}")
    labels = labels.long()
    counted, classes = likelihood.counted(labels), mean.shape[1]
    outside = counted & ((labels < 0) | (labels >= classes))
    if outside.any():
        raise InputError(
            f"the predictor gives {classes} classes, so targets must lie between 0 and {classes - 1}, and one is "
            f"{int(labels[outside][0])}; name a value that does not count: Categorical(ignore_index=...)"
        )
    return labels, counted
