"""The costs of one batch as a record."""

import json
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import torch

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.evaluation.cost import (
    Cost,
    cost_of,
    count_parameters,
    training_flops,
)
from tests.evaluation.cost.cases import (
    LAST,
    WHOLE,
    X,
    Y,
    network,
    sparse_network,
)


def test_all_costs_of_one_batch() -> None:
    bnn = lb.Bayesian(network(), subspace=lb.layers("4"), propagate="local")
    result = cost_of(bnn, X, Y, lb.Categorical(), samples=2)
    size = count_parameters(bnn)
    assert (result.parameters, result.random, result.bytes) == (35 + 24 + 15 + 15, 15, size.bytes)
    assert result.flops_forward == WHOLE + LAST
    assert result.flops_train == training_flops(bnn, X, Y, lb.Categorical(), samples=2)
    assert result.peak_memory is not None
    assert result.peak_memory >= 4 * size.trained  # the gradients at least
    assert (result.train_seconds, result.predict_seconds, result.flops_formula) == (None, None, None)
    timed = replace(result, train_seconds=1.5, flops_formula=14.0 * WHOLE)
    assert Cost(**json.loads(json.dumps(asdict(timed)))) == timed


def test_costs_are_frozen_and_checked() -> None:
    with pytest.raises(FrozenInstanceError):
        Cost(1, 0, 4).bytes = 3  # type: ignore[misc]
    for wrong in ({"bytes": -1}, {"train_seconds": float("nan")}, {"flops_formula": float("inf")}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            replace(Cost(1, 0, 4), **wrong)  # type: ignore[arg-type]


def test_costs_of_a_sparse_batch_leave_the_model_as_it_was() -> None:
    bnn = sparse_network()
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    result = cost_of(bnn, X, Y, lb.Categorical())
    assert (result.parameters, result.random, result.bytes) == (116, 58, 4 * (116 + 16))
    assert result.density == 58 / 74
    assert list(bnn.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
