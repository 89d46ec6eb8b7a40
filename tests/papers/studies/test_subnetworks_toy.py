"""Regression on y = x³: verdicts, and the metrics of a network that knows the truth."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from leanbayes.lab.data import load_data
from leanbayes_papers import STUDIES, Claim, Job
from leanbayes_papers.studies import subnetworks_toy as toy
from leanbayes_papers.training import train
from tests.papers.made_up import made_up


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (toy.CAPTURES, {("covered@outside", "deterministic"): 0.1}, {}),
        (toy.GROWS, {("epistemic deviation@outside", "partial 40 %"): 5.0}, {}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("subnetworks-toy", "cpu", good)[claim.text] == "holds"
    assert made_up("subnetworks-toy", "cpu", bad)[claim.text] == "does not hold"


def test_toy_metrics_of_a_network_that_knows_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the truth and a deviation of 3 everywhere, errors are 0, all is covered, and nothing is epistemic."""
    source = load_data("cubic", seed=0)
    plan = source.preparation

    class Truth(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x * plan.std[0] + plan.mean[0]) ** 3
            scale = plan.target_std[0]
            return torch.cat([(y - plan.target_mean[0]) / scale, torch.full_like(y, 2 * float(np.log(3 / scale)))], 1)

    def trained(job: Job, size: Any, task: Any) -> Any:
        return replace(train(job, size, task)[0], predictor=Truth()), None

    monkeypatch.setattr(toy, "train", trained)
    size = STUDIES["subnetworks-toy"].sizes["smoke"]
    result = toy._run(Job("a", "deterministic", "cubic", 0, epochs=1), size, None)
    metrics = result["metrics"]
    for where in ("inside", "outside"):
        assert metrics[f"rmse@{where}"] == pytest.approx(0, abs=1e-3)
        assert metrics[f"deviation@{where}"] == pytest.approx(3, rel=1e-4)
        assert metrics[f"covered@{where}"] == 1
        assert metrics[f"epistemic deviation@{where}"] == 0
    assert result["mean"][0] == pytest.approx(-216, abs=1e-2)
