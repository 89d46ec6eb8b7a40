"""Averages of the weights over the last steps, in `IVON` and in `fit`."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes._wrappers import unwrap
from leanbayes.optim import IVON


def problem(*, norm: bool = False, **options: object) -> tuple[lb.Bayesian, torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    between: list[nn.Module] = [nn.BatchNorm1d(8)] if norm else []
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(5, 8), *between, nn.ReLU(), nn.Linear(8, 3)), **options)
    return bnn, torch.randn(12, 5), torch.randint(0, 3, (12,))


def make_step(bnn: lb.Bayesian, optimizer: IVON, x: torch.Tensor, y: torch.Tensor, seed: int) -> None:
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    lb.elbo(bnn, x, y, lb.Categorical(), n_data=12, with_kl=False, generator=generator).loss.backward()
    optimizer.step()


@pytest.mark.parametrize("means", ["natural", "adam"])
@pytest.mark.parametrize("subspace", [None, lb.random_k(0.4, seed=1)])
def test_the_average_is_that_of_the_last_steps(means: str, subspace: object) -> None:
    bnn, x, y = problem(subspace=subspace or lb.everything(), propagate="mirrored")
    optimizer = IVON(bnn, 0.05, n_data=12, steps=10, means=means, average=0.4)
    visited = []
    for seed in range(10):
        assert optimizer.use_averages() is False or seed > 6
        make_step(bnn, optimizer, x, y, seed)
        visited.append([parameter.detach().double().clone() for parameter in bnn.model.parameters()])
        if seed == 6:  # the first of the four; what use_averages writes is then the present weights
            assert optimizer.use_averages()
    scales = [parts.rho.detach().clone() for _, parts in bnn.parts()]
    assert optimizer.use_averages()
    for number, parameter in enumerate(bnn.model.parameters()):
        mean = torch.stack([weights[number] for weights in visited[6:]]).mean(0)
        torch.testing.assert_close(parameter.detach().double(), mean, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(parameter.detach().double(), visited[-1][number], atol=1e-5)
    for (_, parts), before in zip(bnn.parts(), scales, strict=True):
        assert torch.equal(parts.rho, before)


def test_a_restored_optimizer_has_its_averages() -> None:
    bnn, x, y = problem()
    optimizer = IVON(bnn, n_data=12, steps=10, means="adam", average=0.6)
    for seed in range(7):
        make_step(bnn, optimizer, x, y, seed)
    other = copy.deepcopy(bnn)
    resumed = IVON(other, n_data=12, steps=10, means="adam", average=0.6)
    other.load_state_dict(bnn.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(7, 10):
        make_step(bnn, optimizer, x, y, seed)
        make_step(other, resumed, x, y, seed)
    assert optimizer.use_averages()
    assert resumed.use_averages()
    for a, b in zip(bnn.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(lb.errors.InputError, match="average_from"):
        IVON(other, n_data=12, steps=10, means="adam").load_state_dict(optimizer.state_dict())


def test_averages_begin_again_when_sparse_weights_move() -> None:
    torch.manual_seed(3)
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), subspace=lb.sparse(0.5, dense=()))
    optimizer = IVON(bnn, n_data=24, steps=6, initial_scale=0.05, average=0.9)
    x, y = torch.randn(24, 6), torch.randint(0, 3, (24,))
    for seed in range(3):
        make_step(bnn, optimizer, x, y, seed)
    assert optimizer.param_groups[0]["averaged"] == 2
    rho = next(parts.rho for _, parts in bnn.parts())
    optimizer.adopt_scales(rho, torch.zeros_like(rho, dtype=torch.bool))
    assert not optimizer.use_averages()
    make_step(bnn, optimizer, x, y, 3)
    present = [parameter.detach().clone() for parameter in bnn.model.parameters()]
    assert optimizer.use_averages()
    assert all(torch.equal(a, b) for a, b in zip(present, bnn.model.parameters(), strict=True))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator) + 2
    return TensorDataset(x, (x[:, 0] > 2).long() + (x[:, 1] > 2).long())


def fitted(folder: Path | None = None, *, stop: int | None = None, **how: object) -> lb.Bayesian:
    bnn, _, _ = problem(norm=True, propagate="mirrored")
    natural = lb.optim.NaturalGradients(means="adam", average=0.5, **how)
    pause = lb.train.EachStep(lambda step: lb.train.Stop("later", final=False) if step.step == stop else None)
    lb.fit(
        bnn,
        DataLoader(data(), batch_size=10, shuffle=True),
        likelihood=lb.Categorical(),
        epochs=4,
        optimizer=lb.Optimization(natural, lr=0.01),
        checkpoint=None if folder is None else lb.Checkpointing(folder, every=3),
        callbacks=[pause],
    )
    return bnn


def test_statistics_of_batch_norm_belong_to_the_averaged_weights() -> None:
    """The noise is next to nothing, so the mean of the first layer's outputs over all data is known."""
    bnn = fitted(initial_scale=1e-6)
    linear, norm = bnn.model[0], bnn.model[1]
    with torch.no_grad():
        outputs = linear(data().tensors[0])
        parts = outputs.split(10)
    torch.testing.assert_close(norm.running_mean, outputs.mean(0), rtol=1e-4, atol=1e-4)
    spread = torch.stack([part.var(0) for part in parts]).mean(0)
    assert (norm.running_var / spread - 1).abs().max() < 0.5  # batches are drawn in another order
    assert norm.momentum == 0.1
    assert int(norm.num_batches_tracked) == 4


