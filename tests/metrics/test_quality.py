"""Accuracy, NLL, Brier, Dice and IoU against scikit-learn, torchmetrics and cases by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, jaccard_score, log_loss
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_jaccard_index

from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.metrics import accuracy, brier, dice, iou, mean_iou, nll
from leanbayes.metrics.quality import cells_of
from tests.metrics.cases import VOID, classes, labels, pixels


def test_classes_against_scikit_learn() -> None:
    logits, y = classes()
    p = logits.softmax(1)
    assert accuracy(p, y).item() == pytest.approx(accuracy_score(y, p.argmax(1)), abs=1e-12)
    assert nll(p, y).item() == pytest.approx(log_loss(y, p.numpy(), labels=range(5)), rel=1e-9)
    assert brier(p, y).item() == pytest.approx(
        brier_score_loss(y.numpy(), p.numpy(), labels=range(5), scale_by_half=False), rel=1e-9
    )


def test_labels_against_scikit_learn() -> None:
    logits, y = labels()
    p = logits.sigmoid()
    assert accuracy(p, y).item() == pytest.approx(accuracy_score(y.flatten(), p.flatten() > 0.5), abs=1e-12)
    assert nll(p, y).item() == pytest.approx(log_loss(y.flatten(), p.flatten().numpy()), rel=1e-9)
    assert brier(p, y).item() == pytest.approx(brier_score_loss(y.flatten().numpy(), p.flatten().numpy()), rel=1e-9)


def test_pixels_that_are_ignored_do_not_count() -> None:
    logits, y = pixels()
    p, keep = logits.softmax(1), y != VOID
    flat = p.movedim(1, -1)[keep]
    assert nll(p, y, ignore_index=VOID).item() == pytest.approx(log_loss(y[keep], flat.numpy()), rel=1e-9)
    expected = multiclass_accuracy(p, y, 3, average="micro", ignore_index=VOID)
    assert accuracy(p, y, ignore_index=VOID).item() == pytest.approx(expected.item(), abs=1e-6)
    changed = torch.where(keep[:, None], p, torch.tensor([1.0, 0.0, 0.0], dtype=p.dtype).view(1, 3, 1, 1))
    for metric in (accuracy, nll, brier, dice, iou, mean_iou):
        assert torch.equal(metric(p, y, ignore_index=VOID), metric(changed, y, ignore_index=VOID))


def test_a_label_is_a_choice_of_two_classes() -> None:
    logits, y = labels()
    p = logits.sigmoid()
    two = torch.stack([1 - p, p], dim=1)
    torch.testing.assert_close(accuracy(p, y), accuracy(two, y))
    torch.testing.assert_close(nll(p, y), nll(two, y))
    torch.testing.assert_close(2 * brier(p, y), brier(two, y))
    torch.testing.assert_close(nll(p[:, 0], y[:, 0]), nll(p[:, :1], y[:, :1].float()))


def test_iou_against_scikit_learn_and_torchmetrics() -> None:
    logits, y = pixels()
    p, keep = logits.softmax(1), y != VOID
    expected = jaccard_score(y[keep], p.argmax(1)[keep], average=None)
    np.testing.assert_allclose(iou(p, y, ignore_index=VOID).numpy(), expected, rtol=1e-12)
    theirs = multiclass_jaccard_index(p.argmax(1), y, 3, ignore_index=VOID)
    assert mean_iou(p, y, ignore_index=VOID).item() == pytest.approx(theirs.item(), rel=1e-6)


def test_a_class_that_occurs_nowhere_has_no_iou() -> None:
    p = torch.tensor([[[0.9, 0.2], [0.1, 0.8], [0.0, 0.0]]])
    result = iou(p, torch.tensor([[0, 1]]))
    assert result[:2].tolist() == [1.0, 1.0]
    assert math.isnan(result[2])
    assert mean_iou(p, torch.tensor([[0, 1]])).item() == 1.0


def test_dice_is_the_f1_score_of_each_image() -> None:
    from sklearn.metrics import f1_score

    logits, y = pixels(void=False)
    p = logits.softmax(1)
    each = [
        f1_score((truth == c).flatten(), (mask == c).flatten())
        for truth, mask in zip(y, p.argmax(1), strict=True)
        for c in (1, 2)
    ]
    assert dice(p, y).item() == pytest.approx(np.mean(each), rel=1e-12)


def test_dice_counts_no_background_and_empty_on_empty_is_one() -> None:
    empty, full = torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9])
    p = torch.stack([empty, empty, full, full])[:, :, None].expand(4, 2, 6)
    y = torch.tensor([0, 1, 0, 1])[:, None].expand(4, 6)
    per_image = [dice(p[i : i + 1], y[i : i + 1]).item() for i in range(4)]
    assert per_image == [1.0, 0.0, 0.0, 1.0]
    assert dice(p, y).item() == 0.5
    lesion = torch.zeros(1, 100, dtype=torch.long)
    lesion[0, 0] = 1
    assert dice(empty[None, :, None].expand(1, 2, 100), lesion).item() == 0.0  # 99 % of the pixels are right


def test_masks_of_labels_have_no_background() -> None:
    logits, y = pixels(c=2, void=False)
    yes = logits.softmax(1)[:, 1:]
    torch.testing.assert_close(dice(yes, y[:, None]), dice(logits.softmax(1), y))
    torch.testing.assert_close(iou(yes, y[:, None])[0], iou(logits.softmax(1), y)[1])


def test_dice_leaves_out_images_that_are_wholly_ignored() -> None:
    logits, y = pixels()
    p = logits.softmax(1)
    torch.testing.assert_close(dice(p, y, ignore_index=VOID), dice(p[:-1], y[:-1], ignore_index=VOID))


@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_order_does_not_matter_and_values_stay_in_range(n: int, c: int, seed: int) -> None:
    logits, y = classes(n, c, seed)
    p, order = logits.softmax(1), torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for metric, top in ((accuracy, 1.0), (brier, 2.0), (nll, math.inf)):
        value = metric(p, y)
        assert 0 <= value <= top
        torch.testing.assert_close(value, metric(p[order], y[order]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_precision_is_scored_in_float32_at_least(dtype: torch.dtype) -> None:
    logits, y = classes(200, 10)
    p = logits.softmax(1).to(dtype)
    result = nll(p, y)
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(result, nll(p.double(), y).to(result.dtype), rtol=1e-6, atol=0)


def test_classes_may_be_bytes() -> None:
    p = torch.eye(200)[[156, 0, 3]]
    y = torch.tensor([156, 0, 1], dtype=torch.uint8)  # −100 as a byte is 156
    assert accuracy(p, y).item() == pytest.approx(2 / 3)
    assert accuracy(p, y, ignore_index=1).item() == 1


def test_a_certain_mistake_has_a_finite_nll() -> None:
    assert torch.isfinite(nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))


def test_doubt_keeps_the_digits_that_confidence_loses() -> None:
    p = torch.tensor([[1.0, 1e-12], [1.0, 1e-20]])
    assert (1 - cells_of(p, torch.tensor([0, 0])).confidence).tolist() == [0, 0]
    torch.testing.assert_close(cells_of(p, torch.tensor([0, 0])).doubt, torch.tensor([1e-12, 1e-20]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("metric", [accuracy, nll, brier])
def test_what_cannot_be_scored_is_named(metric: object) -> None:
    assert callable(metric)
    p = torch.tensor([[0.5, 0.5], [0.2, 0.8]])
    for bad, targets, error, words in [
        (p, torch.tensor([0, 2]), InputError, "classes 0 to 1"),
        (p, torch.tensor([0, -1]), InputError, "got -1 to 0"),
        (p, torch.tensor([-100, -100]), InputError, "no examples"),
        (p, torch.tensor([0.0, 1.0]), ShapeMismatch, "must be integers"),
        (p * 3, torch.tensor([0, 1]), InputError, "from 0 to 1"),
        (p / 2, torch.tensor([0, 1]), InputError, "do not sum to 1"),
        (p * torch.nan, torch.tensor([0, 1]), NonFinite, "NaN"),
        (p, torch.tensor([[0, 2], [1, 0]]), InputError, "0 or 1"),
        (p, torch.tensor([[0, torch.nan], [1, 0]]), InputError, "0 or 1"),
        (p.long(), torch.tensor([0, 1]), InputError, "floating-point"),
        (torch.tensor(0.5), torch.tensor(1), ShapeMismatch, "got"),
    ]:
        with pytest.raises(error, match=words):
            metric(bad, targets)


def test_masks_need_pixels() -> None:
    with pytest.raises(ShapeMismatch, match="needs pixels"):
        dice(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    with pytest.raises(ShapeMismatch, match="needs pixels"):
        iou(torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 1]]))
    with pytest.raises(ShapeMismatch, match="Bernoulli"):
        dice(torch.ones(2, 1, 4), torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(InputError, match="no examples"):
        dice(torch.full((1, 2, 4), 0.5), torch.full((1, 4), -100))
    with pytest.raises(InputError, match="no examples"):
        iou(torch.full((1, 2, 4), 0.5), torch.full((1, 4), -100))
