"""Calibration error, reliability, confidence sets and entropies against torchmetrics, scikit-learn and scipy."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.likelihood import Bernoulli, Categorical
from leanbayes.metrics import calibration_error, confidence_set, entropy, mutual_information, reliability
from leanbayes.prediction import predict
from tests.metrics.cases import VOID, Given, classes, labels, pixels


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_equal_width_against_torchmetrics(bins: int) -> None:
    logits, y = classes(700)
    p = logits.softmax(1)
    theirs = multiclass_calibration_error(p, y, 5, n_bins=bins).item()
    assert calibration_error(p, y, bins).item() == pytest.approx(theirs, abs=1e-6)
    logits, y = pixels()
    theirs = multiclass_calibration_error(logits.softmax(1), y, 3, n_bins=bins, ignore_index=VOID).item()
    assert calibration_error(logits.softmax(1), y, bins, ignore_index=VOID).item() == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("equal", ["width", "mass"])
def test_bins_against_scikit_learn(equal: str) -> None:
    logits, y = classes(600)
    p = logits.softmax(1)
    right, confidence = (p.argmax(1) == y).numpy(), p.amax(1).numpy()
    strategy = {"width": "uniform", "mass": "quantile"}[equal]
    share, mean = calibration_curve(right, confidence, n_bins=10, strategy=strategy)
    result = reliability(p, y, 10, equal)  # type: ignore[arg-type]
    subset = result.count > 0
    np.testing.assert_allclose(result.accuracy[subset].numpy(), share, rtol=1e-9)
    np.testing.assert_allclose(result.confidence[subset].numpy(), mean, rtol=1e-9)
    expected = (np.abs(share - mean) * result.count[subset].numpy()).sum() / 600
    assert calibration_error(p, y, 10, equal).item() == pytest.approx(expected, rel=1e-9)  # type: ignore[arg-type]
    if equal == "mass":
        assert result.count.tolist() == pytest.approx([60.0] * 10)


@pytest.mark.parametrize("equal", ["width", "mass"])
def test_labels_are_calibrated_as_two_classes(equal: str) -> None:
    logits, y = labels()
    p = logits.sigmoid()
    two = torch.stack([1 - p, p], dim=1)
    torch.testing.assert_close(calibration_error(p, y, 15, equal), calibration_error(two, y, 15, equal))  # type: ignore[arg-type]


def test_width_bins_are_open_below_and_closed_above() -> None:
    p = torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]])
    assert reliability(p, torch.tensor([0, 0, 0]), bins=4).count.tolist() == [0, 1, 1, 1]


def test_tied_confidences_are_shared_out_in_proportion() -> None:
    p = torch.tensor([[0.8, 0.2]]).expand(6, 2)
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    result = reliability(p, y, bins=4, equal="mass")
    assert result.count.tolist() == pytest.approx([1.5] * 4)
    assert result.accuracy.tolist() == pytest.approx([0.5] * 4)
    assert calibration_error(p, y, 4, "mass").item() == pytest.approx(0.3)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 500), st.booleans())
@settings(max_examples=50, deadline=None)
def test_equal_mass_has_equal_mass_in_any_order(n: int, bins: int, seed: int, coarse: bool) -> None:
    logits, y = classes(n, 3, seed)
    p = logits.round().softmax(1) if coarse else logits.softmax(1)
    result = reliability(p, y, bins, "mass")
    torch.testing.assert_close(result.count, torch.full((bins,), n / bins, dtype=torch.float64))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    value = calibration_error(p, y, bins, "mass")
    torch.testing.assert_close(value, calibration_error(p[order], y[order], bins, "mass"))
    overall = ((p.argmax(1) == y).double() - p.amax(1)).mean().abs()
    assert overall - 1e-12 <= value <= 1  # no binning hides the overall gap


def test_a_calibrated_predictor_has_a_small_error() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(40_000, generator=generator)
    y = (torch.rand(40_000, generator=generator) < p).long()
    assert calibration_error(p, y) < 0.02
    assert calibration_error(p, y, equal="mass") < 0.02
    assert calibration_error(p.round(), y) > 0.2


def test_many_cells_do_not_wear_out_float32() -> None:
    """One by one in float32, two million times 0.9 would sum to something else by some per cent."""
    p = torch.full((2_000_000,), 0.9)
    assert calibration_error(p, torch.ones(2_000_000)).item() == pytest.approx(0.1, rel=1e-5)


def test_confidence_sets_by_hand() -> None:
    p = torch.tensor([[0.95, 0.05], [0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    y = torch.tensor([0, 1, 1, 1])
    for threshold, right, size in [(0.5, 0.5, 1.0), (0.65, 2 / 3, 0.75), (0.9, 0.5, 0.5), (0.95, 1.0, 0.25)]:
        accuracy, share = confidence_set(p, y, threshold)
        assert (accuracy.item(), share.item()) == pytest.approx((right, size))
    nobody, share = confidence_set(p, y, 0.99)
    assert math.isnan(nobody)
    assert share == 0


def _draws() -> Tensor:
    return 2 * torch.randn(40, 6, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_entropies_against_scipy_and_the_likelihoods() -> None:
    draws = _draws()
    p = draws.softmax(2).movedim(1, 0)
    expected = scipy.stats.entropy(p.mean(0).numpy(), axis=1)
    np.testing.assert_allclose(entropy(p.mean(0)).numpy(), expected, rtol=1e-10)
    kl = np.mean([scipy.stats.entropy(draw.numpy(), p.mean(0).numpy(), axis=1) for draw in p], axis=0)
    np.testing.assert_allclose(mutual_information(p).numpy(), kl, rtol=1e-9)  # the mean divergence from the mean
    result = predict(Given(6), draws, likelihood=Categorical())
    torch.testing.assert_close(mutual_information(p), result.epistemic)
    torch.testing.assert_close(entropy(p.mean(0)), result.total)


def test_entropies_of_labels() -> None:
    draws = _draws()
    p = draws.sigmoid().movedim(1, 0)
    result = predict(Given(6), draws, likelihood=Bernoulli())
    torch.testing.assert_close(mutual_information(p, labels=True), result.epistemic)
    expected = scipy.stats.bernoulli(p.mean(0).numpy()).entropy()
    np.testing.assert_allclose(entropy(p.mean(0), labels=True).numpy(), expected, rtol=1e-10)


def test_draws_that_agree_share_no_information() -> None:
    p = _draws()[:, :1].softmax(2).movedim(1, 0).expand(4, 40, 5)
    assert mutual_information(p).max() < 1e-15


def test_bad_arguments_are_named() -> None:
    p, y = torch.tensor([[0.5, 0.5]]), torch.tensor([0])
    with pytest.raises(InputError, match="bins"):
        calibration_error(p, y, 0)
    with pytest.raises(UnknownName, match="mass"):
        calibration_error(p, y, equal="count")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threshold"):
        confidence_set(p, y, 90)
    with pytest.raises(ShapeMismatch, match="labels=True"):
        entropy(torch.tensor([0.5]))
