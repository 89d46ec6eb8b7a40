"""Predictions of models without random weights: one pass stands for any number of equal draws."""

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import NonFinite

LIKELIHOODS = [lb.Categorical(), lb.Bernoulli(), lb.Gaussian(0.5), lb.Gaussian("input")]


class Counting(lb.Categorical):
    """Classes, whose statistics count how often they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def statistics(self, output: Tensor, centre: Tensor | None) -> Tensor:
        self.calls += 1
        return super().statistics(output, centre)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("batch_size", [None, 2, 5])
def test_the_prediction_is_that_of_equal_draws(likelihood: lb.Likelihood, batch_size: int | None) -> None:
    model, x = network(), torch.randn(5, 3, 6, 7, dtype=torch.float64)
    result = lb.predict(model, x, likelihood=likelihood, samples=7, keep_samples=True, batch_size=batch_size)
    equal = lb.predict(lb.baselines.Ensemble(*[model] * 7), x, likelihood=likelihood, samples=7, keep_samples=True)
    for name in ("mean", "total", "aleatoric", "epistemic", "draws", "samples"):
        torch.testing.assert_close(getattr(result, name), getattr(equal, name), rtol=1e-12, atol=1e-12)
    assert result.samples is not None
    assert len(result.samples) == 7
    assert (result.standard_error == 0).all()


def test_statistics_are_computed_once_for_each_part_of_the_batch() -> None:
    model, x, likelihood = network(), torch.randn(5, 3, 6, 7, dtype=torch.float64), Counting()
    lb.predict(model, x, likelihood=likelihood, samples=32)
    assert likelihood.calls == 1
    lb.predict(model, x, likelihood=likelihood, samples="auto", batch_size=2)
    assert likelihood.calls == 4


def test_nan_is_an_error() -> None:
    with pytest.raises(NonFinite, match="NaN"):
        lb.predict(network(), torch.full((2, 3, 4, 4), torch.nan, dtype=torch.float64))


def test_kept_samples_can_be_written_to_one_by_one() -> None:
    result = lb.predict(network(), torch.zeros(1, 3, 2, 2, dtype=torch.float64), samples=3, keep_samples=True)
    assert result.samples is not None
    result.samples[0] = 0
    assert (result.samples[1] > 0).all()
