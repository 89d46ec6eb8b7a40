"""An optimizer that owns the scales: what `fit` gives it, and that nothing else is lost."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.optim import NamedOptimizer, OptimizerBuilder, Problem
from tests.optim.natural import Natural


def batches(n: int = 32) -> DataLoader[Any]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)


def network(**options: Any) -> lb.Bayesian:
    torch.manual_seed(1)
    return lb.Bayesian(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), **options)


def train(bnn: lb.Bayesian, **options: Any) -> lb.train.History:
    settings: dict[str, Any] = {"likelihood": lb.Categorical(), "epochs": 3, "optimizer": Natural}
    return lb.fit(bnn, batches(), **(settings | options))


def test_the_class_is_a_builder() -> None:
    assert isinstance(Natural, OptimizerBuilder)
    assert isinstance(NamedOptimizer("x", lambda problem: torch.optim.SGD(problem.groups)), OptimizerBuilder)


def test_it_gets_the_likelihood_alone_and_its_groups_hold_no_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    bnn, problems, weights, gradients = network(), [], [], []
    scales = {id(parts.rho) for _, parts in bnn.parts()}

    class Watched(Natural):
        @classmethod
        def build(cls, problem: Problem) -> Natural:
            problems.append(problem)
            return super().build(problem)

        def step(self, closure: Any = None) -> None:
            weights.append({group["kl_weight"] for group in self.param_groups})
            gradients.append([tensor.rho.grad.clone() for tensor in self.random])
            super().step(closure)

    calls: list[bool] = []
    plain = lb.Bayesian.kl

    def kl(self: lb.Bayesian, *args: Any, **kwargs: Any) -> Tensor:
        calls.append(torch.is_grad_enabled())
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(lb.Bayesian, "kl", kl)
    likelihood = lb.Categorical()
    history = train(bnn, optimizer=lb.Optimization(Watched, lr=0.1), kl_weight=lb.anneal(0.5, 0.1))
    (problem,) = problems
    assert (problem.model, problem.lr, problem.n_data, problem.steps) == (bnn, 0.1, 32, 12)
    assert not any(id(parameter) in scales for group in problem.groups for parameter in group["params"])
    assert {id(p) for group in problem.groups for p in group["params"]} == {id(p) for p in bnn.model.parameters()}
    assert calls == [False] * 3  # once an epoch, for the report
    assert [len(values) for values in weights] == [1] * 12
    assert weights[0] == {0.5}
    assert weights[0] > weights[-1] or max(weights[-1]) < 0.5
    rows = history.epochs
    assert all(row.loss == pytest.approx(row.nll + row.kl_weight * row.kl / 32) for row in rows)
    assert all(row.kl > 0 for row in rows)

    # The first gradient of the scales is that of the likelihood for the noise of the first step.
    from leanbayes.train.batches import mix, ordered

    fresh = network()
    loader = batches()
    with ordered(loader, mix(0, "order", 0)):
        x, y = next(iter(loader))
    noise = torch.Generator().manual_seed(mix(0, "noise", 0, 0))
    lb.elbo(fresh, x, y, likelihood, n_data=32, with_kl=False, generator=noise).loss.backward()
    for (_, parts), gradient in zip(fresh.parts(), gradients[0], strict=True):
        torch.testing.assert_close(parts.rho.grad, gradient)


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "moments"])
@pytest.mark.parametrize("subspace", [lb.everything(), lb.random_k(0.4)], ids=["everything", "part"])
def test_it_learns_means_and_scales(propagate: str, subspace) -> None:
    bnn = network(propagate=propagate, subspace=subspace)
    before = [parts.rho.detach().clone() for _, parts in bnn.parts()]
    history = train(bnn, epochs=20, optimizer=lb.Optimization(Natural, lr=0.5))
    assert history.losses[-1] < 0.6 * history.losses[0]
    x, y = batches().dataset[:]
    assert (lb.predict(bnn, x, samples=50).mean.argmax(1) == y).float().mean() > 0.9
    assert all(not torch.equal(rho, parts.rho) for rho, (_, parts) in zip(before, bnn.parts(), strict=True))


def test_an_optimizer_that_exists_may_own_the_scales() -> None:
    ends = []
    for build in (True, False):
        bnn = network()
        groups = bnn.parameter_groups(lr=0.1, weight_decay=0.0)[:1]
        optimizer: Any = Natural if build else Natural(groups, lb.optim.random_tensors(bnn), 0.1, 32)
        train(bnn, optimizer=lb.Optimization(optimizer, lr=0.1))
        ends.append(bnn.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_micro_batches_add_up() -> None:
    """At the mean of a linear model under "moments" the loss has no noise: one part or four give one gradient."""
    ends = []
    for parts in (1, 4):
        bnn = network(propagate="moments", posterior=lb.posteriors.Normal(0.1)).double()
        loader = [(x.double(), y) for x, y in batches()]
        how = lb.Optimization(Natural, lr=0.1, micro_batches=parts)
        lb.fit(bnn, loader, likelihood=Mean(), epochs=1, optimizer=how)
        ends.append(bnn.state_dict())
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-9, atol=1e-12)


class Mean(lb.Categorical):
    """Scores mean and variance without drawing anything."""

    def expected_nll(self, mean: Tensor, variance: Tensor, y: Tensor, **_: Any) -> Tensor:
        return self.nll(mean, y) + variance.sum()


def test_clipping_leaves_the_curvature_alone() -> None:
    ends = []
    for clip in (None, 1e-6):
        bnn = network(propagate="moments")
        lb.fit(bnn, [next(iter(batches()))], likelihood=Mean(), epochs=1, optimizer=lb.Optimization(Natural, clip=clip))
        ends.append([parts.rho.detach() for _, parts in bnn.parts()])
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))


def test_mixed_precision() -> None:
    pytest.importorskip("accelerate")
    bnn = network()
    history = train(bnn, epochs=10, optimizer=lb.Optimization(Natural, lr=0.5, mixed_precision="bf16"))
    assert history.epochs[-1].nll < history.epochs[0].nll
    assert all(parameter.dtype == torch.float32 for parameter in bnn.parameters())


class Interrupted(Exception):
    """As good as a kill, in the same process."""


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_a_stopped_training_ends_where_a_whole_one_does(stop: int, tmp_path: Path) -> None:
    class Stopping(Natural):
        left = 10**9

        def step(self, closure: Any = None) -> None:
            if not Stopping.left:
                raise Interrupted
            Stopping.left -= 1
            super().step(closure)

    how = lb.Optimization(Stopping, lr=0.1)
    whole = network()
    train(whole, optimizer=how)
    Stopping.left = stop
    with pytest.raises(Interrupted):
        train(network(), optimizer=how, checkpoint=lb.Checkpointing(tmp_path, every=1))
    Stopping.left = 10**9
    resumed = network()
    train(resumed, optimizer=how, checkpoint=lb.Checkpointing(tmp_path, every=1))
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


def test_a_plain_module_has_no_scales_to_own() -> None:
    with pytest.raises(lb.errors.InputError, match="needs a model with scales"):
        lb.fit(nn.Linear(4, 2), batches(), likelihood=lb.Categorical(), epochs=1, optimizer=Natural)


def test_sparse_weights_move_with_their_state() -> None:
    bnn = network(subspace=lb.sparse(0.5, dense=()), propagate="local")
    history = train(bnn, optimizer=lb.Optimization(Natural, lr=0.1), rewire=lb.Rewire(every=2))
    assert all(torch.isfinite(value).all() for value in bnn.state_dict().values())
    assert len(history.epochs) == 3
