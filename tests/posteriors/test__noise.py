import math

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from scipy import stats
from torch import nn

from leanbayes._ops.normal import fill
from leanbayes.bayesian import Bayesian
from leanbayes.kl import Exact
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.posteriors._noise import shifted_normal, standard_normal

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
        result = noise.pow(power).mean().item()
        assert result == pytest.approx(moment, abs=5 * math.sqrt(spread / LARGE) + rounding)
    if dtype != torch.bfloat16:
        assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


def test_the_pieces_are_independent():
    pieces = large(torch.float32)[: 3 * 2**18].double().view(3, -1)
    for moment in (pieces, pieces.square()):
        off_diagonal = torch.corrcoef(moment) - torch.eye(3)
        assert off_diagonal.abs().max() < 5 / math.sqrt(2**18)


@pytest.mark.parametrize("lag", [1, 2, 8, 255, 256, 257, 512, 2**17])
def test_neighbours_are_independent(lag):
    """256 apart are the cosine and the sine of one angle, at one radius."""
    noise = large(torch.float32).double()
    for left, right in ((noise, noise), (noise.square(), noise.square()), (noise, noise.square())):
        pair = torch.stack([left[:-lag], right[lag:]])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 5 / math.sqrt(LARGE - lag)


def test_neighbouring_seeds_are_independent():
    first, second = (fill(torch.empty(LARGE), seed) for seed in (7, 8))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 5 / math.sqrt(LARGE)
    assert not torch.isin(first[:1000], second).all()


def test_the_kernel_against_float64():
    """SplitMix64's published first outputs for seed 1234567, then Box and Muller's formula in double precision."""
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        outputs.append(z ^ (z >> 31))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    noise = fill(torch.empty(512), (1234567 + 0x9E3779B97F4A7C15) % 2**64).double()  # the first counter is the seed
    for i, z in enumerate(outputs):
        radius = math.sqrt(-2 * math.log(((z >> 33) + 0.5) / 2**31))
        angle = 2 * math.pi * (z % 2**32) / 2**32
        assert noise[i].item() == pytest.approx(radius * math.cos(angle), abs=2e-6)
        assert noise[256 + i].item() == pytest.approx(radius * math.sin(angle), abs=2e-6)


