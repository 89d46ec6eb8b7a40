"""Metrics of whether a score ranks the right inputs first: AUROC, AUPR, FPR95, the AUC of classes, risk and coverage.

Each metric is a formula over a table of tied scores. The table has one row for each distinct score, in ascending order,
and its columns hold sums over the inputs with that score. The exact functions make that table from the scores. The
streaming accumulators use the cells of a histogram as rows, which treats all scores in a cell as tied. Therefore each
formula returns its value together with a bound of the error that this can make.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.metrics.quality import IGNORE, cells_of

__all__ = [
    "RiskCoverage",
    "area_under_precision_recall",
    "area_under_risk",
    "area_under_roc",
    "auc",
    "aupr",
    "aurc",
    "auroc",
    "class_auc",
    "false_positives",
    "fpr95",
    "risk_at_coverage",
    "risk_coverage",
    "sums_at",
    "tied",
]

Bounded = tuple[Tensor, Tensor]
"""A value, and a bound of its error if the scores in a row of the table are not tied."""


@dataclass(frozen=True)
class RiskCoverage:
    """The mean loss (risk) of the most certain inputs, by the share of all inputs that they are (coverage)."""

    coverage: Tensor
    risk: Tensor


def auroc(negatives: Tensor, positives: Tensor) -> Tensor:
    """Return the probability that a positive scores above a negative; ties count half (Mann-Whitney).

    To detect shifted inputs, known inputs are the negatives, shifted ones the positives, and uncertainty is the score.
    To detect errors, right predictions are the negatives and wrong ones the positives.

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    tensor(0.8750)
    """
    return area_under_roc(_two_columns(negatives, positives))[0].to(_at_least_float(negatives))


def aupr(negatives: Tensor, positives: Tensor) -> Tensor:
    """Return the average precision: the sum over thresholds of (increase of recall) · precision.

    >>> aupr(torch.tensor([0.1, 0.5]), torch.tensor([0.3, 0.9]))
    tensor(0.8333)
    """
    return area_under_precision_recall(_two_columns(negatives, positives))[0].to(_at_least_float(negatives))


def fpr95(negatives: Tensor, positives: Tensor) -> Tensor:
    """Return the share of negatives that reach the highest threshold at which 95 % of the positives are found.

    If shifted inputs are the positives, as for `auroc`, it is the share of known inputs that raise a false alarm.

    >>> fpr95(torch.tensor([0.1, 0.5]), torch.tensor([0.3, 0.9]))
    tensor(0.5000)
    """
    return false_positives(_two_columns(negatives, positives))[0].to(_at_least_float(negatives))


def class_auc(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return the AUROC of each class against all other classes, or for each label that of yes against no.

    It is NaN for classes and labels whose targets have no positive, or no negative.

    >>> class_auc(torch.tensor([[0.8, 0.1], [0.3, 0.2]]), torch.tensor([[1, 0], [0, 0]]))
    tensor([1., nan])
    """
    cells = cells_of(probabilities, targets, ignore_index, required=True)
    scores, truth = one_against_rest(probabilities, targets, cells.counted, labels=cells.labels)
    values = torch.full((len(scores),), torch.nan, dtype=_at_least_float(scores), device=scores.device)
    for c, (score, yes) in enumerate(zip(scores, truth, strict=True)):
        if yes.any() and not yes.all():
            values[c] = auroc(score[~yes], score[yes])
    return values


