"""Model cards say what is random, and show the figures that were measured and no others."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.integrations.huggingface import model_card
from leanbayes.metrics.metric import metric_named
from tests.integrations.matrix import shows

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def measured(bnn: lb.Bayesian) -> lb.evaluation.Evaluation:
    source = torch.Generator().manual_seed(1)
    return lb.evaluate(bnn, [(X, Y)], likelihood=lb.Categorical(), samples=8, generator=source)


@shows("Hugging Face Hub", "A generated model card shows the uncertainty figures that lb.evaluate measured.")
def test_the_card_shows_every_figure_that_was_measured() -> None:
    bnn = lb.Bayesian(nn.Linear(3, 2), subspace=lb.layers("weight"), propagate="local")
    evaluation = measured(bnn)
    card = model_card(bnn, evaluation=evaluation, data="forty points", name="points", tags=["medical"])
    assert len(evaluation.metrics) > 3
    for name, value in evaluation.metrics.items():
        assert f"| `{name}` | {value:.4g} | {metric_named(name).meaning}" in card.text
    assert "Measured on 40 examples of forty points." in card.text
    assert "6 of 8 (75.00%)" in card.text
    assert "`Local()`" in card.text
    results = card.data.eval_results
    assert {result.metric_type: result.metric_value for result in results} == evaluation.metrics
    assert all(math.isfinite(result.metric_value) for result in results)
    assert {"leanbayes", "medical"} <= set(card.data.tags)
    assert card.data.library_name == "leanbayes"


def test_a_card_without_figures_says_so() -> None:
    card = model_card(lb.Bayesian(nn.Linear(3, 2)))
    assert "Nobody has measured the uncertainty of this model yet." in card.text
    assert "| metric |" not in card.text
    assert card.data.eval_results is None


def test_bad_input_is_named() -> None:
    with pytest.raises(lb.errors.InputError, match=r"about a lb\.Bayesian, got a Linear"):
        model_card(nn.Linear(1, 1))
    with pytest.raises(lb.errors.InputError, match=r"what lb\.evaluate returns, got a dict"):
        model_card(lb.Bayesian(nn.Linear(1, 1)), evaluation={"nll": 1.0})
