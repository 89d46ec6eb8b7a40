"""The metrics of shifted sets: how well uncertainty tells inputs of another kind from the known ones."""

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.histogram import Histogram, detection
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.metrics.ranking import area_under_roc
from leanbayes.prediction import Prediction

__all__ = ["Shift"]

_ROUNDING = 1e-5
"""A network without random weights has an epistemic uncertainty of rounding errors: less than this share of all."""


class Shift(Accumulator):
    """Accumulates the uncertainty of each known input and of each input of the shifted sets, and its epistemic part."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self.known, self.known_epistemic = Histogram(1), Histogram(1)
        self.shifted: dict[str, Histogram] = {}
        self.shifted_epistemic: dict[str, Histogram] = {}
        self.largest_share = torch.zeros(
            (), dtype=torch.float64
        )  # of the epistemic part in the uncertainty of an input

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch of known inputs."""
        self._count(prediction, targets, self.known, self.known_epistemic)

    def add_shifted(self, name: str, prediction: Prediction, targets: object) -> None:
        """Take in a batch of the shifted set called ``name``."""
        total, epistemic = (
            histograms.setdefault(name, Histogram(1)) for histograms in (self.shifted, self.shifted_epistemic)
        )
        self._count(prediction, targets, total, epistemic)

    def _count(self, prediction: Prediction, targets: object, whole: Histogram, part: Histogram) -> None:
        total = self.likelihood.input_uncertainty(prediction.total, targets)
        epistemic = self.likelihood.input_uncertainty(prediction.epistemic.clamp_min(0), targets)
        whole.count(total)
        part.count(epistemic)
        if len(total):
            largest = (epistemic / total.clamp_min(torch.finfo(total.dtype).tiny)).amax().double()
            self.largest_share = torch.maximum(self.largest_share.to(largest.device), largest)

    def report(self, findings: Findings) -> None:
        """Write the metrics of each shifted set into ``findings``."""
        for name, histogram in self.shifted.items():
            if not len(histogram):
                raise InputError(f"the shifted set {name!r} has no examples to measure: every target is ignored")
            known, strange = self.known_epistemic.table[:, 0], self.shifted_epistemic[name].table[:, 0]
            detection(findings, f"ood/{name}", self.known.table[:, 0], histogram.table[:, 0], missing=("", ""))
            key = f"ood/{name}/{EPISTEMIC_AUROC.name.partition('/')[2]}"
            if self.largest_share <= _ROUNDING:
                findings.notes.append(f"{key}: left out, because the predictions have no epistemic uncertainty")
            else:
                findings.put(key, *area_under_roc(torch.stack([known, strange.to(known.device)], dim=-1)))


AUROC = Metric(
    "ood/auroc",
    "high",
    "AUROC",
    "How often an input of the shifted set is less sure than a known one: 1 is always, 0.5 is chance.",
    Shift,
)
EPISTEMIC_AUROC = Metric(
    "ood/auroc_epistemic",
    "high",
    "AUROC, epistemic",
    "The same by the part of the uncertainty that comes from the weights, which is the part that unfamiliar inputs "
    "should raise. A network without random weights has none.",
    Shift,
)
AUPR = Metric(
    "ood/aupr",
    "high",
    "AUPR",
    "If the least sure inputs are checked first, the share of shifted inputs among those checked, averaged over how "
    "many shifted inputs have been caught.",
    Shift,
)
FPR95 = Metric(
    "ood/fpr95",
    "low",
    "FPR95",
    "The share of known inputs that raise a false alarm when 95 % of the shifted inputs are caught.",
    Shift,
)
