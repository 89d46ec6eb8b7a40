"""FLOPs of predictions and training steps, by hand."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._ops import sparse, sparse_products
from leanbayes._ops.sparse_choice import Kernels
from leanbayes._ops.sparse_products import counting
from leanbayes.baselines import Ensemble, MCDropout
from leanbayes.errors import InputError, NonFinite
from leanbayes.evaluation.cost import (
    cost_of,
    count_flops,
    forward_flops,
    training_flops,
)
from tests.evaluation.cost.cases import (
    BATCH,
    FIRST,
    LAST,
    WHOLE,
    Members,
    Unregistered,
    X,
    Y,
    network,
    sparse_network,
)


def test_forward_flops_of_a_convolutional_net_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Flatten(),
        nn.Linear(4 * 100, 2),
    )
    by_hand = 2 * 4 * (5 * 5 * 9 * 3 * 8 + 5 * 5 * 4 * 8 * 4 + 400 * 2)
    assert forward_flops(model, torch.ones(4, 3, 10, 10)) == by_hand


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_convolutions_cost_a_share_forward_and_backward(groups: int) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 8, 3, groups=groups), nn.AvgPool2d(4), nn.Flatten())
    x, y = torch.ones(2, 4, 6, 6), torch.zeros(2, dtype=torch.long)
    first, second = 2 * 2 * 36 * 4 * 4, 2 * 2 * 16 * 9 * 4 * 8 // groups
    assert forward_flops(model, x) == first + second
    assert training_flops(model, x, y, lb.Categorical()) == 2 * first + 3 * second


@pytest.mark.parametrize("train", [False, True])
def test_attention_is_counted_on_the_cpu(train: bool) -> None:
    q, k, v = (torch.ones(2, 3, length, 8, requires_grad=train) for length in (5, 7, 7))
    forward = 2 * (2 * 2 * 3 * 5 * 7 * 8)
    attend = nn.functional.scaled_dot_product_attention
    if train:  # five products in the fused backward: the scores again, and four gradients
        assert count_flops(lambda: attend(q, k, v).sum().backward()) == forward + 5 * forward // 2
    else:
        assert count_flops(lambda: attend(q, k, v)) == forward


def test_fused_transformer_layers_are_counted_in_eval_mode() -> None:
    model, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.ones(4, 5, 16)
    by_hand = 2 * 4 * 5 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * (2 * 4 * 5 * 5 * 16)
    assert forward_flops(model, x) == by_hand
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # a fused kernel, and single matrix products
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_are_counted(directions: int, dtype: torch.dtype) -> None:
    model = nn.LSTM(3, 5, batch_first=True, bidirectional=directions == 2, dtype=dtype)
    x = torch.ones(2, 4, 3, dtype=dtype, requires_grad=True)
    forward = directions * 2 * 2 * 4 * (4 * 5 * 3 + 4 * 5 * 5)
    with torch.no_grad():
        assert count_flops(lambda: model(x)) == forward
    assert count_flops(lambda: model(x)) == forward
    unneeded = 0 if dtype == torch.float32 else directions * 2 * 2 * 20 * 5  # of the first state, which is constant
    assert count_flops(lambda: model(x)[0].sum().backward()) == 3 * forward - unneeded


@pytest.mark.parametrize(("propagate", "products"), [("sample", 1), ("local", 2), ("flipout", 2)])
def test_flops_through_random_weights(propagate: str, products: int) -> None:
    bnn = lb.Bayesian(network(), propagate=propagate)
    assert forward_flops(bnn, X) == products * WHOLE
    step = products * (3 * WHOLE - FIRST)
    for samples in (1, 3):
        assert training_flops(bnn, X, Y, lb.Categorical(), samples=samples) == samples * step


@pytest.mark.parametrize("propagate", ["local", "flipout"])
def test_only_layers_with_random_weights_have_a_second_product(propagate: str) -> None:
    bnn = lb.Bayesian(network(), subspace=lb.layers("4"), propagate=propagate)
    assert forward_flops(bnn, X) == WHOLE + LAST


def test_what_draws_share_is_counted_once() -> None:
    model = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 4))
    bnn, x = lb.Bayesian(model, subspace=lb.layers("4")), torch.ones(64, 300)
    clean, random = 2 * 64 * (300 * 600 + 600 * 600), 2 * 64 * 600 * 4
    assert forward_flops(bnn, x) == clean + random
    assert forward_flops(bnn, x, draws=6) == clean + 6 * random


def test_plain_steps_and_predictors() -> None:
    step = 3 * WHOLE - FIRST
    plain, members = network(), Members(network(), lb.Bayesian(network()), network())
    assert forward_flops(plain, X, draws=9) == WHOLE  # it is sure of itself: one pass is all
    assert forward_flops(members, X) == 3 * WHOLE
    assert forward_flops(members, X, draws=2) == 2 * WHOLE
    assert forward_flops(Unregistered(plain), X, draws=4) == 4 * WHOLE
    assert training_flops(plain, X, Y, lb.Categorical()) == step
    assert training_flops(members, X, Y, lb.Categorical()) == 3 * step


def test_finding_the_fastest_way_is_not_counted() -> None:
    ensemble = Ensemble(network(), network(), network())
    assert forward_flops(ensemble, X) == 3 * WHOLE
    assert forward_flops(Ensemble(network(), network(), method="together"), X) == 2 * WHOLE
    small = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 2))
    images, one = torch.ones(2, 3, 6, 6), 2 * 2 * (16 * 9 * 3 * 4 + 64 * 2)
    stacked = Ensemble(small, copy.deepcopy(small), method="together")  # as one grouped convolution
    assert forward_flops(stacked, images) == 2 * one


def test_dropout_costs_a_pass_a_draw() -> None:
    dropout = MCDropout(network())
    assert forward_flops(dropout, X, draws=4) == 4 * WHOLE
    assert cost_of(dropout, X, Y, lb.Categorical()).flops_train == 3 * WHOLE - FIRST


def test_frozen_layers_save_their_gradients() -> None:
    model = network()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    assert training_flops(model, X, Y, lb.Categorical()) == WHOLE + LAST
    model.requires_grad_(False)
    with pytest.raises(InputError, match="requires a gradient"):
        training_flops(model, X, Y, lb.Categorical())


def test_flops_need_no_memory() -> None:
    with torch.device("meta"):
        assert forward_flops(network(), torch.ones(BATCH, 6)) == WHOLE


def test_counting_works_where_gradients_are_off_and_inputs_are_mappings() -> None:
    with torch.no_grad():
        assert training_flops(network(), {"input": X}, Y, lb.Categorical()) == 3 * WHOLE - FIRST


def state(model: nn.Module) -> dict[str, Any]:
    return {
        "tensors": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "places": {name: tensor.data_ptr() for name, tensor in model.state_dict().items()},
        "modes": {name: child.training for name, child in model.named_modules()},
        "grads": {name: p.grad if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a["modes"] == b["modes"]
    assert a["places"] == b["places"]
    for kind in ("tensors", "grads"):
        for name, tensor in a[kind].items():
            assert (tensor is b[kind][name] is None) or torch.equal(tensor, b[kind][name]), name


def everything_counted(model: nn.Module, y: torch.Tensor) -> None:
    forward_flops(model, X, draws=3)
    training_flops(model, X, y, lb.Categorical(), samples=2)
    cost_of(model, X, y, lb.Categorical())


@pytest.mark.parametrize("kind", ["plain", "sample", "local", "flipout", "members", "unregistered"])
def test_the_model_and_the_random_state_are_left_as_they_were(kind: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))

    inner: nn.Module = make()
    model = {
        "plain": lambda: inner,
        "members": lambda: Members(inner, lb.Bayesian(make())),
        "unregistered": lambda: Unregistered(inner),
    }.get(kind, lambda: lb.Bayesian(inner, propagate=kind))()
    watched = nn.ModuleList([model, inner])
    watched.train()
    inner[2].eval()  # type: ignore[index]
    next(inner.parameters()).grad = torch.ones_like(next(inner.parameters()))
    before, random = state(watched), torch.get_rng_state()
    everything_counted(model, Y)
    assert_same(before, state(watched))
    assert torch.equal(random, torch.get_rng_state())
    with pytest.raises((InputError, IndexError, NonFinite)):
        training_flops(model, X, torch.full((BATCH,), 99), lb.Categorical())
    with pytest.raises(RuntimeError):
        forward_flops(model, torch.ones(2, 5))
    assert_same(before, state(watched))
    assert torch.equal(random, torch.get_rng_state())


def test_training_is_counted_as_the_module_trains_itself() -> None:
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> "Frozen":
            super().train(mode)
            self[1].eval()
            return self

    seen = []
    model = Frozen(nn.Linear(6, 3), nn.BatchNorm1d(3)).eval()
    model[1].register_forward_hook(lambda part, *_: seen.append((part.training, model.training)))
    training_flops(model, X, Y, lb.Categorical())
    forward_flops(model, X)
    assert seen == [(False, True), (False, False)]


def test_held_statistics_let_a_batch_of_one_through() -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    assert training_flops(bnn, X[:1], Y[:1], lb.Categorical()) == 2 * (2 * 6 * 3)


def test_a_learned_noise_is_part_of_the_step() -> None:
    model = nn.Linear(6, 1).requires_grad_(False)  # the noise is all that is trained: no product in the backward pass
    targets = torch.zeros(BATCH, 1)
    assert training_flops(model, X, targets, lb.Gaussian("learned")) == 2 * BATCH * 6
    with pytest.raises(InputError, match="requires a gradient"):
        training_flops(model, X, targets, lb.Gaussian(1.0))


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(InputError, match="draws"):
        forward_flops(network(), X, draws=0)
    with pytest.raises(InputError, match="empty"):
        forward_flops(network(), X[:0])
    with pytest.raises(InputError, match="Bayesian"):
        forward_flops(nn.Sequential(lb.Bayesian(network())), X)


def kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sparse, "choose", lambda *_: Kernels(name, name, name))


@pytest.mark.parametrize("kernel", ["numba", "csr"])
def test_only_products_by_stored_entries_are_counted(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels(monkeypatch, kernel)
    plain, stored = lb.make_sparse(network(), 0.5), 2 * BATCH * (10 + 6)
    assert forward_flops(plain, X) == FIRST + stored
    assert training_flops(plain, X, Y, lb.Categorical()) == 2 * FIRST + 3 * stored
    bnn = sparse_network()
    assert forward_flops(bnn, X) == 2 * (FIRST + stored)
    assert training_flops(bnn, X, Y, lb.Categorical()) == 2 * (2 * FIRST + 3 * stored)
    sampled = lb.Bayesian(network(), subspace=lb.sparse(0.5), propagate="sample")
    assert forward_flops(sampled, X) == FIRST + stored


def test_where_the_dense_kernel_runs_all_products_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels(monkeypatch, "dense")
    plain = lb.make_sparse(network(), 0.5)
    assert forward_flops(plain, X) == WHOLE
    assert training_flops(plain, X, Y, lb.Categorical()) == 3 * WHOLE - FIRST


def test_flops_of_a_sparse_convolution_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels(monkeypatch, "numba")
    layer = lb.make_sparse(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False), 0.25, dense=())
    assert forward_flops(layer, torch.zeros(5, 4, 8, 8)) == 2 * 27 * 16 * 5


def test_counts_nest_and_end() -> None:
    x, index = torch.ones(4, 3), torch.tensor([0, 4])
    with counting() as outer:
        sparse.linear(x, index, (2, 3), torch.ones(2), kernel="numba")
        with counting() as inner:
            sparse.linear(x, index, (2, 3), torch.ones(2), kernel="csr")
        assert inner == [16]
    assert outer == [16, 16]
    sparse.linear(x, index, (2, 3), torch.ones(2), kernel="numba")
    assert outer == [16, 16]
    with pytest.raises(ZeroDivisionError), counting():
        raise ZeroDivisionError
    assert sparse_products._COUNTS == []
