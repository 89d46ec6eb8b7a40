"""The metrics of shifted sets: how well uncertainty tells inputs of another kind from the known ones."""

from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.histogram import Histogram, detection
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.prediction import Prediction

__all__ = ["Shift"]


class Shift(Accumulator):
    """Accumulates the uncertainty of each known input and of each input of the shifted sets."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self.known = Histogram(1)
        self.shifted: dict[str, Histogram] = {}

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch of known inputs."""
        self.known.count(self.likelihood.input_uncertainty(prediction.total, targets))

    def add_shifted(self, name: str, prediction: Prediction, targets: object) -> None:
        """Take in a batch of the shifted set called ``name``."""
        uncertainty = self.likelihood.input_uncertainty(prediction.total, targets)
        self.shifted.setdefault(name, Histogram(1)).count(uncertainty)

    def report(self, findings: Findings) -> None:
        """Write the metrics of each shifted set into ``findings``."""
        for name, histogram in self.shifted.items():
            if not len(histogram):
                raise InputError(f"the shifted set {name!r} has no examples to measure: every target is ignored")
            detection(findings, f"ood/{name}", self.known.table[:, 0], histogram.table[:, 0], missing=("", ""))


AUROC = Metric(
    "ood/auroc",
    "high",
    "AUROC",
    "How often an input of the shifted set is less sure than a known one: 1 is always, 0.5 is chance.",
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
