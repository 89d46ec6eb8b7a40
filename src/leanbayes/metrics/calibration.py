"""Whether predictions are as sure as they should be: calibration error, reliability, confidence sets, entropies.

Shapes are those of `leanbayes.metrics.quality`: classes, pixels or labels. The confidence of a cell is the mean
probability of the class predicted there; a label is predicted as no or yes.
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
    """Of each bin: the mean confidence, the share that is right, and how many; NaN for the first two in empty bins."""

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
    """Expected calibration error Σ_b n_b/n · |accuracy_b − confidence_b| (Guo et al. 2017).

    Args:
        probabilities: of classes (N, C, ...), or of labels.
        targets: class indices (N, ...), or labels of the same shape.
        bins: how many.
        equal: bins of equal ``"width"`` in confidence, (lower, upper]; or of equal ``"mass"``, the same number of
            cells in each, where those of one confidence are shared out between two bins in proportion.
        ignore_index: targets that do not count.

    >>> calibration_error(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1]))
    tensor(0.3000)
    """
    table = _bins(cells_of(probabilities, targets, ignore_index, some=True), bins, equal)
    return error_of_bins(table).to(torch.promote_types(probabilities.dtype, torch.float32))


def reliability(
    probabilities: Tensor,
    targets: Tensor,
    bins: int = 15,
    equal: Literal["width", "mass"] = "width",
    *,
    ignore_index: int = IGNORE,
) -> Reliability:
    """The bins of `calibration_error`, for the reliability diagram.

    >>> reliability(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]), bins=2).accuracy
    tensor([   nan, 0.5000], dtype=torch.float64)
    """
    return reliability_of_bins(_bins(cells_of(probabilities, targets, ignore_index, some=True), bins, equal))


def confidence_set(
    probabilities: Tensor, targets: Tensor, threshold: float, *, ignore_index: int = IGNORE
) -> tuple[Tensor, Tensor]:
    """Accuracy and size of the set of cells whose confidence is at least ``threshold`` (003, section 5.2, figure 7).

    The size is the share of all cells; the accuracy of an empty set is NaN. 003 does not define confidence: here it
    is the highest mean probability.

    >>> confidence_set(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), 0.8)
    (tensor(1.), tensor(0.5000))
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold must lie from 0 to 1, got {threshold}")
    cells = cells_of(probabilities, targets, ignore_index, some=True)
    inside = cells.confidence >= threshold
    size = inside.sum(dtype=torch.float64)
    accuracy = cells.correct[inside].sum(dtype=torch.float64) / size
    return accuracy.to(cells.probabilities.dtype), (size / len(inside)).to(cells.probabilities.dtype)


def entropy(probabilities: Tensor, *, labels: bool = False) -> Tensor:
    """−Σ_c p_c log p_c in nats over axis 1, for each cell; of the mean over draws it is the entropy of expectation.

    Args:
        probabilities: (N, C, ...).
        labels: probabilities are those of yes, each a cell of its own: −p log p − (1−p) log(1−p).

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    terms: Tensor = torch.special.entr(probabilities)
    if labels:
        yes_or_no: Tensor = terms + torch.special.entr(1 - probabilities)
        return yes_or_no
    if terms.dim() < 2:
        raise ShapeMismatch(f"need probabilities (N, C, ...), got {tuple(probabilities.shape)}; or labels=True")
    return terms.sum(1)


def mutual_information(samples: Tensor, *, labels: bool = False) -> Tensor:
    """Of prediction and weights: the entropy of the mean over draws less the mean entropy of a draw, for each cell.

    Args:
        samples: each draw's probabilities (draws, N, C, ...).
        labels: probabilities are those of yes.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([0.6931])
    """
    of_each = torch.stack([entropy(draw, labels=labels) for draw in samples])
    return (entropy(samples.mean(0), labels=labels) - of_each.mean(0)).clamp_min(0)


def confidence_sums(cells: Cells) -> Tensor:
    """What is summed for each bin, (n, 3): one, the confidence, and whether it is right."""
    return torch.stack([torch.ones_like(cells.confidence), cells.confidence, cells.correct], dim=1).double()


def width_bins(cells: Cells, bins: int) -> Tensor:
    """Sums (bins, 3) of the cells whose confidence is in (lower, upper]."""
    place = (cells.confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    table = torch.zeros(bins, 3, dtype=torch.float64, device=place.device)
    return table.index_add_(0, place, confidence_sums(cells))


def mass_bins(table: Tensor, bins: int, width: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sums (bins, 3) over parts of equal count of a table (rows, 3) in order of confidence; and a bound.

    If the n cells of a row, k of them right, are not tied but differ in confidence by up to ``width``, then to cut it
    in proportion is wrong by at most k(n − k)/n in the right ones and n·width/4 in the summed confidence, for the bins
    on both sides of the cut. So much may the calibration error differ.
    """
    total = table[:, 0].sum()
    edges = torch.arange(bins + 1, dtype=torch.float64, device=table.device) * total / bins
    sums, cut = sums_at(table, edges)
    count, _, correct = cut[1:-1].unbind(1)
    off = correct * (count - correct) / count.clamp_min(1) + count * width / 4
    return sums.diff(dim=0), 2 * off.sum() / total


def error_of_bins(table: Tensor) -> Tensor:
    """Σ_b n_b/n · |accuracy_b − confidence_b| = Σ_b |Σ correct − Σ confidence| / n."""
    return (table[:, 2] - table[:, 1]).abs().sum() / table[:, 0].sum()


def reliability_of_bins(table: Tensor) -> Reliability:
    """Means of each bin."""
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