def test_a_training_that_was_stopped_ends_with_the_same_averages(tmp_path: Path) -> None:
    whole = fitted(relative_scale=0.25)
    fitted(tmp_path, stop=11, relative_scale=0.25)
    resumed = fitted(tmp_path, relative_scale=0.25)
    again = fitted(tmp_path, relative_scale=0.25)  # a training that is finished already
    for a, b, c in zip(*(bnn.state_dict().values() for bnn in (whole, resumed, again)), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_a_second_training_is_not_averaged_with_the_first() -> None:
    """Before, the average of the second `fit` held weights of the first one."""
    bnn, _, _ = problem()
    optimizer = IVON(bnn, 0.05, n_data=40, steps=8, means="adam", average=0.5)
    visited: list[list[torch.Tensor]] = []

    def look(_: object) -> None:
        visited.append([parameter.detach().clone() for parameter in bnn.model.parameters()])

    for _ in range(2):
        visited.clear()
        loader = DataLoader(data(), batch_size=10)
        lb.fit(
            bnn, loader, likelihood=lb.Categorical(), epochs=2, optimizer=optimizer, callbacks=[lb.train.EachStep(look)]
        )
    for number, parameter in enumerate(bnn.model.parameters()):
        mean = torch.stack([weights[number] for weights in visited]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda bnn: torch.compile(bnn, backend="eager"), id="compile"),
        pytest.param(torch.optim.swa_utils.AveragedModel, id="AveragedModel"),
        pytest.param(nn.DataParallel, id="DataParallel"),
    ],
)
def test_wrapped_models_have_the_same_averages(wrap: Callable[[nn.Module], nn.Module]) -> None:
    ends = []
    for around in (lambda bnn: bnn, wrap):
        bnn, _, _ = problem(norm=True, propagate="mirrored")
        model = around(bnn)
        natural = lb.optim.NaturalGradients(means="adam", average=0.5)
        loader = DataLoader(data(), batch_size=10)
        lb.fit(model, loader, likelihood=lb.Categorical(), epochs=2, optimizer=natural, seed=3)
        ends.append(unwrap(model).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(end.values() for end in ends), strict=True))


def test_a_validation_set_and_averages_exclude_each_other() -> None:
    bnn, _, _ = problem()
    loader = DataLoader(data(), batch_size=10)
    for optimizer in (
        lb.optim.NaturalGradients(average=0.5),
        IVON(bnn, n_data=40, steps=4, average=0.5),
    ):
        with pytest.raises(lb.errors.InputError, match="leave out validate="):
            lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=1, optimizer=optimizer, validate=loader)


def test_the_length_of_the_training_must_be_known() -> None:
    bnn, _, _ = problem()
    with pytest.raises(lb.errors.InputError, match="steps="):
        IVON(bnn, n_data=12, beta2=0.9, average=0.5)
