"""Metrics against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.evaluate import accuracy, auroc, brier, calibration_error, nll


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(500, 7, dtype=torch.float64).softmax(1), torch.randint(0, 7, (500,))


def test_accuracy_and_nll_are_those_of_scikit_learn(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    p, y = case
    assert accuracy(p, y).item() == pytest.approx(accuracy_score(y, p.argmax(1)), abs=1e-12)
    assert nll(p, y).item() == pytest.approx(log_loss(y, p.numpy(), labels=range(7)), rel=1e-9)


def test_brier_by_hand(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    p, y = case
    expected = np.mean([((np.eye(7)[c] - row) ** 2).sum() for row, c in zip(p.numpy(), y.numpy(), strict=True)])
    assert brier(p, y).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_calibration_error_by_hand(case: tuple[torch.Tensor, torch.Tensor], bins: int) -> None:
    p, y = (part.numpy() for part in case)
    confidence, right = p.max(1), p.argmax(1) == y
    expected = 0.0
    for low in np.arange(bins) / bins:
        inside = (confidence > low) & (confidence <= low + 1 / bins)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert calibration_error(*case, bins=bins).item() == pytest.approx(expected, rel=1e-9)


def test_auroc_is_that_of_scikit_learn_with_ties() -> None:
    generator = torch.Generator().manual_seed(1)
    low = torch.randint(0, 6, (200,), generator=generator).double()
    high = torch.randint(2, 9, (150,), generator=generator).double()
    expected = roc_auc_score([0] * 200 + [1] * 150, torch.cat([low, high]))
    assert auroc(low, high).item() == pytest.approx(expected, rel=1e-12)


def test_a_certain_mistake_has_a_finite_nll() -> None:
    assert torch.isfinite(nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))


@pytest.mark.parametrize("metric", [accuracy, nll, brier, calibration_error])
def test_what_does_not_fit_is_named(metric: object) -> None:
    with pytest.raises(ShapeMismatch, match=r"\(4, 3\) and \(5,\)"):
        metric(torch.ones(4, 3), torch.zeros(5, dtype=torch.long))  # type: ignore[operator]
    with pytest.raises(InputError, match="no examples"):
        metric(torch.ones(0, 3), torch.zeros(0, dtype=torch.long))  # type: ignore[operator]
    with pytest.raises(ShapeMismatch):
        auroc(torch.ones(0), torch.ones(2))
