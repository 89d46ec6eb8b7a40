"""The accumulator of segmentations against the exact functions."""

import pytest
import torch

from leanbayes import metrics as exact
from leanbayes.likelihood import Categorical
from leanbayes.metrics import Findings
from leanbayes.metrics.masks import Masks
from leanbayes.prediction import Prediction
from tests.metrics.cases import VOID, pixels


def test_metrics_of_single_images_are_those_of_all() -> None:
    logits, y = pixels()
    p, zero = logits.softmax(1), torch.zeros(1)
    accumulator, findings = Masks(Categorical(ignore_index=VOID)), Findings()
    for rows, targets in zip(p.split(1), y.split(1), strict=True):
        accumulator.add(Prediction(rows, zero, zero, zero, zero, zero), targets)
    accumulator.report(findings)
    assert findings.metrics["dice"] == pytest.approx(exact.dice(p, y, ignore_index=VOID).item(), rel=1e-6)
    assert findings.metrics["miou"] == pytest.approx(exact.mean_iou(p, y, ignore_index=VOID).item(), rel=1e-6)
    for label, value in enumerate(exact.iou(p, y, ignore_index=VOID).tolist()):
        assert findings.metrics[f"iou/{label}"] == pytest.approx(value, rel=1e-6)


def test_a_class_that_never_occurs_is_left_out_with_a_note() -> None:
    p, zero = torch.tensor([[[0.9, 0.2], [0.1, 0.8], [0.0, 0.0]]]), torch.zeros(1)
    accumulator, findings = Masks(Categorical()), Findings()
    accumulator.add(Prediction(p, zero, zero, zero, zero, zero), torch.tensor([[0, 1]]))
    accumulator.report(findings)
    assert findings.metrics == {"dice": 1.0, "iou/0": 1.0, "iou/1": 1.0, "miou": 1.0}
    assert findings.notes[0].startswith("iou/2: left out")
