"""What positions, neighbours and units share: against draws, exact covariances, and operations that change nothing."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.lab.models import mlp
from leanbayes.propagate.moments import Correlations, MomentTensor, Setting
from tests.propagate.moments.cases import ALL, propagate, random


def layer(x: Tensor, w: Tensor, b: Tensor, **setting) -> MomentTensor:
    """Return a 1x1 convolution of a plain input: the variance of its mean over positions has a closed form."""
    return F.conv1d(x, random(w, torch.full_like(w, 0.04), **setting), random(b, torch.full_like(b, 0.01), **setting))


@pytest.fixture
def parts() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(3, 4, 10, dtype=torch.float64) + torch.tensor([0.0, 1.0, -2.0])[:, None, None]
    return x, torch.randn(5, 4, 1, dtype=torch.float64), torch.randn(5, dtype=torch.float64)


def truth(x: Tensor) -> Tensor:
    """Var mean_p(Σ_c w_c x_cp + b) = Σ_c σ_w² x̄_c² + σ_b²."""
    return (0.04 * x.mean(2).square().sum(1) + 0.01)[:, None].expand(-1, 5)


AVERAGES = {
    "mean": lambda y: y.mean(2),
    "mean, axis from the end": lambda y: y.mean(-1),
    "sum": lambda y: y.sum(2) / 10,
    "adaptive": lambda y: F.adaptive_avg_pool1d(y, 1).squeeze(2),
    "average pooling": lambda y: F.avg_pool1d(y, 10).flatten(1),
    "after permuting": lambda y: y.permute(2, 0, 1).mean(0),
    "after folding and back": lambda y: y.reshape(3, 5, 2, 5).mean((2, 3)),
    "in two steps": lambda y: y.view(3, 5, 5, 2).mean(3).mean(2),
    "by a product": lambda y: y @ torch.full((10,), 0.1, dtype=torch.float64)[:, None],
    "after scaling": lambda y: (2 * y - 3).mean(2) / 2,
    "after padding and cropping": lambda y: F.pad(y, (2, 1))[..., 2:-1].mean(2),
    "after joining channels": lambda y: torch.cat([y, y], 1)[:, :5].mean(2),
    "after joining positions": lambda y: torch.cat([y[..., :4], y[..., 4:]], 2).mean(2),
}

AT_ONCE = ("mean", "mean, axis from the end", "sum", "after permuting", "after folding and back", "after scaling")


@pytest.mark.parametrize("name", AVERAGES)
def test_the_variance_of_an_average_over_positions_is_right(parts, name):
    """It is exact for the mean over all positions at once; in parts, or by a product, it is within 12 %."""
    y = layer(*parts)
    computed = AVERAGES[name](y).variance.reshape(3, 5)
    torch.testing.assert_close(computed.sqrt(), truth(parts[0]).sqrt(), rtol=1e-9 if name in AT_ONCE else 0.12, atol=0)


def test_independent_positions_average_out_and_fully_shared_ones_do_not(parts):
    x, w, b = parts
    alone = layer(x, w, b, positions="independent")
    assert alone.correlations.positions is None
    torch.testing.assert_close(alone.mean(2).variance, alone.variance.mean(2) / 10)
    one = layer(x, w, b, positions="shared")
    torch.testing.assert_close(one.mean(2).variance, one.variance.mean(2))
    split = layer(x, w, b).mean(2).variance
    assert (alone.mean(2).variance < split).all()
    assert (split < one.mean(2).variance).all()


def test_equal_positions_are_one(parts):
    _, w, b = parts
    x = torch.randn(3, 4, 1, dtype=torch.float64).expand(3, 4, 10)
    y = layer(x, w, b)
    torch.testing.assert_close(y.correlations.positions, torch.ones(3, 5, 1, dtype=torch.float64))
    torch.testing.assert_close(y.mean(2).variance, y.variance[..., 0])


def test_channels_are_independent(parts):
    y = layer(*parts)
    torch.testing.assert_close(y.mean(1).variance, y.variance.sum(1) / 25)
    flat = y.flatten(1)
    assert flat.correlations.positions is None


def test_input_noise_is_independent_between_positions():
    x = random(torch.randn(2, 3, 6).double(), torch.rand(2, 3, 6).double())
    y = F.conv1d(x, torch.randn(4, 3, 1).double())
    assert y.correlations.positions is None
    torch.testing.assert_close(y.mean(2).variance, y.variance.sum(2) / 36)


def test_tokens_share_the_weight_of_a_linear_layer():
    x, w = torch.randn(2, 7, 3).double() + 1, torch.randn(4, 3).double()
    for apply in (lambda r: F.linear(x, r), lambda r: x @ r.T):
        y = apply(random(w, torch.full_like(w, 0.09)))
        truth = (0.09 * x.mean(1).square().sum(1)).sqrt()[:, None].expand(-1, 4)
        torch.testing.assert_close(y.mean(1).variance.sqrt(), truth, rtol=0.12, atol=0)


def test_a_bias_is_shared_in_full():
    b = random(torch.zeros(3).double(), torch.tensor([1.0, 4.0, 9.0]).double())
    x = torch.randn(2, 5, 3).double()
    for y in (x + b, F.linear(x, torch.eye(3).double(), b)):
        torch.testing.assert_close(y.mean(1).variance, b.variance.expand(2, 3))


def test_two_layers_against_draws():
    """Convolution, relu, convolution, average: "split" is within 12 % of 4,000 draws, and the other two are worse."""
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    shapes = [(6, 3, 3), (6,), (4, 6, 3), (4,)]
    means = [torch.randn(s, dtype=torch.float64) * 0.4 for s in shapes]
    scale = 0.1

    def net(w1, b1, w2, b2):
        return F.conv1d(F.relu(F.conv1d(x, w1, b1, padding=1)), w2, b2, padding=1).mean(2)

    draws = torch.stack([net(*(m + scale * torch.randn_like(m) for m in means)) for _ in range(4_000)]).std(0)
    error = {}
    for positions in ("split", "shared", "independent"):
        computed = net(*(random(m, torch.full_like(m, scale**2), positions=positions) for m in means))
        error[positions] = ((computed.variance.sqrt() - draws) / draws).abs().mean().item()
    assert error["split"] < 0.12, error
    assert error["split"] < min(error["shared"], error["independent"]), error


def weights(*shapes: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(shape).double(), 0.05 + 0.1 * torch.rand(shape).double()) for shape in shapes]


def chain(x: Tensor, layers, rank: int, between=lambda y: y, apply=F.linear) -> MomentTensor:
    for mean, variance in layers:
        x = apply(between(x), random(mean, variance, rank=rank))
    return x


def exact_covariance(x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the covariance after a chain of linear layers: C' = W C Wᵀ + diag(Σ σ_w² E x²)."""
    covariance = torch.zeros(len(x), x.shape[1], x.shape[1], dtype=x.dtype)
    for mean, variance in layers:
        fresh = F.linear(x.square() + covariance.diagonal(dim1=1, dim2=2), variance)
        covariance = mean @ covariance @ mean.T + torch.diag_embed(fresh)
        x = F.linear(x, mean)
    return covariance


