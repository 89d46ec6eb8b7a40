"""The accumulator of class probabilities against the exact functions."""

import pytest
import torch

from leanbayes import metrics as exact
from leanbayes.errors import InputError
from leanbayes.likelihood import Bernoulli, Categorical
from leanbayes.metrics import Findings
from leanbayes.metrics.confidence import Confidence
from leanbayes.prediction import Prediction
from tests.metrics.cases import classes, labels


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_metrics_of_two_batches_are_those_of_all_inputs(kind: str) -> None:
    logits, y = classes() if kind == "classes" else labels()
    p = logits.softmax(1) if kind == "classes" else logits.sigmoid()
    total = exact.entropy(p, labels=kind == "labels")
    accumulator, findings = Confidence(Categorical() if kind == "classes" else Bernoulli()), Findings()
    for rows in (slice(0, 100), slice(100, None)):
        zero = torch.zeros_like(total[rows])
        accumulator.add(Prediction(p[rows], total[rows], total[rows], zero, zero, zero), y[rows])
    accumulator.report(findings)
    for name in ("accuracy", "nll", "brier"):
        assert findings.metrics[name] == pytest.approx(getattr(exact, name)(p, y).item(), rel=1e-10)
    assert findings.metrics["ece"] == pytest.approx(exact.calibration_error(p, y).item(), rel=1e-10)
    assert findings.metrics["entropy"] == pytest.approx(total.mean().item(), rel=1e-10)
    assert findings.reliability is not None
    assert findings.reliability.count.sum() == y.numel()
    assert findings.risk_coverage is not None
    assert findings.risk_coverage.risk[-1].item() == pytest.approx(1 - findings.metrics["accuracy"])


def test_without_targets_that_count_nothing_is_reported() -> None:
    accumulator, zero = Confidence(Categorical(ignore_index=9)), torch.zeros(2)
    accumulator.add(Prediction(torch.full((2, 3), 1 / 3), zero, zero, zero, zero, zero), torch.tensor([9, 9]))
    with pytest.raises(InputError, match="every target is ignored"):
        accumulator.report(Findings())
