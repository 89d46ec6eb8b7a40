"""The streamed AUC of classes against the exact one."""

import pytest
import torch

from leanbayes.likelihood import Bernoulli
from leanbayes.metrics import Findings, auc
from leanbayes.metrics.separation import ClassAuc
from leanbayes.prediction import Prediction


@pytest.mark.parametrize("logit", [-30.0, -5.0, 0.0, 5.0, 14.0])
def test_auc_of_classes_is_within_its_bound_near_zero_and_near_one(logit: float) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (500, 2), generator=generator)
    p = (logit + 0.5 * torch.randn(500, 2, generator=generator, dtype=torch.float64) + 0.3 * y).sigmoid()
    part, findings, zero = ClassAuc(Bernoulli()), Findings(), torch.zeros(1)
    for rows, targets in zip(p.split(33), y.split(33), strict=True):
        part.add(Prediction(rows, zero, zero, zero, zero, zero), targets)
    part.report(findings)
    off, bound = abs(findings.metrics["auc"] - auc(p, y).item()), findings.bounds["auc"]
    assert off <= bound + 1e-12
    assert bound < 0.01 or logit == -30  # below 2⁻³² all probabilities share one cell
