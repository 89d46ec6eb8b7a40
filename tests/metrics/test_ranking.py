"""Ranking metrics against scikit-learn, and against explicit loops over orders."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.metrics import auc, aupr, aurc, auroc, class_auc, fpr95, risk_coverage
from tests.metrics.cases import VOID, classes, labels, pixels

SCORES = st.lists(st.integers(0, 12), min_size=1, max_size=40)


def _sides(coarse: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    low, high = torch.randn(300, generator=generator), 1 + torch.randn(200, generator=generator)
    return ((low * 2).round(), (high * 2).round()) if coarse else (low, high)


@pytest.mark.parametrize("coarse", [False, True])
def test_detection_against_scikit_learn(coarse: bool) -> None:
    low, high = (side.double() for side in _sides(coarse))
    truth, scores = np.r_[np.zeros(300), np.ones(200)], torch.cat([low, high]).numpy()
    assert auroc(low, high).item() == pytest.approx(roc_auc_score(truth, scores), rel=1e-12)
    assert aupr(low, high).item() == pytest.approx(average_precision_score(truth, scores), rel=1e-12)
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert fpr95(low, high).item() == pytest.approx(false[np.argmax(true >= 0.95)], rel=1e-12)


@given(SCORES, SCORES)
@settings(max_examples=80, deadline=None)
def test_detection_with_any_ties(low: list[int], high: list[int]) -> None:
    truth, scores = [0] * len(low) + [1] * len(high), low + high
    a, b = torch.tensor(low).double(), torch.tensor(high).double()
    assert auroc(a, b).item() == pytest.approx(roc_auc_score(truth, scores), rel=1e-10)
    assert aupr(a, b).item() == pytest.approx(average_precision_score(truth, scores), rel=1e-10)
    assert auroc(a, b).item() == pytest.approx(1 - auroc(b, a).item(), abs=1e-12)
    assert auroc(a, b).item() == pytest.approx(auroc(a.exp(), b.exp()).item(), abs=1e-12)
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert fpr95(a, b).item() == pytest.approx(false[np.argmax(true >= 0.95)], abs=1e-12)


def test_perfect_and_useless_scores() -> None:
    low, high = torch.arange(20.0), torch.arange(20.0) + 100
    assert (auroc(low, high), aupr(low, high), fpr95(low, high)) == (1, 1, 0)
    same = torch.ones(20)
    assert (auroc(same, same), aupr(same, same), fpr95(same, same)) == (0.5, 0.5, 1)
    assert (auroc(high, low), fpr95(high, low)) == (0, 1)


def test_ninety_five_per_cent_of_twenty_are_nineteen() -> None:
    positives = torch.arange(1.0, 21.0)  # 2 and above are nineteen of them
    assert fpr95(torch.tensor([1.5, 2.5]), positives).item() == 0.5


def test_class_auc_against_scikit_learn() -> None:
    logits, y = classes()
    p = logits.softmax(1)
    assert auc(p, y).item() == pytest.approx(roc_auc_score(y, p.numpy(), multi_class="ovr"), rel=1e-12)
    logits, y = classes(c=2)
    p = logits.softmax(1)
    assert auc(p, y).item() == pytest.approx(roc_auc_score(y, p[:, 1].numpy()), rel=1e-12)


def test_label_auc_is_the_mean_of_the_binary_ones() -> None:
    logits, y = labels()
    p = logits.sigmoid()
    each = [roc_auc_score(y[:, c], p[:, c]) for c in range(4)]
    np.testing.assert_allclose(class_auc(p, y).numpy(), each, rtol=1e-12)
    assert auc(p, y).item() == pytest.approx(np.mean(each), rel=1e-12)
    assert auc(p[:, 0], y[:, 0]).item() == pytest.approx(each[0], rel=1e-12)


def test_labels_with_one_side_only_are_left_out() -> None:
    logits, y = labels()
    y[:, 1], y[:, 3] = 0, 1
    result = class_auc(logits.sigmoid(), y)
    assert result.isnan().tolist() == [False, True, False, True]
    assert auc(logits.sigmoid(), y).item() == pytest.approx(result[[0, 2]].mean().item())
    with pytest.raises(InputError, match="no AUC"):
        auc(logits.sigmoid(), torch.ones_like(y))


def test_auc_of_pixels_leaves_out_the_ignored() -> None:
    logits, y = pixels()
    p, keep = logits.softmax(1), y != VOID
    expected = roc_auc_score(y[keep], p.movedim(1, -1)[keep].numpy(), multi_class="ovr")
    assert auc(p, y, ignore_index=VOID).item() == pytest.approx(expected, rel=1e-9)


def _by_loop(losses: list[float]) -> list[float]:
    return [float(np.mean(losses[:k])) for k in range(1, len(losses) + 1)]


def test_risk_and_coverage_by_loop() -> None:
    generator = torch.Generator().manual_seed(4)
    uncertainty, losses = (torch.rand(50, generator=generator, dtype=torch.float64) for _ in range(2))
    risks = _by_loop(losses[uncertainty.argsort()].tolist())
    result = risk_coverage(uncertainty, losses, points=50)
    np.testing.assert_allclose(result.risk.numpy(), risks, rtol=1e-10)
    np.testing.assert_allclose(result.coverage.numpy(), np.arange(1, 51) / 50)
    assert aurc(uncertainty, losses).item() == pytest.approx(np.mean(risks), rel=1e-10)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_ties_count_as_the_mean_over_their_orders(pairs: list[tuple[int, int]]) -> None:
    orders = [order for order in itertools.permutations(pairs) if [u for u, _ in order] == sorted(u for u, _ in pairs)]
    curves = np.array([_by_loop([loss for _, loss in order]) for order in orders])
    uncertainty, losses = torch.tensor(pairs, dtype=torch.float64).T
    assert aurc(uncertainty, losses).item() == pytest.approx(curves.mean(), abs=1e-10)
    result = risk_coverage(uncertainty, losses, points=len(pairs))
    np.testing.assert_allclose(result.risk.numpy(), curves.mean(0), atol=1e-10)


def test_the_best_order_has_the_smallest_area() -> None:
    losses = torch.tensor([0.0] * 90 + [1.0] * 10, dtype=torch.float64)
    best, worst = aurc(losses, losses), aurc(-losses, losses)
    assert best < aurc(torch.zeros(100), losses) < worst
    assert aurc(torch.zeros(100), losses).item() == pytest.approx(0.1)
    assert best.item() == pytest.approx(sum((k - 90) / k for k in range(91, 101)) / 100)


def test_bad_scores_are_named() -> None:
    for metric in (auroc, aupr, fpr95):
        with pytest.raises(ShapeMismatch, match="at least one"):
            metric(torch.ones(0), torch.ones(2))
        with pytest.raises(ShapeMismatch):
            metric(torch.ones(2, 2), torch.ones(2))
        with pytest.raises(NonFinite):
            metric(torch.tensor([math.nan]), torch.ones(2))
    with pytest.raises(ShapeMismatch):
        aurc(torch.ones(3), torch.ones(2))
    with pytest.raises(InputError, match="floating-point"):
        aurc(torch.ones(2), torch.tensor([True, False]))
    with pytest.raises(InputError, match="points"):
        risk_coverage(torch.ones(2), torch.ones(2), points=0)


def test_infinite_and_integer_and_half_precision_scores_can_be_ranked() -> None:
    assert auroc(torch.tensor([-math.inf, 1]), torch.tensor([math.inf, 2])) == 1
    assert auroc(torch.tensor([1, 2]), torch.tensor([2, 3])).item() == 0.875
    assert auroc(torch.tensor([1, 2]).bfloat16(), torch.tensor([2, 3]).bfloat16()).item() == 0.875
