"""MNIST by the share of random weights: verdicts, and where the random weights lie."""

from typing import Any

import numpy as np
import pytest
import torch

from leanbayes.bayesian import Bayesian
from leanbayes.subspace import top_k
from leanbayes_papers import Claim
from leanbayes_papers.studies import subnetworks_mnist_rates as mnist
from tests.papers.made_up import made_up


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (mnist.DECLINE, {("brier", "partial 1 %"): 0.1}, {("brier", "partial 95 %"): 0.1}),
        (mnist.ROTATED, {("accuracy@rotated", "ensemble"): 0.9}, {("accuracy@rotated", "vi"): 0.9}),
        (mnist.FOURFOLD, {("sigma", "vi"): 2.0}, {("sigma", "vi"): 9.0}),
        (mnist.MATCHES, {("flops", "ensemble"): 5.0}, {("ece", "ensemble"): 0.1}),
        (mnist.CENTRAL, {("central", "partial 5 %"): 0.9}, {("central", "partial 5 %"): 0.4}),
        (
            mnist.ON_PAR,
            {("ood/unseen/auroc", "ensemble"): 0.9, ("ood/unseen/auroc", "partial 10 %"): 0.895},
            {("ood/unseen/auroc", "ensemble"): 0.9},
        ),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("subnetworks-mnist-rates", "cpu", good)[claim.text] == "holds"
    assert made_up("subnetworks-mnist-rates", "cpu", bad)[claim.text] == "does not hold"


def test_central_counts_the_pixels_of_random_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    scores = {"1.weight": torch.zeros(3, 8, 8), "1.bias": torch.zeros(3)}
    scores["1.weight"][:, 2:6, 2:6] = 1.0
    scores["1.weight"][0, 0, :4] = 2.0
    bnn = Bayesian(
        model, subspace=top_k({n: s.reshape(3, -1) if n == "1.weight" else s for n, s in scores.items()}, k=16)
    )
    metrics: dict[str, float] = {}
    pixels = mnist._first_layer(bnn, metrics)["pixels"]
    assert metrics["central"] == pytest.approx(12 / 16)
    assert metrics["central by area"] == 0.25
    assert np.asarray(pixels).shape == (8, 8)
    assert np.asarray(pixels)[7].max() == 0
    sigma = bnn.weights()["1.weight"].variance().sqrt()
    assert metrics["sigma"] == pytest.approx(sigma[sigma > 0].mean().item())
