"""Rewiring in training: exact density at every step, what is kept is kept, and gradients against dense autograd."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes._ops import sparse as products
from leanbayes._ops.sparse_block_plan import in_blocks
from leanbayes._ops.sparse_choice import Kernels
from leanbayes.subspace import Move, removal_scores, scatters
from leanbayes.train import rewire as rewire_module
from leanbayes.train.rewire import Rewirer
from tests.subspace.cases import batch, dense_twin, moved, network
from tests.train.rewire_script import train

RIGL = lb.Rewire("magnitude", every=1)
SCRIPT = Path(__file__).parent / "rewire_script.py"


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def task(n: int = 60) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(n, 2, 6, 6, generator=seeded())
    y = (x.mean((1, 2, 3)) > 0).long()
    return list(zip(x.split(10), y.split(10), strict=True))


def small_cnn() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Flatten(), nn.Linear(72, 3)),
    )


def sparse_model(bayesian: bool, **options: Any) -> nn.Module:
    if not bayesian:
        return lb.make_sparse(small_cnn(), 0.3)
    return lb.Bayesian(small_cnn(), subspace=lb.sparse(0.3), **({"propagate": "local"} | options))


def inner(model: nn.Module) -> nn.Module:
    return model.model if isinstance(model, lb.Bayesian) else model


def indices(model: nn.Module) -> dict[str, Tensor]:
    return {name: scatter.index.clone() for name, scatter in scatters(inner(model)).items()}


def state_of(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Every number before and after a move: of the model, and of the optimizer by parameter."""
    return {
        "model": {name: value.clone() for name, value in model.state_dict().items()},
        "optimizer": {
            name: {key: v.clone() for key, v in optimizer.state.get(p, {}).items() if isinstance(v, Tensor)}
            for name, p in model.named_parameters()
        },
    }


