"""VDP++: the likelihoods of its training."""

import dataclasses

import pytest
import torch

import leanbayes as lb
from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def test_the_likelihoods_of_vdp_are_scored_in_training_and_the_tasks_own_predicts() -> None:
    task, weights = tasks.classes(), []
    for name in ("expected", "mean", "moment"):
        trained = prepare(parse(f"vdp:likelihood={name}"), task, Run(dataclasses.replace(BUDGET, epochs=2)))
        assert isinstance(trained.likelihood, lb.Categorical)
        weights.append(trained.predictor.model[0].weight)
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    with pytest.raises(lb.errors.InputError, match="cross-entropy needs logits"):
        prepare(parse("vdp:likelihood=mean"), tasks.regression(), Run(BUDGET))
    trained = prepare(parse("vdp:likelihood=moment"), tasks.regression(), Run(BUDGET))
    assert trained.likelihood.noise < 0.9  # it is learnt, from 1
