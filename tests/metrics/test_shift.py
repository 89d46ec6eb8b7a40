"""The accumulator of shifted sets against the exact functions."""

import pytest
import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.likelihood import Categorical
from leanbayes.metrics import Findings, aupr, auroc, fpr95
from leanbayes.metrics.shift import Shift
from leanbayes.prediction import Prediction


def predicted(total: Tensor, epistemic: Tensor | None = None) -> Prediction:
    part = torch.full_like(total, 1e-9) if epistemic is None else epistemic
    return Prediction(torch.full((len(total), 2), 0.5), total, total - part, part, total, total)


def test_each_set_is_told_from_the_known_inputs() -> None:
    source = torch.Generator().manual_seed(0)
    known, near, far = (torch.rand(300, generator=source, dtype=torch.float64) + shift for shift in (0, 0.2, 0.9))
    accumulator, findings = Shift(Categorical()), Findings()
    for part in known.split(70):
        accumulator.add(predicted(part), torch.zeros(len(part), dtype=torch.long))
    for name, scores in (("near", near), ("far", far)):
        for part in scores.split(50):
            accumulator.add_shifted(name, predicted(part), None)
    accumulator.report(findings)
    assert len(findings.metrics) == 6
    assert sum("no epistemic uncertainty" in note for note in findings.notes) == 2
    for name, scores in (("near", near), ("far", far)):
        for metric, exact in (("auroc", auroc), ("aupr", aupr), ("fpr95", fpr95)):
            key = f"ood/{name}/{metric}"
            assert abs(findings.metrics[key] - exact(known, scores).item()) <= findings.bounds[key] + 1e-12


def test_without_shifted_sets_there_is_nothing_to_report() -> None:
    accumulator, findings = Shift(Categorical()), Findings()
    accumulator.add(predicted(torch.ones(2)), torch.tensor([0, 1]))
    accumulator.report(findings)
    assert findings.metrics == {}
    accumulator.add_shifted("void", predicted(torch.ones(2)), torch.tensor([-100, -100]))
    with pytest.raises(InputError, match="'void' has no examples"):
        accumulator.report(findings)


def test_the_epistemic_part_is_judged_by_itself() -> None:
    source = torch.Generator().manual_seed(1)
    known, strange = (torch.rand(200, generator=source, dtype=torch.float64) for _ in range(2))
    known_part, strange_part = known * 0.2, strange * 0.2 + 0.1
    accumulator, findings = Shift(Categorical()), Findings()
    accumulator.add(predicted(known, known_part), torch.zeros(len(known), dtype=torch.long))
    accumulator.add_shifted("far", predicted(strange, strange_part), None)
    accumulator.report(findings)
    for key, negatives, positives in (
        ("ood/far/auroc", known, strange),
        ("ood/far/auroc_epistemic", known_part, strange_part),
    ):
        exact = auroc(negatives, positives).item()
        assert abs(findings.metrics[key] - exact) <= findings.bounds[key] + 1e-12
    assert findings.metrics["ood/far/auroc_epistemic"] > 0.8 > findings.metrics["ood/far/auroc"]
