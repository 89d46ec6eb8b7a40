"""Gaussian draws from mean and variance in one sweep: against the kernel's own noise in float64, and statistics."""

import pytest
import torch
from scipy import stats

from leanbayes._ops.normal import fill, in_memory_order, seed_of
from leanbayes._ops.safe_sqrt import draw_normal

LARGE = 2**17


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def noise_of(tensor, seed=3):
    """The kernel's ξ for a draw of this generator, laid out as ``tensor``: numbered in the order of memory."""
    flat = fill(torch.empty(tensor.numel()), seed_of(seeded(seed))).double()
    laid = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.float64)
    in_memory_order(laid).view(-1).copy_(flat)
    return laid


LAYOUTS = {
    "one axis": lambda: torch.randn(LARGE),
    "plain, odd sizes": lambda: torch.randn(3, 41, 37, 29),
    "batch innermost": lambda: torch.randn(40, 31, 29, 5).permute(3, 0, 1, 2),
    "channels last": lambda: torch.randn(8, 5, 61, 63).contiguous(memory_format=torch.channels_last),
    "exchanged": lambda: torch.randn(1, 400, 1, 331).transpose(1, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_gradients_against_float64(layout):
    mean = LAYOUTS[layout]()
    assert mean.numel() >= LARGE
    variance = torch.empty_like(mean).uniform_(0, 2)
    assert variance.stride() == mean.stride()
    mean.requires_grad_()
    variance.requires_grad_()
    xi, weight = noise_of(mean), torch.randn_like(mean)
    drawn = draw_normal(mean, variance, seeded())
    assert drawn.stride() == mean.stride()
    exact = mean.double() + variance.double().sqrt() * xi
    torch.testing.assert_close(drawn.double(), exact, rtol=1e-6, atol=1e-6)
    ours = torch.autograd.grad((drawn * weight).sum(), (mean, variance))
    theirs = torch.autograd.grad((exact * weight.double()).sum(), (mean, variance))
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=0)
    torch.testing.assert_close(ours[1], theirs[1], rtol=2e-6, atol=1e-6)


def test_it_is_standard_normal_after_scaling():
    mean, variance = torch.linspace(-3, 3, 2**19), torch.linspace(0.01, 4, 2**19)
    scaled = (draw_normal(mean, variance, seeded()) - mean) / variance.sqrt()
    assert stats.kstest(scaled.double(), "norm").pvalue > 1e-3
    n = len(scaled)
    for power, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(scaled.double().pow(power).mean()) - expected) < 4 * (spread / n) ** 0.5
    assert abs(float((scaled[1:] * scaled[:-1]).mean())) < 4 / n**0.5


def test_the_generator_decides():
    mean, variance = torch.zeros(LARGE), torch.ones(LARGE)
    first = draw_normal(mean, variance, seeded(1))
    assert torch.equal(first, draw_normal(mean, variance, seeded(1)))
    assert not torch.equal(first, draw_normal(mean, variance, seeded(2)))
    one = seeded(1)
    draw_normal(mean, variance, one)
    assert not torch.equal(first, draw_normal(mean, variance, one))


