"""The mean loss over cases, or over patients, summed batch by batch in memory that does not grow with their number."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch

__all__ = ["MeanLosses"]


class MeanLosses:
    """Sums losses at each threshold.

    The loss of a patient is the mean over the patient's n cases. So a case counts 1/n in the sum over patients, and no
    case needs to be stored.

    Args:
        patients: the patient of each case, in the order in which the cases come; None if each case counts by itself.

    >>> losses = MeanLosses(["a", "b", "b"])
    >>> losses.add(torch.tensor([[1.0], [0.0], [0.5]], dtype=torch.float64))
    >>> losses.count, losses.means().tolist()
    (2, [0.625])
    """

    def __init__(self, patients: Sequence[Any] | Tensor | None = None) -> None:
        names = None if patients is None else [_plain(patient) for patient in patients]
        counts = Counter(names or ())
        self.weights = None if names is None else torch.tensor([1 / counts[n] for n in names], dtype=torch.float64)
        self.patients = len(counts)
        self.cases = 0
        self.sum: Tensor | None = None

    @property
    def count(self) -> int:
        """How many cases, or patients, there are."""
        return self.cases if self.weights is None else self.patients

    def add(self, losses: Tensor) -> None:
        """Take in the losses of a batch of cases, (N, thresholds)."""
        low, high = losses.aminmax()
        if not (low >= 0 and high <= 1):  # NaN is neither
            raise InputError("the losses of a risk must lie between 0 and 1, and one does not")
        first, self.cases = self.cases, self.cases + len(losses)
        if self.weights is not None:
            weights = self.weights[first : self.cases].to(losses.device)
            if len(weights) < len(losses):
                raise self._mismatch(f"{self.cases} cases or more")
            losses = losses * weights[:, None]
        self.sum = losses.sum(0) if self.sum is None else self.sum + losses.sum(0)

    def means(self) -> Tensor:
        """Return the mean loss at each threshold, (thresholds,)."""
        if self.sum is None:
            raise InputError("there are no losses to average")
        if self.weights is not None and len(self.weights) != self.cases:
            raise self._mismatch(f"{self.cases} cases")
        return self.sum / self.count

    def _mismatch(self, cases: str) -> ShapeMismatch:
        given = 0 if self.weights is None else len(self.weights)
        return ShapeMismatch(f"patients must name one patient for each of {cases}, got {given}")


def _plain(patient: Any) -> Any:
    """Return a name that can be compared: an entry of a tensor is an object that equals nothing but itself."""
    return patient.item() if isinstance(patient, Tensor) else patient