LAYERS = [(9, 4), (8, 9), (6, 8), (5, 6)]


def test_with_a_factor_for_each_unit_a_chain_of_linear_layers_is_exact():
    x, layers = torch.randn(3, 4).double(), weights(*LAYERS)
    truth = exact_covariance(x, layers).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(chain(x, layers, 16).variance, truth, rtol=1e-3, atol=0)
    error = [((chain(x, layers, rank).variance - truth) / truth).abs().mean() for rank in (0, 3, 16)]
    assert error[0] > 2 * error[1] > 4 * error[2]


def test_units_of_one_layer_with_a_plain_input_are_independent():
    y = F.linear(torch.randn(3, 4).double(), random(*weights((5, 4))[0], rank=8))
    assert y.correlations == Correlations()


def test_a_filter_of_one_pixel_over_equal_pixels_is_a_linear_layer():
    x, layers = torch.randn(3, 4).double(), weights(*LAYERS)
    image = x[..., None, None].expand(-1, -1, 3, 5)
    filters = [(m[..., None, None], v[..., None, None]) for m, v in layers]
    computed = chain(image, filters, 16, apply=F.conv2d)
    truth = exact_covariance(x, layers).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(
        computed.variance, truth[..., None, None].expand_as(computed.variance), rtol=1e-3, atol=0
    )
    torch.testing.assert_close(computed.mean((2, 3)).variance, truth, rtol=1e-3, atol=0)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_filter_over_one_pixel_counts_only_what_falls_on_it(padding):
    x, layers = torch.randn(3, 4).double(), weights(*LAYERS)
    size = 1 + 2 * padding
    filters = [tuple(torch.randn(*m.shape, size, size).double().square() for m in layer) for layer in layers]
    for (w, v), (m, s) in zip(filters, layers, strict=True):
        w[..., padding, padding], v[..., padding, padding] = m, s
    computed = chain(x[..., None, None], filters, 16, apply=lambda z, w: F.conv2d(z, w, padding=padding))
    truth = exact_covariance(x, layers).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(computed.variance.flatten(1), truth, rtol=1e-3, atol=0)