def test_the_tails_are_there_and_every_number_is_finite():
    noise = fill(torch.empty(2**24), 3)
    assert torch.isfinite(noise).all()
    for bound in (3.0, 4.0, 5.0):
        expected = 2**24 * 2 * stats.norm.sf(bound)
        assert abs((noise.abs() > bound).sum().item() - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize("size", [2**17, 2**17 + 1, 2**18 + 511, 2**18 + 513])
def test_a_draw_is_the_sample_of_the_same_noise(size):
    mean, spread = torch.randn(size), torch.rand(size)
    noise = standard_normal((size,), mean, generator())
    expected = mean + spread * noise
    out = torch.empty(size)
    assert shifted_normal(mean, spread, generator(), out) is out
    for result in (out, shifted_normal(mean, spread, generator())):
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    strided = shifted_normal(mean.repeat_interleave(2)[::2], spread, generator())
    torch.testing.assert_close(strided, expected, rtol=1e-6, atol=1e-6)


def test_gradients_of_a_draw_are_those_of_the_same_noise():
    mean, spread = torch.randn(2**17, requires_grad=True), torch.rand(2**17, requires_grad=True)
    noise = standard_normal((2**17,), mean, generator())
    drawn = shifted_normal(mean, spread, generator())
    result = torch.autograd.grad(drawn.square().sum(), (mean, spread), create_graph=True)
    torch.testing.assert_close(result[0], 2 * drawn)
    torch.testing.assert_close(result[1], 2 * drawn * noise)
    (twice,) = torch.autograd.grad(result[1].sum(), spread)
    torch.testing.assert_close(twice, 2 * noise.square())


def test_reproducible_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        result = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            result.append(large())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(result[0], result[1])
    assert torch.equal(result[0], result[2])
    assert not torch.equal(result[0], large(seed=2))


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
    result = standard_normal((3, 4), torch.zeros(1, dtype=torch.float64), generator())
    assert torch.equal(result, torch.randn(3, 4, dtype=torch.float64, generator=generator()))


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


def drawn(mean, rho):
    weight = RandomWeight("w", mean, None, None, Normal(), rho)
    return weight, weight.draw(generator())


def raw(*shape, low=-8.0, high=2.0):
    return (torch.rand(*shape) * (high - low) + low).requires_grad_()


@pytest.mark.parametrize("prior", [D.Normal(0.0, 1.0), D.Normal(0.3, 0.2), D.Normal(torch.tensor(-1.0).double(), 3.0)])
def test_the_kl_that_comes_with_a_draw_is_that_of_float64(prior):
    torch.manual_seed(0)
    mean, rho = (0.1 * torch.randn(2**18 + 700)).requires_grad_(), raw(2**18 + 700)
    weight, value = drawn(mean, rho)
    result = Exact()(weight, prior)
    assert weight.sums is not None
    noise = standard_normal(mean.shape, mean, generator()).double()
    wide = [tensor.detach().double().requires_grad_() for tensor in (mean, rho)]
    scale = F.softplus(wide[1])
    law = D.Normal(prior.loc.double(), prior.scale.double())
    expected = D.kl_divergence(D.Normal(wide[0], scale), law).sum()
    assert result.item() == pytest.approx(expected.item(), rel=1e-6)
    ((result / 1000) + value.square().sum()).backward()
    (expected / 1000 + (wide[0] + scale * noise).square().sum()).backward()
    torch.testing.assert_close(mean.grad.double(), wide[0].grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rho.grad.double(), wide[1].grad, rtol=1e-5, atol=1e-5)


def test_a_draw_with_sums_is_the_draw_without():
    mean, rho = torch.randn(2**17 + 3), raw(2**17 + 3)
    with torch.no_grad():
        plain = drawn(mean, rho)[1]
    torch.testing.assert_close(drawn(mean, rho)[1].detach(), plain, rtol=1e-6, atol=1e-6)


def test_either_output_alone_has_its_gradients():
    mean, rho = torch.randn(2**17, requires_grad=True), raw(2**17)
    spread, slope = F.softplus(rho.detach()), rho.detach().sigmoid()
    weight, value = drawn(mean, rho)
    result = torch.autograd.grad(Exact()(weight, D.Normal(0.0, 2.0)), (mean, rho))
    torch.testing.assert_close(result[0], mean / 4)
    torch.testing.assert_close(result[1], (spread / 4 - 1 / spread) * slope)
    weight, value = drawn(mean, rho)
    result = torch.autograd.grad(value.sum(), (mean, rho))
    assert torch.equal(result[0], torch.ones_like(mean))
    torch.testing.assert_close(result[1], standard_normal(mean.shape, mean, generator()) * slope)


def test_second_derivatives_of_draw_and_kl():
    mean, rho = torch.randn(2**17, requires_grad=True), raw(2**17, low=-2.0)
    weight, value = drawn(mean, rho)
    loss = value.square().sum() + Exact()(weight, D.Normal(0.0, 1.0))
    first = torch.autograd.grad(loss, (mean, rho), create_graph=True)
    second = torch.autograd.grad(first[1].sum(), rho)[0]
    wide = [tensor.detach().double().requires_grad_() for tensor in (mean, rho)]
    noise, scale = standard_normal(mean.shape, mean, generator()).double(), F.softplus(wide[1])
    expected = (wide[0] + scale * noise).square().sum() + (scale.square() / 2 - scale.log()).sum()
    (of_rho,) = torch.autograd.grad(expected, wide[1], create_graph=True)
    (of_of_rho,) = torch.autograd.grad(of_rho.sum(), wide[1])
    torch.testing.assert_close(second.double(), of_of_rho, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [-95.0, -80.0, -30.0, -17.5, -16.5, -1.0, 0.0, 1.0, 30.0, 1e4])
def test_extreme_scales(value):
    mean, rho = torch.zeros(2**17, requires_grad=True), torch.full((2**17,), value, requires_grad=True)
    weight, _ = drawn(mean, rho)
    scale = F.softplus(torch.tensor(value).double(), threshold=100).item()
    assert weight.sums[3].item() / 2**17 == pytest.approx(math.log(scale), rel=1e-5, abs=1e-6)
    assert weight.sums[2].item() / 2**17 == pytest.approx(scale**2, rel=1e-5, abs=1e-70)
    (result,) = torch.autograd.grad(weight.sums[3], rho)
    assert result[0].item() == pytest.approx(torch.tensor(value).double().sigmoid().item() / scale, rel=1e-5)


def test_no_sums_without_gradients_or_for_a_second_draw():
    mean, rho = torch.randn(2**17, requires_grad=True), raw(2**17)
    with torch.no_grad():
        assert drawn(mean, rho)[0].sums is None
    weight, first = drawn(mean, rho)
    sums = weight.sums
    second = weight.draw(generator())
    assert weight.sums is sums
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


def test_a_mirrored_pair_has_the_gradients_of_two_draws():
    """Also where the gradient is itself differentiated, as for a penalty on gradients."""
    pytest.importorskip("numba")
    mean, rho, noise, slopes = (large(torch.float32, seed) for seed in range(4))
    results = []
    for fused in (True, False):
        leaves = [mean.clone().requires_grad_(), (rho - 3).requires_grad_()]
        weight = RandomWeight("w", leaves[0], None, None, Normal(), leaves[1])
        pair = weight.pair(noise) if fused else (weight.sample(noise), weight.sample(-noise))
        assert (type(pair[0].grad_fn).__name__ == "_MirroredBackward") is fused
        loss = (slopes * pair[0].square() + pair[1].sin()).sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)
        plain = torch.autograd.grad((slopes * weight.pair(noise)[0] - weight.pair(noise)[1]).sum(), leaves)
        results.append([*pair, *first, *second, *plain])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_mirrored_pair_of_a_small_tensor_is_two_draws():
    leaves = [torch.zeros(3, 2, dtype=torch.float64), torch.full((3, 2), -1.0, dtype=torch.float64)]
    weight = RandomWeight("w", leaves[0], None, None, Normal(), leaves[1])
    noise = standard_normal((3, 2), leaves[0], generator())
    first, second = weight.pair(noise)
    torch.testing.assert_close(first, F.softplus(leaves[1]) * noise)
    torch.testing.assert_close(second, -first)
