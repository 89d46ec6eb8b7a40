"""Costs against counts made by hand."""

import copy
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._ops import sparse, sparse_products
from leanbayes._ops.sparse_choice import Kernels
from leanbayes._ops.sparse_products import counting
from leanbayes.baselines import Ensemble, MCDropout
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.evaluation import cost as module
from leanbayes.evaluation.cost import (
    Cost,
    Parameters,
    cost_of,
    count_flops,
    count_parameters,
    formula_flops,
    forward_flops,
    measure,
    peak_memory,
    table_1,
    training_flops,
)
from leanbayes.prediction import Predictor, outputs_of


class Members(Predictor):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.inside = nn.ModuleList(members)
        self.members = len(members)

    def outputs(self, x: Any, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        for member in list(self.inside)[:draws]:
            yield from outputs_of(member, x, 1, generator)

    def parts(self) -> dict[str, nn.Module]:
        return {str(i): member for i, member in enumerate(self.inside)}


class Unregistered(Members):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = None
        self.secret = members

    def parts(self) -> dict[str, nn.Module]:
        return {str(i): member for i, member in enumerate(self.secret)}

    def outputs(self, x: Any, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        for _ in range(draws):
            yield self.secret[0](x)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


BATCH = 7
FIRST, MIDDLE, LAST = (2 * BATCH * n for n in (6 * 5, 5 * 4, 4 * 3))
WHOLE = FIRST + MIDDLE + LAST
X, Y = torch.ones(BATCH, 6), torch.zeros(BATCH, dtype=torch.long)


def test_numbers_of_a_partial_model_by_kind() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    model[0].bias.requires_grad_(False)
    bnn = lb.Bayesian(model, subspace=lb.random_k(rate=0.2))
    found, k = count_parameters(bnn), bnn.summary().random
    assert 0 < k < 45
    indices = [parts.index for _, parts in bnn.parts()]
    position_bytes = sum(k * index.element_size() for k, index in ((len(i), i) for i in indices if i is not None))
    positions = sum(len(index) for index in indices if index is not None)
    assert found == Parameters(
        means=45, scales=k, positions=positions, buffers=11, bytes=45 * 4 + k * 4 + position_bytes + 10 * 4 + 8
    )
    assert found.trained == 45 + k


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


@pytest.mark.parametrize(
    ("members", "samples", "rate", "pretraining"), [*itertools.product((1, 5), (1, 10), (0.0, 0.01, 1.0), (0, 30))]
)
def test_table_1_of_001(members: int, samples: int, rate: float, pretraining: int) -> None:
    def row(method: str) -> tuple[float, float, float]:
        found = table_1(method, members=members, samples=samples, rate=rate, pretraining_epochs=pretraining)
        return found.parameters, found.flops, found.memory

    assert row("deterministic") == (1, 3, 1)
    assert row("ensemble") == (members, 3 * members, members)
    assert row("vi") == (2, 2 * samples + 2 * 2, 2)
    assert row("partial") == (
        1 + rate,
        pytest.approx((1 + rate) * samples + 2 * (1 + rate) + 3 * pretraining, rel=1e-12),
        2,
    )


def test_the_whole_training_in_one_unit() -> None:
    forward, epochs, pretraining = 1e6, 20, 50
    total = sum(3 * forward for _ in range(pretraining)) + sum(1.05 * 7 * forward for _ in range(epochs))
    found = formula_flops("partial", forward, epochs=epochs, pretraining_epochs=pretraining, rate=0.05, samples=5)
    assert found == pytest.approx(total, rel=1e-12)
    printed = table_1("partial", rate=0.05, samples=5, pretraining_epochs=pretraining).flops * forward
    once = formula_flops("partial", forward, epochs=1, pretraining_epochs=pretraining, rate=0.05, samples=5)
    assert once == pytest.approx(printed, rel=1e-12)
    assert formula_flops("ensemble", 10, epochs=4, members=3) == 3 * 3 * 10 * 4


def test_formulas_refuse_what_they_do_not_know() -> None:
    with pytest.raises(UnknownName, match="ensemble"):
        table_1("swag")
    for settings in ({"rate": 1.5}, {"rate": float("nan")}, {"members": 0}, {"samples": 0}, {"pretraining_epochs": -1}):
        with pytest.raises(InputError, match="at least"):
            table_1("partial", **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="forward"):
        formula_flops("vi", float("nan"))


def test_times_are_the_best_and_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([9.0, 3.0, 4.0, 1.0, 2.0])
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(durations)

    found = measure(work, repeats=5)
    assert (found.best, found.median, found.repeats) == (1.0, 3.0, 5)
    assert next(durations, None) is None
    with pytest.raises(InputError, match="repeats"):
        measure(work, repeats=0)


class FakeCuda:
    """Work is queued by `launch` and done only by `synchronize`; allocations have a running peak."""

    def __init__(self) -> None:
        self.clock, self.queued, self.now, self.peak = 0.0, 0.0, 1000, 9000

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: setattr(self, "peak", self.now))
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self, device: object = None) -> None:
        self.clock, self.queued = self.clock + self.queued, 0.0

    def launch(self) -> None:
        self.queued += 2.0
        self.now += 500
        self.peak = max(self.peak, self.now)
        self.now -= 400


