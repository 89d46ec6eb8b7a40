"""Metrics for images that several raters have segmented: do drawn segmentations vary as the raters do, and where?

Masks hold class indices, and class 0 is the background. The first axis is that of the draws or raters: (draws, N, ...)
and (raters, N, ...). Every score is one number for each image, so the scores of a stream of batches can be appended.
"""

import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch

__all__ = ["generalised_energy_distance", "rater_agreement", "rater_entropy"]


def generalised_energy_distance(samples: Tensor, raters: Tensor, classes: int = 2) -> Tensor:
    """Return GED² = 2 E d(S, Y) − E d(S, S') − E d(Y, Y') with d = 1 − IoU, for each image (Kohl et al. 2018, eq. 4).

    The expectations are over all pairs of draws S and raters Y, and include the pairs of a mask with itself. So the
    distance is never negative, and zero if draws and raters are alike. With several foreground classes, d is the mean
    over them. Two empty masks have d = 0, and an empty mask and another one have d = 1.

    Args:
        samples: drawn masks, (draws, N, ...).
        raters: the raters' masks, (raters, N, ...).
        classes: how many classes there are, with the background.

    >>> generalised_energy_distance(torch.tensor([[[0, 1]]]), torch.tensor([[[1, 1]]]))
    tensor([1.])
    """
    _check_masks(samples, classes)
    _check_masks(raters, classes)
    if samples.shape[1:] != raters.shape[1:]:
        raise ShapeMismatch(
            f"draws {tuple(samples.shape)} and raters {tuple(raters.shape)} must have one shape after axis 0"
        )
    s, y = (masks.flatten(2).movedim(0, 1) for masks in (samples, raters))  # (N, masks, pixels)
    total = torch.zeros(len(s), device=s.device)
    for c in range(1, classes):
        drawn, rated = (s == c).float(), (y == c).float()
        total += 2 * _distance(drawn, rated) - _distance(drawn, drawn) - _distance(rated, rated)
    return total / (classes - 1)


def rater_entropy(raters: Tensor, classes: int = 2) -> Tensor:
    """Return the entropy in nats of the raters' votes at each pixel, (N, ...).

    >>> rater_entropy(torch.tensor([[[0, 1]], [[1, 1]]]))
    tensor([[0.6931, 0.0000]])
    """
    _check_masks(raters, classes)
    votes = torch.stack([(raters == c).float().mean(0) for c in range(classes)])
    entropy: Tensor = torch.special.entr(votes).sum(0)
    return entropy


def rater_agreement(entropy: Tensor, raters: Tensor, classes: int = 2) -> Tensor:
    """Return how well the predictive entropy of each image agrees with the entropy of the raters' votes.

    It is Pearson's correlation over the pixels, that is, the zero-normalised cross-correlation of the two maps, by
    which Baumgartner et al. 2019 compare such maps. It is 1 if the model doubts just where the raters differ. It is NaN
    for images in which either map is constant, because all raters agree or the model is equally sure of every pixel.

    Args:
        entropy: the predictive entropy, (N, ...), which is `Prediction.total`.
        raters: the raters' masks, (raters, N, ...).
        classes: how many classes there are, with the background.

    >>> rater_agreement(torch.tensor([[0.4, 0.1]]), torch.tensor([[[0, 1]], [[1, 1]]]))
    tensor([1.])
    """
    truth = rater_entropy(raters, classes)
    if entropy.shape != truth.shape or entropy.dim() < 2:
        raise ShapeMismatch(
            "need an entropy (N, ...) and raters (raters, N, ...) of one shape after the first axis, got "
            f"{tuple(entropy.shape)} and {tuple(raters.shape)}"
        )
    if not torch.isfinite(entropy).all():
        raise NonFinite("the entropy has NaN or infinite values; check the model that made it")
    a, b = entropy.double().flatten(1), truth.double().flatten(1)
    varies = (a.amax(1) > a.amin(1)) & (b.amax(1) > b.amin(1))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    correlation = (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()
    return torch.where(varies, correlation.clamp(-1, 1), torch.nan).to(
        torch.promote_types(entropy.dtype, torch.float32)
    )


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean of 1 − IoU over all pairs of masks (N, masks, pixels)."""
    both = a @ b.mT
    union = a.sum(2)[:, :, None] + b.sum(2)[:, None, :] - both
    return torch.where(union > 0, 1 - both / union.clamp_min(1), 0.0).mean((1, 2))


def _check_masks(masks: Tensor, classes: int) -> None:
    if classes < 2:
        raise InputError(f"classes must be at least 2, with the background, got {classes}")
    if masks.is_floating_point():
        raise InputError(f"masks must hold class indices as integers, got {masks.dtype}")
    if masks.dim() < 3 or not masks.numel():
        raise ShapeMismatch(f"masks must be (draws or raters, N, ...) and not empty, got {tuple(masks.shape)}")
    if not 0 <= int(masks.min()) <= int(masks.max()) < classes:
        raise InputError(f"masks must hold classes 0 to {classes - 1}, got {int(masks.min())} to {int(masks.max())}")
