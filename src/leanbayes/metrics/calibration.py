"""Metrics of whether predictions are as sure as they should be: calibration error, confidence sets and entropies.

Shapes are those of `leanbayes.metrics.quality`: classes, pixels or labels. The confidence of a cell is the mean
probability of the class that is predicted there; a label is predicted as no or yes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.metrics.quality import IGNORE, Cells, cells_of
from leanbayes.metrics.ranking import sums_at, tied

__all__ = [
    "Reliability",
    "calibration_error",
    "confidence_set",
    "confidence_sums",
    "entropy",
    "error_of_bins",
    "mass_bins",
    "mutual_information",
    "reliability",
    "reliability_of_bins",
    "width_bins",
]


@dataclass(frozen=True)
class Reliability:
    """The points of a reliability diagram, one for each bin.

    Attributes:
        confidence: the mean confidence; NaN for empty bins.
        accuracy: the share of predictions that are right; NaN for empty bins.
        count: how many predictions there are.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def calibration_error(
    probabilities: Tensor,
    targets: Tensor,
    bins: int = 15,
    equal: Literal["width", "mass"] = "width",
    *,
    ignore_index: int = IGNORE,
) -> Tensor:
    """Return the expected calibration error Σ_b n_b/n · |accuracy_b − confidence_b| (Guo et al. 2017).

    Args:
        probabilities: of classes (N, C, ...), or of labels.
        targets: class indices (N, ...), or labels of the same shape as the probabilities.
        bins: how many bins of confidence there are.
        equal: ``"width"`` makes bins (lower, upper] of equal width in confidence. ``"mass"`` makes bins with the same
            number of cells in each; cells of equal confidence are divided between two bins in proportion.
        ignore_index: targets with this value do not count.

    >>> calibration_error(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1]))
    tensor(0.3000)
    """
    table = _bins(cells_of(probabilities, targets, ignore_index, required=True), bins, equal)
    return error_of_bins(table).to(torch.promote_types(probabilities.dtype, torch.float32))


def reliability(
    probabilities: Tensor,
    targets: Tensor,
    bins: int = 15,
    equal: Literal["width", "mass"] = "width",
    *,
    ignore_index: int = IGNORE,
) -> Reliability:
    """Return the bins of `calibration_error`, for a reliability diagram.

    >>> reliability(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]), bins=2).accuracy
    tensor([   nan, 0.5000], dtype=torch.float64)
    """
    return reliability_of_bins(_bins(cells_of(probabilities, targets, ignore_index, required=True), bins, equal))


def confidence_set(
    probabilities: Tensor, targets: Tensor, threshold: float, *, ignore_index: int = IGNORE
) -> tuple[Tensor, Tensor]:
    """Return the accuracy and the size of the set of cells whose confidence is at least ``threshold``.

    The size is the share of all cells, and the accuracy of an empty set is NaN. Nazarovs et al. 2021 (section 5.2,
    figure 7) use such sets without a definition of confidence; here it is the highest mean probability.

    >>> confidence_set(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), 0.8)
    (tensor(1.), tensor(0.5000))
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold must lie from 0 to 1, got {threshold}")
    cells = cells_of(probabilities, targets, ignore_index, required=True)
    inside = cells.confidence >= threshold
    size = inside.sum(dtype=torch.float64)
    accuracy = cells.correct[inside].sum(dtype=torch.float64) / size
    return accuracy.to(cells.probabilities.dtype), (size / len(inside)).to(cells.probabilities.dtype)


def entropy(probabilities: Tensor, *, labels: bool = False) -> Tensor:
    """Return the entropy −Σ_c p_c log p_c over axis 1 in nats, for each cell.

    Args:
        probabilities: (N, C, ...); give the mean over draws to get the total uncertainty.
        labels: whether the probabilities are those of yes. Then each is a cell with −p log p − (1−p) log(1−p).

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    terms: Tensor = torch.special.entr(probabilities)
    if labels:
        yes_or_no: Tensor = terms + torch.special.entr(1 - probabilities)
        return yes_or_no
    if terms.dim() < 2:
        raise ShapeMismatch(
            f"need probabilities (N, C, ...), got {tuple(probabilities.shape)}; for labels give labels=True"
        )
    return terms.sum(1)


def mutual_information(samples: Tensor, *, labels: bool = False) -> Tensor:
    """Return the mutual information of prediction and weights in nats, for each cell.

    It is the entropy of the mean over draws minus the mean entropy of the draws.

    Args:
        samples: the probabilities of each draw, (draws, N, C, ...).
        labels: whether the probabilities are those of yes.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([0.6931])
    """
    entropies = torch.stack([entropy(draw, labels=labels) for draw in samples])
    return (entropy(samples.mean(0), labels=labels) - entropies.mean(0)).clamp_min(0)


def confidence_sums(cells: Cells) -> Tensor:
    """Return what is summed in each bin, (n, 3): one, the confidence, and whether the prediction is right."""
    return torch.stack([torch.ones_like(cells.confidence), cells.confidence, cells.correct], dim=1).double()


def width_bins(cells: Cells, bins: int) -> Tensor:
    """Return sums (bins, 3) over the cells whose confidence is in (lower, upper]."""
    bin_of = (cells.confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    table = torch.zeros(bins, 3, dtype=torch.float64, device=bin_of.device)
    return table.index_add_(0, bin_of, confidence_sums(cells))


def mass_bins(table: Tensor, bins: int, width: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return sums (bins, 3) over parts of equal count of a table (rows, 3) in order of confidence, and an error bound.

    A row at the border of two bins is cut in proportion. If its n cells, k of them right, are not tied but differ in
    confidence by up to ``width``, then each of the two bins is wrong by at most k(n − k)/n in the number of right cells
    and by n·width/4 in the summed confidence. The bound is what this can change in the calibration error.
    """
    total = table[:, 0].sum()
    edges = torch.arange(bins + 1, dtype=torch.float64, device=table.device) * total / bins
    sums, cut = sums_at(table, edges)
    count, _, correct = cut[1:-1].unbind(1)
    off = correct * (count - correct) / count.clamp_min(1) + count * width / 4
    return sums.diff(dim=0), 2 * off.sum() / total


def error_of_bins(table: Tensor) -> Tensor:
    """Return Σ_b n_b/n · |accuracy_b − confidence_b| = Σ_b |Σ correct − Σ confidence| / n."""
    return (table[:, 2] - table[:, 1]).abs().sum() / table[:, 0].sum()


def reliability_of_bins(table: Tensor) -> Reliability:
    """Return the means of each bin."""
    count, confidence, correct = table.unbind(1)
    return Reliability(confidence / count, correct / count, count)


def _bins(cells: Cells, bins: int, equal: str) -> Tensor:
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    if equal == "width":
        return width_bins(cells, bins)
    if equal == "mass":
        return mass_bins(tied(-cells.doubt, confidence_sums(cells)), bins)[0]
    raise UnknownName.of("equal", equal, ["width", "mass"])
