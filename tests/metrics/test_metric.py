"""A metric is one record: it is found by its name, and one added from outside is measured like our own."""

from importlib.metadata import EntryPoint

import pytest
import torch
from torch import Tensor, nn

from leanbayes import _catalogue
from leanbayes.errors import InputError, UnknownName
from leanbayes.evaluation import evaluate
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian
from leanbayes.metrics import METRICS, Accumulator, Findings, Metric, accumulators_for, mean_of, metric_named
from leanbayes.prediction import Prediction
from tests.metrics.cases import classes


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(METRICS, "_members", dict(METRICS))


def _margin(prediction: Prediction, targets: Tensor) -> Tensor:
    top = prediction.mean.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


MARGIN = Metric(
    "margin",
    "high",
    "Margin",
    "The mean gap between the two highest probabilities.",
    mean_of("margin", _margin),
    ["classes"],
)


@pytest.mark.usefixtures("catalogue")
def test_a_metric_added_from_outside_is_evaluated_and_described() -> None:
    logits, y = classes()
    assert METRICS.register(MARGIN) is MARGIN
    result = evaluate(nn.Identity(), [(logits[:100], y[:100]), (logits[100:], y[100:])], likelihood=Categorical())
    top = logits.softmax(1).topk(2, dim=1).values
    assert result.metrics["margin"] == pytest.approx((top[:, 0] - top[:, 1]).mean().item(), rel=1e-12)
    assert metric_named("margin").title == "Margin"
    numbers = torch.randn(8, 2)
    assert "margin" not in evaluate(nn.Identity(), [(numbers, numbers + 1)], likelihood=Gaussian()).metrics


def test_a_metric_of_another_package_comes_in_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("margin", f"{__name__}:MARGIN", "leanbayes.metrics")
    monkeypatch.setattr(_catalogue, "entry_points", lambda group: [point] if group == "leanbayes.metrics" else [])
    monkeypatch.setattr(METRICS, "_members", {})
    monkeypatch.setattr(METRICS, "_sources", {})
    monkeypatch.setattr(METRICS, "_complete", False)
    logits, y = classes()
    assert "margin" in evaluate(nn.Identity(), [(logits, y)], likelihood=Categorical()).metrics
    assert metric_named("margin").better == "high"


@pytest.mark.usefixtures("catalogue")
def test_what_no_metric_describes_is_refused() -> None:
    METRICS.register(Metric("a", None, "A", "Of nothing.", mean_of("b", _margin), ["classes"]))
    logits, y = classes()
    with pytest.raises(UnknownName, match="'b'"):
        evaluate(nn.Identity(), [(logits, y)], likelihood=Categorical())


def test_metrics_that_share_an_accumulator_run_it_once() -> None:
    for likelihood, shape, names in (
        (Categorical(), (4,), ["Confidence", "ClassAuc", "Shift", "EqualCoverageSize"]),
        (Categorical(), (4, 3, 3), ["Confidence", "Masks", "MarkedAtEqualRisk", "Shift"]),
        (Bernoulli(), (4, 2), ["Confidence", "ClassAuc", "MarkedAtEqualRisk", "Shift"]),
        (Bernoulli(), (4, 2, 3, 3), ["Confidence", "Masks", "MarkedAtEqualRisk", "Shift"]),
        (Gaussian(), (4, 2), ["Real", "Shift", "EqualCoverageWidth"]),
    ):
        assert [type(a).__name__ for a in accumulators_for(likelihood, torch.zeros(shape))] == names


@pytest.mark.parametrize(
    ("full_name", "better", "title"),
    [
        ("nll", "low", "NLL"),
        ("iou/3", "high", "IoU, 3"),
        ("iou/left lung", "high", "IoU, left lung"),
        ("set_size@0.5", None, "Share sure at 0.5"),
        ("set_accuracy@0.9", "high", "Accuracy when sure at 0.9"),
        ("coverage@0.9", None, "Coverage at 0.9"),
        ("ood/unseen digits/fpr95", "low", "FPR95, unseen digits"),
        ("ood/a/b/auroc", "high", "AUROC, a/b"),
        ("ood/auroc", "high", "AUROC"),
        ("error/auroc", "high", "AUROC, error"),
        ("cost/train_seconds", "low", "Training (s)"),
    ],
)
def test_full_names_are_resolved(full_name: str, better: str | None, title: str) -> None:
    metric = metric_named(full_name)
    assert (metric.name, metric.better, metric.title) == (full_name, better, title)


@pytest.mark.parametrize("name", ["nonsense", "ood/x/accuracy", "error", "ood/auroc/x", "cost/nonsense", ""])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownName):
        metric_named(name)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_is_explained_in_a_sentence(name: str) -> None:
    metric = METRICS[name]
    assert metric.title
    assert metric.meaning[0].isupper()
    assert metric.meaning.endswith(".")
    by_case = name in ("boundary_ece", "lesion_sensitivity", "lesion_false_positives")
    of_comparisons = by_case or name.startswith(("cost/", "conformal_")) or name == "ensemble_equivalent"
    assert (metric.accumulate is None) == of_comparisons  # which `evaluate` does not compute


def test_wrong_records_are_refused() -> None:
    with pytest.raises(InputError, match="better must be"):
        Metric("a", "higher", "A", "Of nothing.")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name without"):
        Metric("a@1", None, "A", "Of nothing.")
    with pytest.raises(InputError, match="kinds twice"):
        Metric("a", None, "A", "Of nothing.", {"classes": mean_of("a", _margin)}, ["labels"])


class _Nothing(Accumulator):
    def add(self, prediction: Prediction, targets: Tensor) -> None:
        pass

    def report(self, findings: Findings) -> None:
        pass


def test_shifted_sets_may_be_overlooked_and_means_may_be_empty() -> None:
    zero = torch.zeros(0)
    empty = Prediction(torch.zeros(0, 2), zero, zero, zero, zero, zero)
    _Nothing().add_shifted("far", empty, None)
    mean, findings = mean_of("a", _margin)(Categorical()), Findings()
    mean.add(empty, zero)
    mean.report(findings)
    assert findings.metrics == {}
    assert "no values to average" in findings.notes[0]
