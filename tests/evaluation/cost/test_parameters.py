"""How many numbers a model keeps, by hand."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.evaluation.cost import (
    Parameters,
    count_parameters,
)
from tests.evaluation.cost.cases import (
    Members,
    Unregistered,
    network,
    sparse_network,
)


def test_numbers_of_a_partial_model_by_kind() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    model[0].bias.requires_grad_(False)
    bnn = lb.Bayesian(model, subspace=lb.random_k(rate=0.2))
    result, k = count_parameters(bnn), bnn.summary().random
    assert 0 < k < 45
    indices = [parts.index for _, parts in bnn.parts()]
    position_bytes = sum(k * index.element_size() for k, index in ((len(i), i) for i in indices if i is not None))
    positions = sum(len(index) for index in indices if index is not None)
    assert result == Parameters(
        means=45, scales=k, positions=positions, buffers=11, bytes=45 * 4 + k * 4 + position_bytes + 10 * 4 + 8
    )
    assert result.trained == 45 + k


def test_what_a_prior_remembers_is_a_buffer() -> None:
    bnn = lb.Bayesian(nn.Linear(3, 2), prior=lb.priors.CentredPrior(1.0))
    remembered = sum(parts.memory.numel() for _, parts in bnn.parts() if parts.memory is not None)
    assert remembered == 8
    assert count_parameters(bnn) == Parameters(means=8, scales=8, buffers=8, bytes=24 * 4)


def test_bytes_follow_the_dtype() -> None:
    assert count_parameters(nn.Linear(3, 2, dtype=torch.bfloat16)).bytes == 16
    assert count_parameters(nn.Linear(3, 2, dtype=torch.float64)).bytes == 64


def test_ensembles_are_counted_through_and_shared_members_once() -> None:
    one, other = lb.Bayesian(nn.Linear(3, 2)), nn.Linear(3, 2)
    assert count_parameters(Members(one, other)) == Parameters(means=16, scales=8, bytes=96)
    assert count_parameters(Members(one, Members(one, other), other)) == Parameters(means=16, scales=8, bytes=96)
    shared = nn.Linear(3, 2)
    assert count_parameters(Members(lb.Bayesian(shared), lb.Bayesian(shared))).means == 8
    assert count_parameters(Unregistered(one, other)) == Parameters(means=16, scales=8, bytes=96)


def test_tied_weights_and_views_of_one_memory_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model[2].weight = nn.Parameter(model[0].weight.detach().t())
    assert count_parameters(model) == Parameters(means=16, bytes=64)


def test_parts_of_one_memory_count_each() -> None:
    flat = torch.zeros(12)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 4, bias=False))
    model[0].weight, model[1].weight = nn.Parameter(flat[:4].view(2, 2)), nn.Parameter(flat[4:].view(4, 2))
    assert count_parameters(model) == Parameters(means=12, bytes=48)


def test_a_model_without_memory_or_weights_can_be_counted() -> None:
    with torch.device("meta"):
        assert count_parameters(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))).means == 24
    assert count_parameters(nn.ReLU()) == Parameters()


def test_a_shape_that_is_not_known_yet_is_refused() -> None:
    model = nn.LazyLinear(3)
    with pytest.raises(InputError, match="one batch"):
        count_parameters(model)


def test_numbers_of_a_sparse_model_by_kind() -> None:
    """The first layer is dense, of the others half is stored: 10 and 6 values, as many scales and positions."""
    bnn = sparse_network()
    means = 6 * 5 + 5 + 10 + 4 + 6 + 3
    assert count_parameters(bnn) == Parameters(means, means, 16, 0, 4 * (2 * means + 16), zeros=16)
    part = lb.Bayesian(network(), subspace=lb.sparse(0.5, inside=lb.layers("2.weight")))
    assert count_parameters(part) == Parameters(means, 10, 16, 0, 4 * (means + 10 + 16), zeros=16)
    plain = lb.make_sparse(network(), 0.5)
    assert count_parameters(plain) == Parameters(means, 0, 16, 0, 4 * (means + 16), zeros=16)
    assert count_parameters(plain).density == means / (means + 16)