def test_cuda_is_waited_for_and_its_peak_is_above_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    monkeypatch.setattr(module.time, "perf_counter", lambda: cuda.clock)
    cuda.launch()  # earlier work that must not be charged to the first call
    assert measure(cuda.launch, repeats=2).median == 2.0
    assert peak_memory(lambda: [cuda.launch(), cuda.launch()], "cuda") == 600


def test_peak_memory_of_known_allocations() -> None:
    def work() -> None:
        first = torch.empty(1_000_000, dtype=torch.uint8)
        del first
        second, third = torch.empty(2_000_000, dtype=torch.uint8), torch.empty(500_000, dtype=torch.uint8)
        del second, third
        torch.empty(2_400_000, dtype=torch.uint8)

    assert [peak_memory(work) for _ in range(3)] == [2_500_000] * 3
    assert peak_memory(lambda: None) == 0


def test_measuring_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    peak_memory(lambda: torch.empty(10))
    count_flops(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert capfd.readouterr() == ("", "")


def test_peak_memory_is_above_what_was_there_and_sees_what_stays() -> None:
    there, kept = torch.empty(3_000_000, dtype=torch.uint8), []
    assert peak_memory(lambda: kept.append(torch.empty(1_000_000, dtype=torch.uint8))) == 1_000_000
    assert peak_memory(lambda: kept.append(there[:10])) == 0


SYSTEM = """
from pathlib import Path
import torch
from leanbayes.evaluation.cost import peak_memory

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

def work():
    before = pages()
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    resident.append((pages() - before) * 4096)

resident = []
print(peak_memory(work), resident[0])
"""


def test_peak_memory_agrees_with_what_the_system_says() -> None:
    """In a process of its own: one that has freed much memory does not ask the system for more."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc on this system")
    done = subprocess.run([sys.executable, "-c", SYSTEM], capture_output=True, text=True, check=True)
    peak, resident = map(int, done.stdout.split())
    assert peak == 64 * 2**20
    assert resident == pytest.approx(64 * 2**20, rel=0.02)


def test_peak_memory_of_a_backward_pass_by_hand() -> None:
    weight = torch.ones(1000, 1000, requires_grad=True)
    x = torch.ones(1000, 1000)

    def work() -> None:
        y = (x @ weight).sin()  # keeps x @ weight for the backward pass
        torch.autograd.grad(y.sum(), weight)

    # At its peak: the product, y, and the gradients of y (expanded, no memory), of the product and of the weight.
    block = 4_000_000
    assert 4 * block <= peak_memory(work) <= 5 * block + 1000


def test_a_failure_inside_leaves_no_profiler_behind() -> None:
    def fail() -> None:
        raise KeyError("inside")

    for _ in range(2):
        with pytest.raises(KeyError):
            peak_memory(fail)
        with pytest.raises(KeyError):
            count_flops(fail)
    assert torch.backends.mha.get_fastpath_enabled()
    assert peak_memory(lambda: torch.empty(100, dtype=torch.uint8)) == 100
    with pytest.raises(InputError, match="meta"):
        peak_memory(fail, "meta")


def test_all_costs_of_one_batch() -> None:
    bnn = lb.Bayesian(network(), subspace=lb.layers("4"), propagate="local")
    found = cost_of(bnn, X, Y, lb.Categorical(), samples=2)
    size = count_parameters(bnn)
    assert (found.parameters, found.random, found.bytes) == (35 + 24 + 15 + 15, 15, size.bytes)
    assert found.flops_forward == WHOLE + LAST
    assert found.flops_train == training_flops(bnn, X, Y, lb.Categorical(), samples=2)
    assert found.peak_memory is not None
    assert found.peak_memory >= 4 * size.trained  # the gradients at least
    assert (found.train_seconds, found.predict_seconds, found.flops_formula) == (None, None, None)
    timed = replace(found, train_seconds=1.5, flops_formula=table_1("vi").flops * WHOLE)
    assert Cost(**json.loads(json.dumps(asdict(timed)))) == timed


def test_costs_are_frozen_and_checked() -> None:
    with pytest.raises(FrozenInstanceError):
        Cost(1, 0, 4).bytes = 3  # type: ignore[misc]
    for wrong in ({"bytes": -1}, {"train_seconds": float("nan")}, {"flops_formula": float("inf")}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            replace(Cost(1, 0, 4), **wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- sparse models


def sparse_network(density: float = 0.5, **options: Any) -> lb.Bayesian:
    return lb.Bayesian(network(), subspace=lb.sparse(density, **options), propagate="local")


def kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sparse, "choose", lambda *_: Kernels(name, name, name))


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


def test_costs_of_a_sparse_batch_leave_the_model_as_it_was() -> None:
    bnn = sparse_network()
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    found = cost_of(bnn, X, Y, lb.Categorical())
    assert (found.parameters, found.random, found.bytes) == (116, 58, 4 * (116 + 16))
    assert found.density == 58 / 74
    assert list(bnn.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
