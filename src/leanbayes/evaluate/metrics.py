"""Metrics of class probabilities, as pure functions of probabilities (N, C) and class indices (N)."""

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch

__all__ = ["accuracy", "auroc", "brier", "calibration_error", "nll"]


def accuracy(probabilities: Tensor, targets: Tensor) -> Tensor:
    """The share of inputs whose most probable class is the right one.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.5000)
    """
    _check(probabilities, targets)
    return (probabilities.argmax(1) == targets).to(probabilities.dtype).mean()


def nll(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Mean of −log p(y): nats.

    >>> nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor(0.6931)
    """
    _check(probabilities, targets)
    chosen = probabilities.gather(1, targets[:, None]).squeeze(1)
    return -chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log().mean()


def brier(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Mean over inputs of Σ_c (δ_{c=y} − p_c)², from 0 to 2 (000 and 001; theirs is divided by C besides).

    >>> brier(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(1.)
    """
    _check(probabilities, targets)
    hits = torch.nn.functional.one_hot(targets, probabilities.shape[1]).to(probabilities.dtype)
    return (hits - probabilities).square().sum(1).mean()


def calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> Tensor:
    """Expected calibration error with equal-width bins (Guo et al. 2017): Σ_b n_b/N · |accuracy_b − confidence_b|.

    >>> calibration_error(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1]))
    tensor(0.3000)
    """
    _check(probabilities, targets)
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    confidence, predicted = probabilities.max(1)
    correct = (predicted == targets).to(confidence.dtype)
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)  # (lower, upper], as in the paper
    gap = torch.zeros(bins, dtype=confidence.dtype, device=confidence.device)
    return gap.index_add(0, place, correct - confidence).abs().sum() / len(targets)


def auroc(negatives: Tensor, positives: Tensor) -> Tensor:
    """The probability that a positive scores above a negative, ties counting half (Mann-Whitney).

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    tensor(0.8750)
    """
    if not (negatives.dim() == positives.dim() == 1 and len(negatives) and len(positives)):
        raise ShapeMismatch(f"auroc needs two vectors, got {tuple(negatives.shape)} and {tuple(positives.shape)}")
    ordered = negatives.sort().values
    below = torch.searchsorted(ordered, positives).to(negatives.dtype)
    upto = torch.searchsorted(ordered, positives, right=True).to(negatives.dtype)
    return (below + upto).mean() / (2 * len(negatives))


def _check(probabilities: Tensor, targets: Tensor) -> None:
    if probabilities.dim() != 2 or targets.shape != probabilities.shape[:1]:
        raise ShapeMismatch(
            f"need probabilities (N, C) and targets (N), got {tuple(probabilities.shape)} and {tuple(targets.shape)}"
        )
    if not len(targets):
        raise InputError("there are no examples to measure")
