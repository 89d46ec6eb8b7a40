"""The marked share at equal risk equals that of thresholds tried one by one, for pixels and labels, batch by batch."""

import pytest
import torch

import leanbayes as lb
from leanbayes.metrics.nested_masks import GRID


def by_hand(p: torch.Tensor, truth: torch.Tensor, counted: torch.Tensor) -> float:
    best = 1.0
    for threshold in GRID:
        mask = p >= threshold
        missed, marked = [], []
        for m, t, c in zip(mask, truth, counted, strict=True):
            lesion = t & c
            missed.append(float((lesion & ~m).sum() / lesion.sum()) if lesion.any() else 0.0)
            marked.append(float((m & c).sum() / c.sum()))
        if sum(missed) / len(missed) > 0.1 + 1e-9:
            return best
        best = sum(marked) / len(marked)
    return best


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("at_a_time", [2**20, 50])
def test_pixels(classes: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leanbayes.metrics.marked._PIXELS", at_a_time)
    source = torch.Generator().manual_seed(classes)
    logits = 2 * torch.randn(12, classes, 7, 6, generator=source)
    y = torch.distributions.Categorical(logits=logits.movedim(1, -1)).sample()
    y[0], y[1, :3] = 0, -100
    batches = [(logits[:5], y[:5]), (logits[5:], y[5:])]
    measured = lb.evaluate(torch.nn.Identity(), batches, likelihood=lb.Categorical(), samples=1)
    p = 1 - logits.softmax(1)[:, 0].double()
    assert measured.metrics["marked_at_10"] == pytest.approx(by_hand(p, y > 0, y != -100), abs=1e-6)
    assert 0 <= measured.bounds["marked_at_10"] < 0.1


def test_labels() -> None:
    source = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(40, 6, generator=source)
    y = (torch.rand(40, 6, generator=source) < logits.sigmoid()).float()
    measured = lb.evaluate(torch.nn.Identity(), [(logits, y)], likelihood=lb.Bernoulli(), samples=1)
    expected = by_hand(logits.sigmoid().double(), y > 0, torch.ones_like(y, dtype=torch.bool))
    assert measured.metrics["marked_at_10"] == pytest.approx(expected, abs=1e-6)


def test_one_label_may_have_no_axis_of_its_own() -> None:
    source = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(60, generator=source)
    y = (torch.rand(60, generator=source) < logits.sigmoid()).float()
    flat, column = (
        lb.evaluate(torch.nn.Identity(), [(a, b)], likelihood=lb.Bernoulli(), samples=1).metrics["marked_at_10"]
        for a, b in ((logits, y), (logits[:, None], y[:, None]))
    )
    assert flat == column
    expected = by_hand(logits[:, None].sigmoid().double(), y[:, None] > 0, torch.ones(60, 1, dtype=torch.bool))
    assert flat == pytest.approx(expected, abs=1e-6)


def test_a_better_network_marks_less() -> None:
    y = torch.zeros(8, 10, 10, dtype=torch.long)
    y[:, 3:6, 3:6] = 1
    noise = torch.randn(8, 10, 10, generator=torch.Generator().manual_seed(0))
    shares = []
    for sharpness in (0.3, 0.8, 3.0):
        logit = sharpness * (2 * y - 1) + noise
        logits = torch.stack([torch.zeros_like(logit), logit], 1)
        shares.append(lb.evaluate(torch.nn.Identity(), [(logits, y)], likelihood=lb.Categorical(), samples=1))
    first, second, third = (found.metrics["marked_at_10"] for found in shares)
    assert first > second > third
    assert third == pytest.approx(0.9 * 0.09, abs=0.003)  # nine tenths of the lesions, and nothing else
