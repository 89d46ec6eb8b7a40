"""Sizes at equal coverage equal those of all predictions sorted at once."""

import pytest
import torch

import leanbayes as lb
from leanbayes.metrics import metric_named


def test_the_size_is_that_of_sorted_predictions() -> None:
    source = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 6, generator=source)
    y = torch.distributions.Categorical(logits=0.5 * logits).sample()
    y[:20] = -100
    batches = list(zip(logits.split(77), y.split(77), strict=True))
    found = lb.evaluate(torch.nn.Identity(), batches, likelihood=lb.Categorical(), samples=1)
    p = torch.softmax(logits, 1)[20:]
    of_truth = p.gather(1, y[20:, None])[:, 0].sort(descending=True).values
    threshold = of_truth[432 - 1]  # 90 % of 480
    exact = (p >= threshold).double().sum(1).mean().item()
    assert found.metrics["size_at_90"] == pytest.approx(exact, abs=found.bounds["size_at_90"] + 1e-9)
    assert found.bounds["size_at_90"] < 0.02
    assert metric_named("size_at_90").better == "low"


def test_sharper_right_predictions_have_smaller_sets() -> None:
    source = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 6, generator=source)
    y = torch.distributions.Categorical(logits=logits).sample()
    noisy = logits + 2 * torch.randn(2000, 6, generator=source)
    sizes = [
        lb.evaluate(torch.nn.Identity(), [(x, y)], likelihood=lb.Categorical(), samples=1).metrics["size_at_90"]
        for x in (logits, noisy)
    ]
    assert sizes[0] < 0.9 * sizes[1]


def test_the_width_is_that_of_sorted_distances() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=source)
    y = x[:, :1] + 2 * (x[:, 1:] / 2).exp() * torch.randn(400, 1, generator=source)
    batches = list(zip(x.split(90), y.split(90), strict=True))
    found = lb.evaluate(torch.nn.Identity(), batches, likelihood=lb.Gaussian("input"), samples=1)
    deviation = (x[:, 1] / 2).exp()
    factor = ((y - x[:, :1])[:, 0].abs() / deviation).sort().values[360 - 1]
    exact = (2 * factor * deviation.mean()).item()
    assert found.metrics["width_at_90"] == pytest.approx(exact, rel=2e-3)
    assert found.metrics["width_at_90"] >= exact * (1 - 1e-5)


def test_the_names_of_conformal_metrics() -> None:
    assert metric_named("conformal_coverage/low").title == "Conformal coverage, low"
    assert metric_named("conformal_size").better is None  # small sets that cover too little are not better
