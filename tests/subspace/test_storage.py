"""Sparse storage inside a model: what is kept, under which names, and the way back to a dense model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import leanbayes as lb
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.subspace import dense_name, densify, scatters, sparse_state
from leanbayes.subspace.storage import keep_layout, make_dense, sparsify
from tests.subspace.cases import batch, close, moved, network


def index_of(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int32)


def test_the_parameter_stays_the_object_it_was_and_holds_the_stored_values() -> None:
    layer = nn.Linear(3, 2)
    own, values = layer.weight, layer.weight.detach().clone()
    own.grad = torch.ones(2, 3)
    scatter = sparsify(layer, index_of(0, 4))
    assert layer.parametrizations.weight.original is own
    assert own.grad is None
    assert isinstance(own, nn.Parameter)
    assert torch.equal(own, values.flatten()[[0, 4]])
    assert own.untyped_storage().nbytes() == 8
    assert isinstance(layer.weight, SparseTensor)
    assert (scatter.size, str(scatter)) == (6, "Scatter(2 of 6)")
    assert isinstance(layer, nn.Linear)
    assert (layer.in_features, layer.out_features) == (3, 2)


def test_a_dense_weight_may_be_assigned() -> None:
    layer = nn.Linear(3, 2)
    sparsify(layer, index_of(0, 4))
    layer.weight = torch.arange(6.0).view(2, 3)
    assert layer.parametrizations.weight.original.tolist() == [0, 4]
    assert layer.weight.dense().tolist() == [[0, 0, 0], [0, 4, 0]]


def test_names() -> None:
    model = network("conv2d", norm=True)
    names = [name for name, _ in model.named_parameters()]
    lb.make_sparse(model, 0.5)
    assert {dense_name(name) for name, _ in model.named_parameters()} == set(names)
    assert [dense_name(name) for name in scatters(model)] == ["3.weight", "6.weight"]
    alone = nn.Linear(3, 3)
    lb.make_sparse(alone, 0.5, dense=())
    assert list(scatters(alone)) == ["parametrizations.weight.original"]
    assert dense_name("parametrizations.weight.original") == "weight"
    assert dense_name("original") == "original"
    assert dense_name("0.parametrizations.bias.original") == "0.parametrizations.bias.original"


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_densify_gives_a_plain_model_and_leaves_the_sparse_one_alone(kind: str) -> None:
    bnn = moved(lb.Bayesian(network(kind, norm=True), subspace=lb.sparse(0.4, dense=())))
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    plain, untouched = bnn.densify(), network(kind, norm=True)
    assert [type(module) for module in plain.modules()] == [type(module) for module in untouched.modules()]
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in untouched.named_parameters()]
    assert list(plain.state_dict()) == list(untouched.state_dict())
    assert all(type(parameter) is nn.Parameter and parameter.requires_grad for parameter in plain.parameters())
    assert not scatters(plain)
    assert scatters(bnn.model)
    x, _ = batch(kind)
    with bnn.at_mean():
        close(plain(x), bnn(x))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    for name, value in bnn.state_dict().items():
        if "running" not in name and "tracked" not in name:  # the pass in training mode counted
            assert torch.equal(value, before[name]), name
    second = lb.densify(bnn.model)
    assert sum(int((p == 0).sum()) for p in second.parameters()) >= 0.5 * second[0].weight.numel()


def test_densify_of_a_dense_model_is_a_copy() -> None:
    model = network("linear")
    plain = densify(model)
    assert plain is not model
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_a_copy_and_its_original_are_made_dense_apart() -> None:
    """They share classes, which torch's own way of removing a parametrization would change."""
    one = lb.make_sparse(network("linear"), 0.4)
    two, x = copy.deepcopy(one), batch("linear")[0]
    expected = one(x)
    make_dense(one, {})
    assert scatters(two)
    close(two(x), expected)
    close(one(x), expected)
    make_dense(two, {})
    close(two(x), expected)


def test_other_parametrizations_stay() -> None:
    layer = nn.Linear(4, 4)
    sparsify(layer, index_of(1, 5, 7))

    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    parametrize.register_parametrization(layer, "bias", Double())
    sibling, x = copy.deepcopy(layer), torch.randn(3, 4)
    expected = layer(x)
    make_dense(layer, {})
    assert not parametrize.is_parametrized(layer, "weight")
    assert parametrize.is_parametrized(layer, "bias")
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(sibling(x), expected)
    assert list(scatters(sibling))


def test_some_may_stay_sparse() -> None:
    model = lb.make_sparse(network("conv2d", norm=True), 0.4, dense=())
    names = list(scatters(model))
    x, kind = batch("conv2d")[0], type(model[1])
    expected = model.eval()(x)
    make_dense(model, {"3.weight": torch.zeros_like(model[3].weight.dense())}, stay=names[:1])
    assert list(scatters(model)) == names[:1]
    assert not model[3].weight.any()
    assert type(model[1]) is kind
    assert not torch.equal(model(x), expected)
    make_dense(model, {})
    assert type(model[1]) is nn.BatchNorm2d


def test_the_sparse_state_is_the_dense_state_without_zeros() -> None:
    bnn = moved(lb.Bayesian(network("conv3d", norm=True), subspace=lb.sparse(0.3)))
    result, dense = bnn.sparse_state(), bnn.densify().state_dict()
    assert list(result.keys() ^ dense.keys()) == []
    for name, value in result.items():
        assert not value.requires_grad
        if value.is_sparse:
            assert value.is_coalesced()
            assert value.values().numel() == round(0.3 * dense[name].numel())
            torch.sparse_coo_tensor(value.indices(), value.values(), value.shape, check_invariants=True)
            value = value.to_dense()
        assert torch.equal(value, dense[name])
    assert sum(value.is_sparse for value in result.values()) == 2
    again = network("conv3d", norm=True)
    again.load_state_dict({name: v.to_dense() if v.is_sparse else v for name, v in result.items()})
    alone = nn.Linear(3, 3)
    lb.make_sparse(alone, 0.5, dense=())
    assert set(sparse_state(alone)) == {"weight", "bias"}


def test_state_of_another_index_is_followed() -> None:
    """What kernels know of an index is not used for another one that was written in its place."""
    one, two = (lb.make_sparse(network("conv2d"), 0.3, seed=seed) for seed in (0, 1))
    x, _ = batch("conv2d", 64)
    assert not torch.equal(one(x), two(x))
    two.load_state_dict(one.state_dict())
    close(two(x), one(x))


def test_moving_between_types() -> None:
    model = lb.make_sparse(network("conv2d"), 0.3)
    x, _ = batch("conv2d")
    expected = model(x)
    torch.testing.assert_close(model.float()(x.float()).double(), expected, rtol=1e-4, atol=1e-5)
    assert {scatter.index.dtype for scatter in scatters(model).values()} == {torch.int32}
    assert model.to("meta")[0].weight.device.type == "meta"


def test_layouts_change_only_batch_norms() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.Linear(2, 2))
    before = [type(module) for module in model]
    keep_layout(model)
    keep_layout(model)
    assert [type(module) for module in model][1:] == before[1:]
    assert isinstance(model[0], nn.BatchNorm1d)
    assert type(model[0]).__name__ == "BatchNorm1d"
    assert type(model[0]) is not nn.BatchNorm1d
    assert model[0](torch.randn(3, 2)).shape == (3, 2)