NOTHING = {
    "there and back": lambda y: y.unsqueeze(1).transpose(1, 2).reshape(len(y), -1),
    "flip twice": lambda y: y.flip(-1)[..., range(y.shape[-1] - 1, -1, -1)],
    "minus twice": lambda y: torch.neg(torch.neg(y)),
    "times and over": lambda y: 3 * y / 3,
    "by a vector": lambda y: y * torch.arange(1.0, y.shape[-1] + 1) / torch.arange(1.0, y.shape[-1] + 1),
    "from a number": lambda y: 2 - (2 - y),
    "plus nothing": lambda y: y + torch.zeros(y.shape[-1]),
    "leaky relu of slope 1": lambda y: F.leaky_relu(y, 1.0),
    "clone": lambda y: y.clone().contiguous().to(torch.float64),
    "batch norm of nothing": lambda y: F.batch_norm(
        y, torch.zeros(y.shape[-1]).double(), torch.ones(y.shape[-1]).double(), eps=0
    ),
    "in place": lambda y: y.clone().mul_(-1).neg_() if isinstance(y, MomentTensor) else y,
    "the part that is all": lambda y: y.split([y.shape[-1]], -1)[0],
    "joined with nothing random": lambda y: torch.cat([y, torch.zeros(len(y), 2).double()], -1)[:, : y.shape[-1]],
}


@pytest.mark.parametrize("name", NOTHING)
def test_an_operation_that_changes_nothing_changes_no_correlation(name):
    x, layers = torch.randn(3, 4).double(), weights((8, 4), (8, 8), (6, 8), (6, 6))
    plain, other = chain(x, layers, 8), chain(x, layers, 8, NOTHING[name])
    assert not torch.allclose(plain.variance, chain(x, layers, 0).variance, rtol=0.05)
    torch.testing.assert_close(other.variance, plain.variance, rtol=1e-6, atol=1e-9)


ONE_PIXEL = {
    "mean": lambda y: y.mean((2, 3)),
    "sum": lambda y: y.sum((-2, -1)),
    "adaptive": lambda y: F.adaptive_avg_pool2d(y, 1).flatten(1),
    "pooling": lambda y: F.max_pool2d(F.avg_pool2d(y, 1), 1).flatten(1),
    "squeeze": lambda y: y.squeeze(3).squeeze(2),
}


@pytest.mark.parametrize("name", ONE_PIXEL)
def test_the_average_of_one_pixel_is_that_pixel(name):
    x, layers = torch.randn(3, 4).double(), weights(*LAYERS)
    filters = [(m[..., None, None], v[..., None, None]) for m, v in layers[:3]]
    hidden = chain(x[..., None, None], filters, 16, apply=F.conv2d)
    computed = F.linear(ONE_PIXEL[name](hidden), random(*layers[3], rank=16))
    truth = exact_covariance(x, layers).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(computed.variance, truth, rtol=1e-3, atol=0)


def test_tokens_are_correlated_as_pixels_are():
    x, layers = torch.randn(2, 7, 4).double(), weights(*LAYERS)
    tokens = chain(x, layers, 8)
    pixels = chain(x.mT, [(m[..., None], v[..., None]) for m, v in layers], 8, apply=F.conv1d)
    assert tokens.correlations.units.shape == (5, 2, 1, 5)
    assert pixels.correlations.units.shape == (5, 2, 5, 1)
    for y in (tokens.mT, pixels):
        assert (y.variance > 0).all()
        assert (y.correlations.units.square().sum(0) <= 1 + 1e-9).all()


def test_a_norm_takes_what_all_units_have_in_common():
    """All units of z = x + ε share one ε, and layer norm leaves nothing of it."""
    noise = random(torch.zeros(2, 1).double(), torch.ones(2, 1).double(), rank=8)
    hidden = F.linear(noise, torch.ones(6, 1).double()) + torch.randn(2, 6).double()
    torch.testing.assert_close(hidden.variance, torch.ones(2, 6).double())
    assert F.layer_norm(hidden, (6,)).variance.max() < 1e-4


@pytest.mark.parametrize("norm", [lambda x: F.layer_norm(x, (64,)), lambda x: F.rms_norm(x, (64,)),
    lambda x: F.group_norm(x, 2), lambda x: F.instance_norm(x.unflatten(1, (2, 32))).flatten(1)])  # fmt: skip
def test_the_statistics_of_a_norm_are_the_expected_ones(norm):
    """The noise is as large as the numbers themselves; the result is within 10 % of a long Monte Carlo."""
    mean, scale = torch.randn(2, 64).double(), 0.5 + torch.rand(2, 64).double()
    computed = norm(random(mean, scale.square()))
    draws = norm((mean + scale * torch.randn(20_000, 2, 64).double()).flatten(0, 1)).view(-1, 2, 64)
    deviation = draws.std(0)
    assert ((computed.variance.sqrt() - deviation).abs() / deviation).mean() < 0.1
    assert ((computed.expected - draws.mean(0)).abs() / deviation).mean() < 0.1


