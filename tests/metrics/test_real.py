"""The accumulator of numbers against the exact functions."""

import pytest
import torch

from leanbayes import metrics as exact
from leanbayes.errors import ShapeMismatch
from leanbayes.likelihood import Gaussian
from leanbayes.metrics import Findings
from leanbayes.metrics.real import Real
from leanbayes.prediction import Prediction


def test_metrics_of_many_batches_are_those_of_all_inputs() -> None:
    source = torch.Generator().manual_seed(0)
    mean, y = (torch.randn(200, 2, generator=source, dtype=torch.float64) for _ in range(2))
    variance = 0.5 + torch.rand(200, 2, generator=source, dtype=torch.float64)
    accumulator, findings, zero = Real(Gaussian()), Findings(), torch.zeros(1)
    for m, v, targets in zip(mean.split(33), variance.split(33), y.split(33), strict=True):
        accumulator.add(Prediction(m, v, v, v, zero, zero), targets)
    accumulator.report(findings)
    expected = {
        "rmse": exact.rmse(mean, y),
        "nll": exact.gaussian_nll(mean, variance, y),
        "crps": exact.gaussian_crps(mean, variance, y),
        "coverage@0.9": exact.interval_coverage(mean, variance, y, 0.9),
    }
    for name, value in expected.items():
        assert findings.metrics[name] == pytest.approx(value.item(), rel=1e-10), name
    area = exact.aurc(variance.sqrt().flatten(), (mean - y).square().flatten()).item()
    assert abs(findings.metrics["aurc"] - area) <= findings.bounds["aurc"] + 1e-12


def test_shapes_must_fit() -> None:
    zero = torch.zeros(3)
    with pytest.raises(ShapeMismatch, match=r"\(3, 1\) and targets of \(3,\)"):
        Real(Gaussian()).add(Prediction(torch.zeros(3, 1), torch.ones(3, 1), zero, zero, zero, zero), zero)