def test_a_variance_of_zero_or_rounded_below_gives_the_mean_and_no_slope():
    mean = torch.randn(LARGE)
    variance = torch.tensor([0.0, -1e-9, -1.0, 1.0]).repeat(LARGE // 4).requires_grad_()
    drawn = draw_normal(mean, variance, seeded())
    still = variance.detach() <= 0
    assert torch.equal(drawn[still], mean[still])
    assert (drawn[~still] != mean[~still]).all()
    (slope,) = torch.autograd.grad(drawn.sum(), variance)
    assert (slope[still] == 0).all()
    assert slope.isfinite().all()
    assert (slope[~still] != 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(bad):
    mean, variance = torch.zeros(LARGE), torch.ones(LARGE)
    variance[5], mean[7] = bad, bad
    drawn = draw_normal(mean, variance)
    assert not drawn[5].isfinite()
    assert not drawn[7].isfinite()
    assert int((~drawn.isfinite()).sum()) == 2


def test_only_what_asks_gets_a_gradient():
    mean, variance = torch.zeros(LARGE), torch.ones(LARGE)
    assert not draw_normal(mean, variance).requires_grad
    drawn = draw_normal(mean.requires_grad_(), variance)
    (of_mean,) = torch.autograd.grad(drawn.sum(), mean)
    assert (of_mean == 1).all()
    mean.requires_grad_(False)
    drawn = draw_normal(mean, variance.requires_grad_(), seeded())
    (of_variance,) = torch.autograd.grad(drawn.sum(), variance)
    torch.testing.assert_close(of_variance.double(), noise_of(mean) / 2, rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        assert not draw_normal(mean, variance).requires_grad


def test_a_second_derivative_is_refused():
    mean, variance = torch.zeros(LARGE, requires_grad=True), torch.ones(LARGE, requires_grad=True)
    drawn = draw_normal(mean, variance)
    (first,) = torch.autograd.grad(drawn.square().sum(), variance, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("mean", "variance"),
    [
        (torch.zeros(1024, 256), torch.ones(1, 256)),  # the same strides, another shape
        (torch.zeros(1024, 256), torch.ones(256)),
        (torch.zeros(1024, 256), torch.ones(256, 1024).t()),
        (torch.zeros(1024, 256), torch.ones(()).expand(1024, 256)),
        (torch.zeros(1024, 512)[:, ::2], torch.ones(1024, 512)[:, ::2]),
        (torch.zeros(1024, 256), torch.ones(1024, 256, dtype=torch.float64)),
        (torch.zeros(1024, 256, dtype=torch.float64), torch.ones(1024, 256, dtype=torch.float64)),
        (torch.zeros(1024, 256, dtype=torch.bfloat16), torch.ones(1024, 256, dtype=torch.bfloat16)),
        (torch.zeros(1, 256), torch.ones(1, 256)),
    ],
    ids=["row", "vector", "exchanged", "expanded", "gaps", "mixed", "double", "half", "small"],
)
def test_what_the_kernel_does_not_take_is_drawn_all_the_same(mean, variance):
    drawn = draw_normal(mean, variance, seeded())
    assert drawn.shape == mean.shape
    assert drawn.isfinite().all()
    n = drawn.numel()
    assert abs(float(drawn.double().square().mean()) - 1) < 4 * (2 / n) ** 0.5 + (0.01 if mean.itemsize == 2 else 0)


def test_transforms_take_the_plain_way():
    mean, variance = torch.zeros(3, LARGE), torch.ones(3, LARGE)
    drawn = torch.func.vmap(draw_normal, randomness="different")(mean, variance)
    assert abs(float(drawn.double().std()) - 1) < 0.01
    slope = torch.func.grad(lambda v: draw_normal(mean[0], v, seeded()).sum())(variance[0])
    assert slope.shape == (LARGE,)
    assert slope.isfinite().all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_is_reused_where_that_is_allowed_and_nothing_else_changes(layout):
    mean = LAYOUTS[layout]()
    variance = torch.empty_like(mean).uniform_(0, 2).requires_grad_()
    mean.requires_grad_()
    weight, computed = torch.randn_like(mean), []
    for reuse in (False, True):
        a, b = 2 * mean, 3 * variance  # neither product needs its result for its gradient
        drawn = draw_normal(a, b, seeded(), reuse=reuse)
        assert (drawn.data_ptr() == a.data_ptr()) is reuse
        computed.append((drawn.detach().clone(), *torch.autograd.grad((drawn * weight).sum(), (mean, variance))))
    for plain, again in zip(*computed, strict=True):
        assert torch.equal(plain, again)


def test_a_local_network_has_the_same_gradients_whether_memory_is_reused_or_not(monkeypatch):
    """What makes a layer's mean and variance must not need them any more; a network tells if it did."""
    import leanbayes as lb
    from leanbayes.propagate import local

    def gradients(subspace):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3))
        bnn = lb.Bayesian(model, subspace=subspace, propagate="local")
        bnn(torch.randn(16, 3, 32, 32), generator=seeded()).square().mean().backward()
        return [p.grad for p in bnn.parameters() if p.grad is not None]

    asked = []

    def never(mean, variance, generator, *, reuse):
        asked.append((reuse, mean.numel() >= LARGE))
        return draw_normal(mean, variance, generator)

    for subspace in (lb.everything(), lb.sparse(0.5)):
        ours = gradients(subspace)
        with monkeypatch.context() as patch:
            patch.setattr(local, "draw_normal", never)
            theirs = gradients(subspace)
        assert len(ours) == len(theirs) > 3
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two)
    assert asked == [(True, True)] * 4