@pytest.mark.parametrize("case", ALL, ids=str)
def test_zero_variance_gives_back_the_plain_operation_with_factors_too(case):
    means, _ = case.inputs()
    mean, variance = propagate(case, means, [torch.zeros_like(m) for m in means], rank=8)
    assert torch.equal(mean, case.run(*means))
    assert not variance.any()


def net(x: Tensor, *t: Tensor) -> tuple[Tensor, Tensor]:
    layers = [random(m, v, rank=4) for m, v in zip(t[::2], t[1::2], strict=True)]
    y = F.relu(F.conv2d(x, layers[0], padding=1))
    y = F.relu(F.conv2d(y, layers[1], padding=1)) + y
    y = F.gelu(F.linear(y.mean((2, 3)), layers[2]))
    y = F.linear(F.layer_norm(y, (7,)), layers[3])
    return y.expected, y.variance


def test_gradients_with_factors():
    tensors = [part for layer in weights((6, 2, 3, 3), (6, 6, 3, 3), (7, 6), (3, 7)) for part in layer]
    x = torch.randn(2, 2, 5, 4).double()
    assert torch.autograd.gradcheck(net, [t.requires_grad_() for t in (x, *tensors)], fast_mode=True, atol=1e-5)


def test_nothing_is_divided_by_nothing():
    """Nearly no weight is random, or none at all."""
    tensors = [part for layer in weights((6, 2, 3, 3), (6, 6, 3, 3), (7, 6), (3, 7)) for part in layer]
    for few in (0, 1, 5):
        sparse = [t if i % 2 == 0 else t * (torch.arange(t.numel()).view(t.shape) < few) for i, t in enumerate(tensors)]
        given = [t.detach().requires_grad_() for t in sparse]
        mean, variance = net(torch.randn(2, 2, 5, 4).double(), *given)
        (mean.sum() + variance.sum()).backward()
        assert torch.isfinite(variance).all()
        assert all(torch.isfinite(t.grad).all() for t in given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype):
    tensors = [part.to(dtype) for layer in weights((6, 2, 3, 3), (6, 6, 3, 3), (7, 6), (3, 7)) for part in layer]
    x = torch.randn(2, 2, 5, 4)
    computed, exact = net(x.to(dtype), *tensors), net(x.double(), *(t.double() for t in tensors))
    assert computed[1].dtype == dtype
    torch.testing.assert_close(computed[1].double(), exact[1], rtol=1e-3 if dtype == torch.float32 else 0.2, atol=1e-3)


def test_a_perceptron_whose_layers_are_aligned_against_samples():
    """Each layer reads what the layer before writes, as after training: without factors, 0.6 of the deviation."""
    model = mlp(8, 4, width=(64, 48, 48)).double()
    pattern = torch.randn(4).double()
    with torch.no_grad():
        for layer in model:
            if hasattr(layer, "weight"):
                n, m = layer.weight.shape
                layer.weight += 0.6 * torch.outer(pattern.repeat(n // 4).sign(), pattern.repeat(m // 4).sign()) / m**0.5
    bnn, x = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.05)), torch.randn(12, 8).double()
    with torch.no_grad():
        drawn = bnn.draw(6000, generator=torch.Generator().manual_seed(0))
        run = torch.func.vmap(lambda w: torch.func.functional_call(model, w, (x,)))
        truth = torch.cat([run({k: v[i : i + 1000] for k, v in drawn.items()}) for i in range(0, 6000, 1000)]).std(0)
        deviations = {rank: lb.moments(bnn, x, by=lb.propagate.Moments(rank=rank))[1].sqrt() for rank in (0, 8)}
        error = {rank: (deviation / truth - 1).abs().mean() for rank, deviation in deviations.items()}
    assert error[8] < 0.05, error
    assert error[0] > 4 * error[8], error


def test_by_default_factors_are_followed_with_and_without_gradients():
    bnn, x = lb.Bayesian(mlp(6, 3)), torch.randn(4, 6)
    with torch.no_grad():
        eight, none = (lb.moments(bnn, x, by=lb.propagate.Moments(rank=rank))[1] for rank in (8, 0))
        assert torch.equal(lb.moments(bnn, x)[1], eight)
    torch.testing.assert_close(lb.moments(bnn, x)[1].detach(), eight)
    assert not torch.allclose(eight, none)


def test_rank_is_checked():
    with pytest.raises(InputError, match="rank"):
        Setting(rank=-1)