# ---------------------------------------------------------------- a training, watched at every step


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    ("bayesian", "how"),
    [
        (True, lb.Rewire(every=2)),
        (True, lb.Rewire(every=2, removal="snr_exponential", addition="mean", new_scale=0.003, rate=0.8)),
        (True, lb.Rewire(every=3, removal="expected_magnitude", addition="draws", draws=2)),
        (False, lb.Rewire(every=2, removal="magnitude")),
    ],
    ids=["draw", "mean", "draws", "plain"],
)
def test_what_a_move_changes_and_what_it_does_not(
    optimizer: str, bayesian: bool, how: lb.Rewire, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sparse_model(bayesian, prior=lb.priors.CentredPrior(0.1)) if bayesian else sparse_model(bayesian)
    size = {name: len(index) for name, index in indices(model).items()}
    seen: list[int] = []
    passes: list[int] = []
    plain_move = Rewirer.move

    def check_density(*_: Any) -> None:
        passes.append(1)
        for name, index in indices(model).items():
            assert len(index) == size[name] == dict(inner(model).named_parameters())[name].numel()
            assert (index.diff() > 0).all()
            assert index[0] >= 0
            assert index[-1] < scatters(inner(model))[name].size

    def move(self: Rewirer, loss: Any, share: float) -> dict[str, Move]:
        before, places = state_of(model, self.optimizer), indices(model)
        moves = plain_move(self, loss, share)
        after = state_of(model, self.optimizer)
        check_density()
        assert set(moves) == set(places)
        changed = {f"{'model.' if bayesian else ''}{name}" for name in places}
        for name, old in places.items():
            new = indices(model)[name]
            stay = torch.isin(new, old)
            assert int((~stay).sum()) <= int(share * len(old))
            seen.append(int((~stay).sum()))
            source = torch.searchsorted(old, new)[stay]
            own = f"{'model.' if bayesian else ''}{name}"
            keys = {own: 0.0}
            if bayesian:
                key = "coordinates./" + name.replace(".", "/")
                spread = torch.nn.functional.softplus(before["model"][f"{key}.rho"].double())
                keys[f"{key}.rho"] = float(spread.mean()) if how.new_scale == "mean" else how.new_scale
                memory = after["model"][f"{key}.memory"]
                assert torch.equal(memory[stay], before["model"][f"{key}.memory"][source])
                assert (memory[~stay] == 0).all()
                changed |= {f"{key}.rho", f"{key}.memory"}
            for key, newcomer in keys.items():
                value, old_value = after["model"][key], before["model"][key]
                assert torch.equal(value[stay], old_value[source])
                scale = torch.nn.functional.softplus(value[~stay].double()) if "rho" in key else value[~stay].double()
                torch.testing.assert_close(scale, torch.full_like(scale, newcomer), rtol=1e-5, atol=0)
                states = after["optimizer"][key]
                assert len(states) == {"adam": 3, "sgd": 2 if "rho" in key else 1}[optimizer]
                for kind, numbers in states.items():
                    old_numbers = before["optimizer"][key][kind]
                    if numbers.shape != value.shape:
                        assert torch.equal(numbers, old_numbers)
                        continue
                    assert torch.equal(numbers[stay], old_numbers[source])
                    assert (numbers[~stay] == 0).all()
            changed.add(own.removesuffix("original") + "0.index")
        for name, value in before["model"].items():
            assert name in changed or torch.equal(value, after["model"][name]), name
        for name, states in before["optimizer"].items():
            for kind, numbers in states.items():
                assert name in changed or torch.equal(numbers, after["optimizer"][name][kind])
        assert all(p.grad is None for n, p in model.named_parameters() if n in changed)
        return moves

    monkeypatch.setattr(Rewirer, "move", move)
    inner(model).register_forward_pre_hook(check_density)
    start = indices(model)
    lb.fit(
        model,
        task(),
        likelihood=lb.Categorical(),
        epochs=2,
        optimizer=lb.Optimization(optimizer, lr=1e-2, hold_statistics=False),
        rewire=how,
    )
    assert len(passes) >= 12
    assert seen
    assert sum(seen) > 0
    assert any(not torch.equal(start[name], index) for name, index in indices(model).items())
    assert len(seen) == 2 * len([s for s in range(1, 13) if how.due(s, 12)])


@pytest.mark.parametrize("propagate", ["sample", "local", "flipout", "moments", "covariance"])
def test_every_propagation_moves(propagate: str) -> None:
    model = sparse_model(True, propagate=propagate)
    start = indices(model)
    lb.fit(model, task(20), likelihood=lb.Categorical(), epochs=2, rewire=lb.Rewire(every=1))
    assert all(not torch.equal(index, start[name]) for name, index in indices(model).items())


def test_it_learns_and_the_best_epoch_comes_back_with_its_positions() -> None:
    batches, model = task(100), sparse_model(True)
    history = lb.fit(
        model,
        batches,
        likelihood=lb.Categorical(),
        epochs=8,
        optimizer=lb.Optimization(lr=2e-2, hold_statistics=False),
        kl_weight=0.01,
        rewire=lb.Rewire(every=5),
        validate=batches,
    )
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    outcome = lb.predict(model.eval(), x, samples=8, generator=seeded())
    assert (outcome.mean.argmax(1) == y).float().mean() > 0.85
    nll = -outcome.mean[torch.arange(len(y)), y].log().mean()
    assert history.best is not None
    assert float(nll) < 1.2 * history.epochs[history.best].validation  # type: ignore[operator]
    with model.at_mean():
        torch.testing.assert_close(model(x), model.densify().eval()(x), rtol=1e-4, atol=1e-4)


def test_nothing_moves_before_the_interval_or_after_the_stop() -> None:
    steps: list[int] = []
    model = sparse_model(False)
    before = indices(model)

    def reported(row: lb.train.Epoch) -> None:
        steps.append(row.epoch)
        now = indices(model)
        same = all(torch.equal(now[name], before[name]) for name in now)
        assert same == (row.epoch not in (1, 2))
        before.update(now)

    lb.fit(
        model,
        task(30),
        likelihood=lb.Categorical(),
        epochs=6,
        rewire=lb.Rewire(removal="magnitude", every=4, stop=0.6, rate=0.9),
        callbacks=[reported],
    )
    assert len(steps) == 6  # 18 steps: moves after 4 and 8


# ---------------------------------------------------------------- criteria against the dense computation


@pytest.fixture(params=["auto", "numba"])
def kernels(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numba":
        monkeypatch.setattr(products, "choose", lambda *_: Kernels("numba", "numba", "numba"))


def assert_move(move: Move, index: Tensor, scores: Tensor, gradient: Tensor, share: float) -> None:
    """In plain Python: the least important go, then the largest gradients of all zeros come; ties may fall anyhow."""
    places, importance = index.tolist(), scores.tolist()
    order = sorted(range(len(places)), key=lambda i: importance[i])
    stay = {places[i] for i in order[int(share * len(places)) :]}
    after = set(move.index.tolist())
    assert stay < after
    sizes = gradient.abs().flatten().tolist()
    came = sorted((sizes[i] for i in after - stay), reverse=True)
    largest = sorted((size for i, size in enumerate(sizes) if i not in stay), reverse=True)[: len(places) - len(stay)]
    assert came == pytest.approx(largest, rel=1e-8, abs=1e-12)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("kind", "propagate"),
    [
        *(("linear", "sample"), ("linear", "local"), ("conv1d", "local"), ("conv2d", "sample"), ("conv2d", "local")),
        *(("conv2d", "flipout"), ("conv2d", "moments"), ("conv3d", "local")),
    ],
)
def test_addition_criteria_against_dense_gradients(kind: str, propagate: str) -> None:
    x, y = batch(kind, 6)
    for addition in ("draw", "mean", "draws"):
        bnn = moved(lb.Bayesian(network(kind), subspace=lb.sparse(0.4, dense=()), propagate=propagate))
        twin = dense_twin(bnn)
        how = lb.Rewire(addition=addition, draws=3, removal="snr")  # type: ignore[arg-type]
        draws = 3 if addition == "draws" else 1
        total: dict[str, Tensor] = {}
        for draw in range(draws):
            twin.zero_grad()
            if addition == "mean":
                with twin.at_mean():
                    out = twin(x)
            else:
                out = twin(x, generator=seeded(draw))
            lb.Categorical().nll(out, y).backward()
            for name, parameter in twin.model.named_parameters():
                if name.endswith("weight"):
                    total[name] = parameter.grad.abs() + total.get(name, 0)  # type: ignore[union-attr]
        weights, places = bnn.weights(), indices(bnn)
        scores = {name: removal_scores("snr", weights[name].mean, weights[name].spread) for name in places}
        calls: list[int] = []

        def loss(draw: int, bnn: lb.Bayesian = bnn, calls: list[int] = calls) -> Tensor:
            calls.append(draw)
            return lb.Categorical().nll(bnn(x, generator=seeded(draw)), y)

        before = {name: parameter.grad for name, parameter in bnn.named_parameters()}
        moves = Rewirer(bnn, how, torch.optim.Adam(bnn.parameters())).move(loss, 0.5)
        assert set(moves) == set(places)
        for name, move in moves.items():
            assert_move(move, places[name], scores[name], total[_dense(name)], 0.5)
            assert torch.equal(indices(bnn)[name], move.index)
        assert calls == ([0, 1, 2] * 3 if addition == "draws" else [0])
        assert {name: parameter.grad for name, parameter in bnn.named_parameters()} == before


def _dense(name: str) -> str:
    return name.replace(".parametrizations.weight.original", ".weight")


class Repeats(nn.Module):
    """A layer that is called twice, one whose second call nobody uses, and one that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.twice = nn.Linear(6, 6)
        self.once = nn.Linear(6, 6)
        self.idle = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.first(x))))
        x = torch.tanh(self.once(torch.tanh(self.twice(x))))
        self.once(x)
        with torch.no_grad():
            self.once(x)
        self.last.weight.norm()  # made dense, and not a part of the loss
        result: Tensor = self.last(x)
        return result


@pytest.mark.usefixtures("kernels")
def test_layers_called_twice_or_not_at_all() -> None:
    model = lb.make_sparse(Repeats().double(), 0.4)
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randint(3, (7,))
    plain = lb.densify(model)
    lb.Categorical().nll(plain(x), y).backward()
    how = lb.Rewire(removal="magnitude")
    places, values = indices(model), dict(model.named_parameters())
    scores = {name: values[name].detach().abs() for name in places}
    idle = model.idle.parametrizations.weight[0].index.clone()
    rewirer = Rewirer(model, how, torch.optim.SGD(model.parameters(), lr=0.1))
    moves = rewirer.move(lambda _: lb.Categorical().nll(model(x), y), 0.5)
    assert set(moves) == {name for name in places if "idle" not in name}
    for name, move in moves.items():
        gradient = plain.get_parameter(_dense(name)).grad
        assert gradient is not None
        assert_move(move, places[name], scores[name], gradient, 0.5)
    assert torch.equal(model.idle.parametrizations.weight[0].index, idle)


def test_one_dense_gradient_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer's move is planned, the gradient of no other layer is in memory; after it, none is."""
    side = 120
    layers = [layer for _ in range(4) for layer in (nn.Linear(side, side), nn.Tanh())]
    bnn = lb.Bayesian(nn.Sequential(*layers), subspace=lb.sparse(0.1, dense=()), propagate="local")
    x = torch.randn(3, side)
    plain, alive = rewire_module.plan_move, []

    def dense_tensors() -> int:
        outcome = [o for o in gc.get_objects() if type(o) is Tensor and tuple(o.shape) == (side, side)]
        return len({tensor.untyped_storage().data_ptr() for tensor in outcome if tensor.untyped_storage().nbytes() > 4})

    start = dense_tensors()

    def plan(index: Tensor, leaving: Tensor, gradient: Tensor, *blocks: Any) -> Move:
        assert gradient.shape == (side, side)
        alive.append(dense_tensors() - start)
        return plain(index, leaving, gradient, *blocks)

    monkeypatch.setattr(rewire_module, "plan_move", plan)
    for addition, most in (("draw", 1), ("mean", 1), ("draws", 1)):
        rewirer = Rewirer(bnn, lb.Rewire(addition=addition, draws=2), torch.optim.SGD(bnn.parameters()))  # type: ignore[arg-type]
        rewirer.move(lambda draw: bnn(x, generator=seeded(draw)).square().mean(), 0.3)
        assert len(alive) == 4
        assert max(alive) <= most + (addition == "draws")  # the sum, beside what is added to it
        alive.clear()
    assert dense_tensors() == start


def test_one_draw_is_one_draw_whatever_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several samples a step, each layer's gradients of all of them would be in memory together."""
    calls: list[int] = []
    model = sparse_model(True)
    plain = Rewirer.move

    def move(self: Rewirer, loss: Any, share: float) -> Any:
        hook = inner(model)[0].register_forward_hook(lambda *_: calls.append(1))
        try:
            return plain(self, loss, share)
        finally:
            hook.remove()

    monkeypatch.setattr(Rewirer, "move", move)
    lb.fit(model, task(20), likelihood=lb.Categorical(), epochs=2, samples=5, rewire=lb.Rewire(every=2))
    assert calls == [1]


def test_statistics_and_random_state_of_norms_are_left_alone() -> None:
    model = sparse_model(True)
    x, y = task(10)[0]
    norm = inner(model)[1]
    before = {name: value.clone() for name, value in norm.named_buffers()}
    Rewirer(model, lb.Rewire(addition="draws"), torch.optim.SGD(model.parameters())).move(
        lambda _: lb.Categorical().nll(model(x), y), 0.3
    )
    assert all(torch.equal(value, before[name]) for name, value in norm.named_buffers())


def test_a_nearly_full_layer_gives_up_its_least_weights_not_its_first() -> None:
    layer = nn.Sequential(nn.Linear(10, 10, bias=False))
    lb.make_sparse(layer, 0.9, dense=())
    own = layer[0].parametrizations.weight.original
    with torch.no_grad():
        own.copy_(torch.linspace(1, 0.1, 90))  # the last are the least
    places = indices(layer)["0.parametrizations.weight.original"]
    x = torch.randn(20, 10)
    moves = Rewirer(layer, lb.Rewire(removal="magnitude"), torch.optim.SGD(layer.parameters())).move(
        lambda _: layer(x).square().sum(), 0.3
    )
    (move,) = moves.values()
    assert set(places[:63].tolist()) <= set(move.index.tolist())
    assert len(move.index) == 90


# ---------------------------------------------------------------- what cannot move


def test_what_cannot_move_is_named() -> None:
    def fit(model: nn.Module, **options: Any) -> None:
        lb.fit(model, task(10), likelihood=lb.Categorical(), epochs=1, rewire=lb.Rewire(**options))

    with pytest.raises(lb.errors.InputError, match=r"has none.*make_sparse"):
        fit(small_cnn())
    with pytest.raises(lb.errors.InputError, match="has none"):
        fit(lb.Bayesian(small_cnn()))
    part = lb.Bayesian(small_cnn(), subspace=lb.sparse(0.3, inside=lb.random_k(0.5)))
    with pytest.raises(lb.errors.InputError, match=r"only a part.*'3\.weight'"):
        fit(part)
    with pytest.raises(lb.errors.InputError, match=r"'3\.weight' is not random.*magnitude"):
        fit(sparse_model(False))
    last = lb.Bayesian(small_cnn(), subspace=lb.sparse(0.3, inside=lb.layers("7")))
    with pytest.raises(lb.errors.InputError, match=r"'3\.weight' is not random"):
        fit(last)
    fit(last, removal="magnitude")
    with pytest.raises(lb.errors.InputError, match=r"LogNormal.*no density"):
        fit(sparse_model(True, posterior=lb.posteriors.LogNormal()))


def test_frozen_sparse_layers_stay() -> None:
    model = sparse_model(True)
    inner(model)[3].parametrizations.weight.original.requires_grad_(False)
    before = indices(model)
    lb.fit(model, task(20), likelihood=lb.Categorical(), epochs=2, rewire=lb.Rewire(every=1))
    moved_layers = {name for name, index in indices(model).items() if not torch.equal(index, before[name])}
    assert moved_layers == {"7.parametrizations.weight.original"}


# ---------------------------------------------------------------- interrupted runs


class Interrupted(Exception):
    """As good as a kill, in the same process."""


class Stopping(TensorDataset):
    left = 10**9

    def __getitem__(self, index: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Interrupted
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("bayesian", "how"),
    [
        (True, lb.Rewire(every=2)),
        (True, lb.Rewire(every=3, addition="draws")),
        (False, lb.Rewire("magnitude", every=2)),
    ],
    ids=["draw", "draws", "plain"],
)
def test_a_run_stopped_anywhere_ends_where_a_whole_one_does(tmp_path: Path, bayesian: bool, how: lb.Rewire) -> None:
    """Twelve steps, with a checkpoint after each: before, between and after the moves."""
    x, y = (torch.cat(parts) for parts in zip(*task(60), strict=True))

    def once(folder: Path, left: int = 10**9) -> dict[str, Tensor]:
        model, data = sparse_model(bayesian), Stopping(x, y)
        data.left = left
        lb.fit(
            model,
            DataLoader(data, batch_size=10, shuffle=True),
            likelihood=lb.Categorical(),
            epochs=2,
            optimizer=lb.Optimization(lr=1e-2, schedule="cosine"),
            rewire=how,
            validate=[(x, y)],
            checkpoint=lb.Checkpointing(folder, every=1),
        )
        return model.state_dict()

    whole = once(tmp_path / "whole")
    for stop in (25, 75):
        with pytest.raises(Interrupted):
            once(tmp_path / str(stop), stop)
        end = once(tmp_path / str(stop))
        assert list(end) == list(whole)
        assert all(torch.equal(value, end[name]) for name, value in whole.items()), f"stopped after {stop} examples"


class Noisy(Stopping):
    """Examples that are augmented with noise from torch's global state."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn_like(x), y


@pytest.mark.parametrize("loader", ["shuffled", "list"])
def test_each_draw_of_the_third_criterion_has_another_batch(loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, all K draws used the batch of the step (Li et al. 2024: K pairs of θ and x)."""
    batches = task(60)
    data: Any = batches
    if loader == "shuffled":
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        data = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
    model, moving, used, trained = sparse_model(True), [False], [], []
    plain = Rewirer.move

    def move(self: Rewirer, loss: Any, share: float) -> Any:
        moving[0] = True
        try:
            return plain(self, loss, share)
        finally:
            moving[0] = False

    def watch(_: Any, inputs: tuple[Tensor, ...]) -> None:
        (used if moving[0] else trained).append(inputs[0].clone())

    monkeypatch.setattr(Rewirer, "move", move)
    inner(model).register_forward_pre_hook(watch)
    how = lb.Rewire(every=4, addition="draws", draws=4, stop=0.5)
    lb.fit(model, data, likelihood=lb.Categorical(), epochs=2, rewire=how)
    assert len(trained) == 12
    assert len(used) == 4 * 2  # of each of two layers, in the one move after the fourth step
    for layer in (used[:4], used[4:]):
        expected = [trained[3], trained[4], trained[5], trained[0]]  # what follows in the epoch, then its beginning
        assert all(torch.equal(batch, other) for batch, other in zip(layer, expected, strict=True))


def test_reading_further_batches_leaves_the_random_states_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Augmentations draw from the global state, which a move must give back; stops fall before and after moves."""
    x, y = (torch.cat(parts) for parts in zip(*task(60), strict=True))

    def once(folder: Path, left: int = 10**9) -> dict[str, Tensor]:
        model, data = sparse_model(True), Noisy(x, y)
        data.left = left
        lb.fit(
            model,
            DataLoader(data, batch_size=10, shuffle=True),
            likelihood=lb.Categorical(),
            epochs=2,
            rewire=lb.Rewire(every=3, addition="draws", draws=3),
            checkpoint=lb.Checkpointing(folder, every=1),
        )
        return model.state_dict()

    whole = once(tmp_path / "whole")
    for stop in (15, 45, 65, 95):
        with pytest.raises(Interrupted):
            once(tmp_path / str(stop), stop)
        end = once(tmp_path / str(stop))
        assert all(torch.equal(value, end[name]) for name, value in whole.items()), f"stopped after {stop} examples"


def test_other_settings_of_a_move_are_another_training(tmp_path: Path) -> None:
    def fit(how: lb.Rewire | None) -> None:
        lb.fit(sparse_model(True), task(10), likelihood=lb.Categorical(), epochs=1, rewire=how, checkpoint=tmp_path)

    fit(lb.Rewire(every=2))
    fit(lb.Rewire(every=2))
    for other in (lb.Rewire(every=3), None):
        with pytest.raises(lb.errors.InputError, match="another folder"):
            fit(other)


def blocked(block: int = 4, bayesian: bool = True) -> nn.Module:
    if not bayesian:
        return lb.make_sparse(small_cnn(), 0.3, block=block)
    return lb.Bayesian(small_cnn(), subspace=lb.sparse(0.3, block=block), propagate="local")


@pytest.mark.parametrize(
    ("bayesian", "how"),
    [(True, lb.Rewire(every=1)), (True, lb.Rewire(every=1, addition="draws", draws=2)), (False, RIGL)],
)
def test_blocks_move_as_a_whole(bayesian: bool, how: lb.Rewire) -> None:
    model = blocked(bayesian=bayesian)
    start = indices(model)
    sizes = [scatter.block for scatter in scatters(inner(model)).values()]
    assert sizes == [4, 3]
    lb.fit(model, task(20), likelihood=lb.Categorical(), epochs=3, rewire=how)
    for name, scatter in scatters(inner(model)).items():
        assert len(scatter.index) == len(start[name])
        assert not torch.equal(scatter.index, start[name])
        assert in_blocks(scatter.index, scatter.shape, scatter.block)


def test_blocks_resume_and_other_blocks_are_another_training(tmp_path: Path) -> None:
    def fit(model: nn.Module, folder: str, epochs: int = 2) -> dict[str, Tensor]:
        checkpoint = lb.Checkpointing(tmp_path / folder, every=1)
        lb.fit(
            model,
            task(30),
            likelihood=lb.Categorical(),
            epochs=epochs,
            rewire=lb.Rewire(every=2),
            checkpoint=checkpoint,
        )
        return model.state_dict()

    data = Stopping(*(torch.cat(parts) for parts in zip(*task(30), strict=True)))

    def once(folder: str, left: int) -> dict[str, Tensor]:
        model, data.left = blocked(), left
        lb.fit(
            model, DataLoader(data, batch_size=10), likelihood=lb.Categorical(), epochs=2,
            rewire=lb.Rewire(every=2), checkpoint=lb.Checkpointing(tmp_path / folder, every=1),
        )  # fmt: skip
        return model.state_dict()

    whole = once("whole", 10**9)
    with pytest.raises(Interrupted):
        once("stopped", 45)
    end = once("stopped", 10**9)
    assert all(torch.equal(value, end[name]) for name, value in whole.items())
    fit(blocked(), "other")
    with pytest.raises(lb.errors.InputError, match=r"sparse.*block"):
        fit(blocked(2), "other")


@pytest.mark.slow
def test_a_killed_process_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path / "killed"), "--left", "60"]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((tmp_path / "killed" / "checkpoints").glob("step-*"))
    resumed, whole = train(tmp_path / "killed"), train(tmp_path / "whole")
    assert list(resumed) == list(whole)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


@pytest.mark.slow
@pytest.mark.parametrize("addition", ["draw", "draws"])
def test_two_processes_move_the_same_weights(tmp_path: Path, addition: str) -> None:
    from safetensors.torch import load_file

    launch = "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1"
    launch += " --mixed_precision no --dynamo_backend no"
    command = [sys.executable, "-m", *launch.split(), str(SCRIPT), "--folder", str(tmp_path)]
    command += ["--addition", addition]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / f"end{rank}") for rank in (0, 1))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
