"""The likelihood of labels against torch.distributions in float64, and against draws that are all kept."""

import numpy as np
import pytest
import torch
from torch import Tensor

import leanbayes as lb
from tests.likelihood.cases import entropy, from_draws, normal


@pytest.mark.parametrize("shape", [(6,), (6, 3), (2, 3, 4, 4)])
def test_bernoulli_nll_is_that_of_torch_distributions(shape: tuple[int, ...]) -> None:
    logits = 3 * normal(*shape)
    target = torch.randint(0, 2, shape)
    expected = -torch.distributions.Bernoulli(logits=logits).log_prob(target.double()).sum()
    for kind in (torch.long, torch.bool, torch.float64, torch.float32):
        torch.testing.assert_close(lb.Bernoulli().nll(logits, target.to(kind)), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weights", [torch.tensor([0.5, 2.0, 7.0]), torch.tensor(3.0)])
def test_positive_weights_count_the_positive_terms(weights: Tensor) -> None:
    logits, target = normal(5, 3), torch.randint(0, 2, (5, 3)).double()
    law = torch.distributions.Bernoulli(logits=logits)
    factor = torch.where(target == 1, weights.double().expand(5, 3), 1.0)
    expected = -(factor * law.log_prob(target)).sum()
    torch.testing.assert_close(
        lb.Bernoulli(positive_weights=weights).double().nll(logits, target), expected, rtol=1e-6, atol=0
    )


def test_bernoulli_uncertainty_is_that_of_the_stacked_draws() -> None:
    outputs = [2 * normal(5, 3) for _ in range(9)]
    result = from_draws(lb.Bernoulli(), outputs)
    p = np.stack([torch.sigmoid(o).numpy() for o in outputs])
    both = np.stack([p, 1 - p])
    np.testing.assert_allclose(result.mean, p.mean(0), rtol=1e-12)
    np.testing.assert_allclose(result.total, entropy(both.mean(1), 0), rtol=1e-12)
    np.testing.assert_allclose(result.aleatoric, entropy(both, 0).mean(0), rtol=1e-12)
    divergence = (both * np.log(both / both.mean(1, keepdims=True))).sum(0).mean(0)
    np.testing.assert_allclose(result.epistemic, divergence, rtol=1e-9)
