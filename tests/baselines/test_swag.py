import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from leanbayes.baselines import Swag
from leanbayes.errors import InputError, NonFinite
from leanbayes.likelihood import Categorical
from leanbayes.prediction import predict
from leanbayes.train import Optimization, fit
from tests.oracles import covariance_within_standard_errors


def put(model: nn.Module, flat: np.ndarray) -> None:
    nn.utils.vector_to_parameters(torch.as_tensor(flat).to(next(model.parameters())), model.parameters())


def walk(model: nn.Module, rank: int, steps: int, *, offset: float = 0.0, size: float = 1.0) -> tuple[Swag, np.ndarray]:
    """A SWAG of random weights, and these weights, one row a step."""
    count = sum(p.numel() for p in model.parameters())
    path = offset + size * np.random.default_rng(0).normal(size=(steps, count))
    swag = Swag(model, rank=rank)
    for row in path:
        put(model, row)
        swag.collect()
    return swag, path


def truth(path: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, σ² and deviations (Maddox et al. 2019, Algorithm 1), from their definitions."""
    running = np.cumsum(path, 0) / np.arange(1, len(path) + 1)[:, None]
    variance = (path**2).mean(0) - path.mean(0) ** 2
    return path.mean(0), variance, (path - running)[len(path) - min(rank, len(path)) :]


def flat_draws(swag: Swag, count: int) -> Tensor:
    return torch.stack([torch.cat([w.flatten() for w in swag.sample(seed).values()]) for seed in range(count)])


@pytest.mark.parametrize("steps", [2, 4, 11])
def test_moments_and_deviations_are_those_of_numpy(steps: int) -> None:
    swag, path = walk(nn.Linear(2, 2).double(), 4, steps)
    mean, variance, deviations = truth(path, 4)
    np.testing.assert_allclose(swag.mean, mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(swag.variance, variance, rtol=1e-10)
    kept = np.asarray(swag.deviations[: min(steps, 4)])
    order = np.lexsort(kept.T), np.lexsort(deviations.T)
    np.testing.assert_allclose(kept[order[0]], deviations[order[1]], rtol=1e-10, atol=1e-14)


def test_small_moves_of_large_weights_keep_their_digits_in_float32() -> None:
    swag, path = walk(nn.Linear(2, 2), 2, 50, offset=100.0, size=1e-3)
    _, variance, _ = truth(path, 2)
    np.testing.assert_allclose(swag.variance, variance, rtol=0.02)


@pytest.mark.parametrize(("rank", "steps"), [(0, 5), (3, 7), (6, 3)])
def test_draws_have_the_covariance_of_the_paper(rank: int, steps: int) -> None:
    swag, path = walk(nn.Linear(2, 2).double(), rank, steps)
    mean, variance, deviations = truth(path, rank)
    expected = np.diag(variance)
    if rank:
        expected = expected / 2 + deviations.T @ deviations / (2 * (len(deviations) - 1))
    covariance_within_standard_errors(flat_draws(swag, 4000), torch.as_tensor(mean), torch.as_tensor(expected))


def test_a_draw_is_its_seed_alone() -> None:
    swag, _ = walk(nn.Linear(2, 2), 3, 5)
    assert torch.equal(flat_draws(swag, 3), flat_draws(swag, 3))


def test_frozen_parameters_stay_and_ties_hold() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    model[2].weight = model[1].weight
    swag = Swag(model, rank=0)
    for _ in range(3):
        nn.init.normal_(model[1].weight)
        swag.collect()
    assert list(swag.sample(0)) == ["1.weight", "1.bias", "2.bias"]
    weights, x = swag.sample(0), torch.randn(4, 3)
    seed = torch.Generator().manual_seed(0)
    (out,) = swag.outputs(x, 1, seed)
    seed.manual_seed(0)
    weights = swag.sample(int(torch.randint(2**63 - 1, (), generator=seed)))
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        by_hand[1].weight.copy_(weights["1.weight"])
        by_hand[1].bias.copy_(weights["1.bias"])
        by_hand[2].bias.copy_(weights["2.bias"])
        torch.testing.assert_close(out, by_hand(x))


def test_rebuilding_does_not_depend_on_what_is_frozen_now() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    swag = Swag(model, rank=2)
    again = Swag.rebuild({"model": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))}, **swag.config())
    assert again.mean.numel() == swag.mean.numel() == 8


def test_half_precision_is_collected_in_float32() -> None:
    swag, _ = walk(nn.Linear(2, 2).bfloat16(), 2, 3)
    assert swag.mean.dtype == torch.float32
    assert next(swag.outputs(torch.ones(1, 2).bfloat16(), 1, None)).dtype == torch.bfloat16


def with_norms(steps: int = 4) -> Swag:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(9, 4))
    model.append(nn.BatchNorm1d(4))
    swag = Swag(model.double(), rank=2)
    for _ in range(steps):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        swag.collect()
    return swag


def data(sizes: tuple[int, ...] = (6, 6, 3)) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 2, 4, dtype=torch.float64) + 1, torch.zeros(size)) for size in sizes]


@pytest.mark.parametrize("training", [True, False])
def test_norm_statistics_are_those_of_each_draw_over_the_training_data(training: bool) -> None:
    swag, batches, x = with_norms(), data(), torch.randn(5, 2, 4, dtype=torch.float64)
    swag.train(training)
    before = copy.deepcopy(swag.model.state_dict())
    swag.update_norms(batches, 3, generator=torch.Generator().manual_seed(2))
    assert all(torch.equal(value, before[name]) for name, value in swag.model.state_dict().items())
    assert all(module.training == training for module in swag.modules())
    assert swag.model[1].momentum == 0.1
    assert swag.members == 3
    for seed, out in zip(swag.seeds.tolist(), swag.outputs(x, 3, None), strict=True):
        oracle = copy.deepcopy(swag.model).train()
        with torch.no_grad():
            for name, weight in swag.sample(seed).items():
                oracle.get_parameter(name).copy_(weight)
        oracle[2].p = 0.0
        update_bn(batches, oracle)
        with torch.no_grad():
            torch.testing.assert_close(out, oracle.eval()(x))


def test_stale_statistics_would_be_wrong_so_they_are_an_error() -> None:
    swag, x = with_norms(), torch.randn(5, 2, 4, dtype=torch.float64)
    with pytest.raises(InputError, match=r"batch norm \('1' is the first\).*update_norms"):
        predict(swag, x)
    swag.update_norms(data(), 2)
    assert predict(swag, x, samples=10).draws.tolist() == [2] * 5
    swag.collect()
    with pytest.raises(InputError, match="update_norms"):
        predict(swag, x)


def test_update_norms_of_a_model_without_norms_changes_nothing() -> None:
    swag, _ = walk(nn.Linear(2, 2), 2, 3)
    swag.update_norms([(torch.ones(3, 2), None)], 2)
    assert swag.members is None


def test_a_file_s_worth_brings_draws_and_statistics_back() -> None:
    swag, x = with_norms(), torch.randn(5, 2, 4, dtype=torch.float64)
    swag.update_norms(data(), 3)
    expected = torch.stack(list(swag.outputs(x, 3, None)))
    again = Swag.rebuild({"model": copy.deepcopy(swag.model)}, **swag.config())
    again.load_state_dict(swag.state_dict())
    assert torch.equal(torch.stack(list(again.outputs(x, 3, None))), expected)


def test_training_collects_epoch_by_epoch() -> None:
    x = torch.randn(64, 2)
    pairs = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    swag = Swag(nn.Linear(2, 2), rank=3)
    loader = torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=True)
    fit(
        swag,
        loader,
        likelihood=Categorical(),
        epochs=6,
        optimizer=Optimization(lr=0.1),
        callbacks=[lambda _: swag.collect()],
    )
    assert int(swag.collected) == 6
    result = predict(swag, x)
    assert (result.mean.argmax(1) == pairs.tensors[1]).double().mean() > 0.9
    assert result.epistemic.max() > 0


def test_what_cannot_be_used_is_named() -> None:
    model = nn.Linear(2, 2)
    for rank in (1, -1):
        with pytest.raises(InputError, match="rank must be 0"):
            Swag(model, rank=rank)
    with pytest.raises(InputError, match="trainable"):
        Swag(nn.ReLU())
    with pytest.raises(InputError, match="trainable"):
        Swag(nn.Linear(2, 2).requires_grad_(False))
    swag = Swag(model)
    with pytest.raises(InputError, match="0 weights were collected"):
        predict(swag, torch.ones(1, 2))
    swag.collect()
    with pytest.raises(InputError, match="1 weights were collected"):
        predict(swag, torch.ones(1, 2))
    nn.init.constant_(model.weight, math.nan)
    with pytest.raises(NonFinite, match="NaN"):
        swag.collect()
    assert int(swag.collected) == 1


def test_batches_that_cannot_be_read_again_are_named() -> None:
    swag = with_norms()
    with pytest.raises(InputError, match="iterator"):
        swag.update_norms(iter(data()), 2)
    with pytest.raises(InputError, match="no batches"):
        swag.update_norms([], 2)
    with pytest.raises(InputError, match="at least 1"):
        swag.update_norms(data(), 0)
    assert swag.members is None