def auc(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return the mean of `class_auc` over classes or labels, as Abboud et al. 2024 do.

    Classes and labels whose targets have no positive, or no negative, have no AUC and are left out.

    >>> auc(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2]]), torch.tensor([0, 1, 1]))
    tensor(1.)
    """
    values = class_auc(probabilities, targets, ignore_index=ignore_index)
    if values.isnan().all():
        raise InputError("no class has both positives and negatives among the targets, so there is no AUC")
    return values.nanmean()


def risk_coverage(uncertainty: Tensor, losses: Tensor, points: int = 100) -> RiskCoverage:
    """Return the mean loss of the share c of inputs that are most certain, for c = 1/points, ..., 1.

    This is the risk-coverage curve of Geifman et al. 2019. Tied inputs count with their expected loss, so that their
    order does not matter.

    >>> risk_coverage(torch.tensor([0.1, 0.2]), torch.tensor([0.0, 1.0]), points=2).risk
    tensor([0.0000, 0.5000])
    """
    _check_pair(uncertainty, losses)
    if points < 1:
        raise InputError(f"points must be at least 1, got {points}")
    curve = risk_at_coverage(tied(uncertainty, _counted(losses)), points)
    return RiskCoverage(curve.coverage.to(losses.dtype), curve.risk.to(losses.dtype))


def aurc(uncertainty: Tensor, losses: Tensor) -> Tensor:
    """Return the area under the risk-coverage curve (Geifman et al. 2019).

    It is (1/n) Σ_k of the mean loss of the k most certain inputs. Tied inputs count with the expectation over their
    order.

    >>> aurc(torch.tensor([0.1, 0.2]), torch.tensor([0.0, 1.0]))
    tensor(0.2500)
    """
    _check_pair(uncertainty, losses)
    return area_under_risk(tied(uncertainty, _counted(losses)))[0].to(losses.dtype)


def tied(scores: Tensor, columns: Tensor) -> Tensor:
    """Return the table of scores: a row for each distinct score, ascending, with sums of the ``columns`` (n, k)."""
    if torch.isnan(scores).any():
        raise NonFinite("some scores are NaN; check the model that made them")
    values, rows = torch.unique(scores, return_inverse=True)
    table = torch.zeros(len(values), columns.shape[1], dtype=torch.float64, device=scores.device)
    return table.index_add_(0, rows, columns.double())


def area_under_roc(table: Tensor) -> Bounded:
    """Return the AUROC of a table (..., rows, 2) of negatives and positives, wrong by at most half the tied pairs."""
    negatives, positives = table.double().unbind(-1)
    pairs = negatives.sum(-1) * positives.sum(-1)
    below = negatives.cumsum(-1) - negatives / 2
    return (positives * below).sum(-1) / pairs, (positives * negatives).sum(-1) / (2 * pairs)


def area_under_precision_recall(table: Tensor) -> Bounded:
    """Return the average precision of a table (rows, 2). The bounds put the positives of a row first, or last."""
    negatives, positives = table.double().flip(0).unbind(-1)
    false, true = negatives.cumsum(0), positives.cumsum(0)
    recall = positives / positives.sum()
    occupied = positives > 0

    def area(hits: Tensor, misses: Tensor) -> Tensor:
        return (recall[occupied] * (hits / (hits + misses))[occupied]).sum()

    value = area(true, false)
    best, worst = area(true, false - negatives), area(true - positives + 1, false)
    return value, torch.maximum(best - value, value - worst)


def false_positives(table: Tensor, recall: float = 0.95) -> Bounded:
    """Return the false positive rate of a table (rows, 2) at a recall. The threshold may be anywhere in its row."""
    negatives, positives = table.double().flip(0).unbind(-1)
    row = int((positives.cumsum(0) / positives.sum() >= recall).nonzero()[0])
    total = negatives.sum()
    return negatives[: row + 1].sum() / total, negatives[row] / total


def area_under_risk(table: Tensor) -> Bounded:
    """Return the AURC of a table (rows, 2) of counts and summed losses ≥ 0.

    A row of n inputs with the loss l, after k inputs with the loss L, adds Σ_{i=1}^n (L + il/n)/(k+i), which is
    l + (L − kl/n)(H_{k+n} − H_k). In another order the loss so far differs by at most l(1 − 1/n).
    """
    table = table[table[:, 0] > 0].double()
    counts, losses = table.unbind(1)
    upto, before = counts.cumsum(0), losses.cumsum(0) - losses
    start = upto - counts
    harmonic = torch.digamma(upto + 1) - torch.digamma(start + 1)
    terms = losses + (before - start * losses / counts) * harmonic
    off = losses * (1 - 1 / counts) * harmonic
    return terms.sum() / upto[-1], off.sum() / upto[-1]


def risk_at_coverage(table: Tensor, points: int = 100) -> RiskCoverage:
    """Return the risk-coverage curve of a table (rows, 2) of counts and summed losses."""
    total = table[:, 0].double().sum()
    coverage = torch.arange(1, points + 1, dtype=torch.float64, device=table.device) / points
    sums, _ = sums_at(table, coverage * total)
    return RiskCoverage(coverage, sums[:, 1] / (coverage * total))


def sums_at(table: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums over the first ``counts`` inputs of a table whose first column counts them, and the cut rows.

    A row that is cut contributes its share, which is the expectation over the order within it. Where no row is cut,
    zeros are returned instead of the row.
    """
    table = table[table[:, 0] > 0].double()
    sums = torch.cat([torch.zeros_like(table[:1]), table.cumsum(0)])
    upper = torch.searchsorted(sums[:, 0].contiguous(), counts).clamp(1, len(table))
    row = table[upper - 1]
    share = ((counts - sums[upper - 1, 0]) / row[:, 0]).clamp(0, 1)[:, None]
    return sums[upper - 1] + share * row, torch.where((share > 0) & (share < 1), row, 0.0)


def one_against_rest(probabilities: Tensor, targets: Tensor, counted: Tensor, *, labels: bool) -> tuple[Tensor, Tensor]:
    """Return scores and truth (C, n) of the cells that count, for each class or for each label of axis 1."""
    if labels:
        shape = (len(targets), targets.shape[1] if targets.dim() > 1 else 1, math.prod(targets.shape[2:]))
        rows = [part.reshape(shape).movedim(1, 0).flatten(1) for part in (probabilities, targets)]
        return rows[0], rows[1].bool()
    scores = probabilities.movedim(1, -1)[counted].T
    classes = torch.arange(len(scores), device=targets.device)
    return scores, targets[counted] == classes[:, None]


def _two_columns(negatives: Tensor, positives: Tensor) -> Tensor:
    if not (negatives.dim() == positives.dim() == 1 and len(negatives) and len(positives)):
        raise ShapeMismatch(
            f"need two vectors with at least one score each, got {tuple(negatives.shape)} and {tuple(positives.shape)}"
        )
    positive = torch.cat([torch.zeros_like(negatives), torch.ones_like(positives)])
    return tied(torch.cat([negatives, positives]), torch.stack([1 - positive, positive], dim=1))


def _at_least_float(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _counted(losses: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(losses), losses], dim=1)


def _check_pair(uncertainty: Tensor, losses: Tensor) -> None:
    if not (uncertainty.dim() == 1 and len(uncertainty) and uncertainty.shape == losses.shape):
        raise ShapeMismatch(
            f"need two vectors of one length, at least 1, got {tuple(uncertainty.shape)} and {tuple(losses.shape)}"
        )
    if not (losses.is_floating_point() and torch.isfinite(losses).all()):
        raise InputError("losses must be finite floating-point numbers; for right and wrong give 0.0 and 1.0")
