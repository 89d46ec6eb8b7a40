"""The metrics for torchmetrics are those of the records: the same values, over batches, processes and collections."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

import leanbayes as lb
from leanbayes.integrations import torchmetrics as adapter
from leanbayes.integrations.torchmetrics import RecordedMetric
from tests.integrations.matrix import shows
from tests.integrations.pages import run_page


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(0)
    return [(torch.randn(40, 4, generator=source), torch.randint(4, (40,), generator=source)) for _ in range(count)]


def predictions(likelihood: lb.Likelihood | None = None) -> list[tuple[lb.Prediction, Tensor]]:
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Linear(4, 4), posterior=lb.posteriors.Normal(init_scale=0.3), predict_by="moments")
    return [(lb.predict(bnn, x, likelihood=likelihood), y) for x, y in batches()]


def numbers() -> list[tuple[lb.Prediction, Tensor]]:
    torch.manual_seed(0)
    bnn, likelihood = lb.Bayesian(nn.Linear(4, 1), predict_by="moments"), lb.Gaussian(1.0)
    return [(lb.predict(bnn, x, likelihood=likelihood), x.sum(1, keepdim=True)) for x, _ in batches()]


CLASSES = [
    adapter.AdaptiveCalibrationError,
    adapter.AreaUnderRiskCoverage,
    adapter.ConfidentShare,
    adapter.ErrorDetectionAUPR,
    adapter.ErrorDetectionAUROC,
    adapter.ErrorDetectionFPR95,
    adapter.MutualInformation,
    adapter.PredictiveEntropy,
    adapter.PredictiveNLL,
]
NUMBERS = [adapter.GaussianCRPS, adapter.IntervalCoverage, adapter.IntervalCoverageError]


class Replay(lb.Predictor):
    """Gives the logits of what was predicted before, so that `lb.evaluate` measures the very same predictions."""

    def outputs(self, x: Any, draws: int, generator: Any) -> Any:
        yield x

    def parts(self) -> dict[str, nn.Module]:
        return {}


@shows("torchmetrics", "Metrics of uncertainty that torchmetrics lacks are its Metric classes.")
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_over_batches_a_metric_is_that_of_evaluate(kind: Any) -> None:
    """A predictor without epistemic uncertainty is evaluated by both."""
    data = batches()
    metric = kind()
    for x, y in data:
        metric.update(lb.predict(nn.Identity(), x), y)
    want = lb.evaluate(nn.Identity(), data, likelihood=lb.Categorical()).metrics[metric.record_name]
    assert metric.compute().item() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.__name__)
def test_metrics_of_numbers(kind: Any) -> None:
    metric = kind()
    data = [(x[:, :1], x.sum(1, keepdim=True)) for x, _ in batches()]
    for x, y in data:
        metric.update(lb.predict(nn.Identity(), x, likelihood=lb.Gaussian()), y)
    want = lb.evaluate(nn.Identity(), data, likelihood=lb.Gaussian()).metrics[metric.record_name]
    assert metric.compute().item() == pytest.approx(want, abs=1e-12)


def test_where_torchmetrics_has_the_metric_both_agree() -> None:
    accuracy, calibration = RecordedMetric("accuracy"), RecordedMetric("ece")
    theirs = MulticlassAccuracy(4, average="micro"), MulticlassCalibrationError(4, n_bins=15)
    for prediction, y in predictions():
        accuracy.update(prediction, y)
        calibration.update(prediction, y)
        for metric in theirs:
            metric.update(prediction.mean, y)
    assert accuracy.compute().item() == pytest.approx(theirs[0].compute().item(), abs=1e-6)
    assert calibration.compute().item() == pytest.approx(theirs[1].compute().item(), abs=1e-6)


def test_mutual_information_is_the_mean_epistemic_uncertainty() -> None:
    metric = adapter.MutualInformation()
    made = predictions()
    for prediction, y in made:
        metric.update(prediction, y)
    want = torch.cat([prediction.epistemic for prediction, _ in made]).double().mean()
    assert metric.compute().item() == pytest.approx(want.item(), rel=1e-5)
    assert want > 0.001


def test_two_processes_join_their_batches() -> None:
    """torchmetrics joins the states of processes by concatenation, which merge_state does as well."""
    made = predictions()
    whole, left, right = (adapter.ErrorDetectionAUROC() for _ in range(3))
    for place, (prediction, y) in enumerate(made):
        whole.update(prediction, y)
        (left if place < 2 else right).update(prediction, y)
    left.merge_state(right)
    assert left.compute() == whole.compute()


def test_collections_resets_and_directions() -> None:
    collection = MetricCollection({"nll": adapter.PredictiveNLL(), "auroc": adapter.ErrorDetectionAUROC()})
    prediction, y = predictions()[0]
    collection.update(prediction, y)
    first = collection.compute()
    assert set(first) == {"nll", "auroc"}
    assert collection["auroc"].higher_is_better is True
    assert collection["nll"].higher_is_better is False
    collection.reset()
    collection.update(prediction, y)
    assert collection.compute() == first


def test_shifted_inputs() -> None:
    """Total uncertainties 0 < 1 < 2: every shifted input is less sure than every usual one, then none is."""
    sure, unsure = torch.eye(3) * 20, torch.zeros(3, 3)
    metric = adapter.ShiftDetectionAUROC()
    metric.update(lb.predict(nn.Identity(), sure), torch.arange(3))
    metric.update(lb.predict(nn.Identity(), unsure), shifted=True)
    assert metric.compute() == 1
    metric.reset()
    metric.update(lb.predict(nn.Identity(), unsure), torch.arange(3))
    metric.update(lb.predict(nn.Identity(), sure), shifted=True)
    assert metric.compute() == 0


def test_what_cannot_be_measured_is_not_a_number_and_says_why() -> None:
    metric = adapter.ErrorDetectionAUROC()
    metric.update(lb.predict(nn.Identity(), torch.eye(3)), torch.arange(3))
    with pytest.warns(UserWarning, match="error/auroc cannot be measured: "):
        assert metric.compute().isnan()


def test_bad_input_is_named() -> None:
    prediction, y = predictions()[0]
    metric = adapter.PredictiveNLL()
    with pytest.raises(lb.errors.InputError, match=r"takes what leanbayes.predict returns, got a Tensor"):
        metric.update(torch.zeros(3, 2), y)
    with pytest.raises(lb.errors.InputError, match="40 predictions and 39 targets"):
        metric.update(prediction, y[1:])
    with pytest.raises(lb.errors.InputError, match="the targets must be a tensor, got a list"):
        metric.update(prediction, y.tolist())
    with pytest.raises(lb.errors.InputError, match="does not compare usual inputs with shifted ones"):
        metric.update(prediction, shifted=True)
    with pytest.raises(lb.errors.InputError, match="unknown metric"):
        RecordedMetric("sharpness")
    with pytest.raises(lb.errors.InputError, match="the name of a metric is a text, such as 'aurc', got 3"):
        RecordedMetric(3)
    with pytest.raises(lb.errors.InputError, match=r"level must be one of 0.5, 0.6, .*, got 2.0"):
        adapter.ConfidentShare(2.0)
    with pytest.raises(lb.errors.InputError, match=r"level must be one of 0.5, 0.8, 0.9, 0.95, got '90 %'"):
        adapter.IntervalCoverage("90 %")
    with pytest.raises(lb.errors.InputError, match="unknown metric of predictions 'cost/bytes'"):
        RecordedMetric("cost/bytes")
    wrong = RecordedMetric("crps")
    wrong.update(prediction, y)
    with pytest.raises(lb.errors.InputError, match="'crps' is not for the kind of data 'classes'"):
        wrong.compute()


@shows("torchmetrics", "The code of the page on torchmetrics runs.")
def test_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/integrations/torchmetrics.md", tmp_path)
