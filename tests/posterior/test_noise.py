import math

import pytest
import torch
from scipy import stats
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.posterior.noise import standard_normal

LARGE = 3 * 2**18 + 5  # three full pieces, and a short one


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def large(dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    return standard_normal((LARGE,), torch.zeros(1, dtype=dtype), generator(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_large_tensor_is_standard_normal(dtype):
    noise = large(dtype)
    assert (noise.shape, noise.dtype) == ((LARGE,), dtype)
    noise = noise.double()
    rounding = 0.01 if dtype == torch.bfloat16 else 0.0
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        found = noise.pow(power).mean().item()
        assert found == pytest.approx(moment, abs=5 * math.sqrt(spread / LARGE) + rounding)
    if dtype != torch.bfloat16:
        assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


def test_the_pieces_are_independent():
    pieces = large()[: 3 * 2**18].view(3, -1)
    off_diagonal = torch.corrcoef(pieces) - torch.eye(3)
    assert off_diagonal.abs().max() < 5 / math.sqrt(2**18)
    assert len(large().unique()) == LARGE


def test_reproducible_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(large())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], large(seed=2))


def test_successive_draws_from_one_generator_differ():
    source = generator()
    first, second = (standard_normal((LARGE,), torch.zeros(1), source) for _ in range(2))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 5 / math.sqrt(LARGE)


def test_the_global_state_is_used_only_without_a_generator():
    before = torch.get_rng_state()
    large()
    assert torch.equal(before, torch.get_rng_state())
    first = standard_normal((LARGE,), torch.zeros(1), None)
    assert not torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    assert torch.equal(first, standard_normal((LARGE,), torch.zeros(1), None))


def test_a_small_tensor_is_what_torch_draws():
    found = standard_normal((3, 4), torch.zeros(1, dtype=torch.float64), generator())
    assert torch.equal(found, torch.randn(3, 4, dtype=torch.float64, generator=generator()))


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_in_every_gradient_mode(context):
    """Modes belong to a thread: what fills the pieces must be in the mode of who asked."""
    with context():
        noise = large()
        assert not noise.requires_grad
        assert noise.std().item() == pytest.approx(1, abs=0.01)
        assert Bayesian(nn.Linear(1024, 600))(torch.ones(1, 1024)).shape == (1, 600)


def test_under_vmap():
    draws = torch.func.vmap(lambda _: standard_normal((LARGE,), torch.zeros(1), None), randomness="different")(
        torch.arange(2)
    )
    assert draws.shape == (2, LARGE)
    assert abs(torch.corrcoef(draws)[0, 1].item()) < 5 / math.sqrt(LARGE)
