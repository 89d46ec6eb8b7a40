"""Every rule: against the plain operation, a million draws, dense algebra and fine integrals; and its gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import jacrev

from leanbayes.errors import MissingRule
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.moments import RULES, MomentTensor
from tests.oracles import moments_within_standard_errors
from tests.propagate import cases as linear_cases
from tests.propagate.moments.cases import (
    ACTIVATIONS,
    ALL,
    FIRST_ORDER,
    MAXIMA,
    MULTILINEAR,
    Case,
    of_one,
    propagate,
    random,
)

DRAWS = 1_000_000
every = pytest.mark.parametrize("case", ALL, ids=str)


@every
@pytest.mark.parametrize("order", ["gaussian", "taylor"])
def test_without_variance_it_is_the_plain_operation_bit_for_bit(case: Case, order: str) -> None:
    means, variances = case.inputs()
    mean, variance = propagate(case, means, [torch.zeros_like(v) for v in variances], order=order)
    assert torch.equal(mean, case.run(*means))
    assert variance.shape == mean.shape
    assert not variance.any()


WITH_DRAWS = [case for case in ACTIVATIONS if case.off == 0] + [
    case for case in MULTILINEAR if case.name in ("x * y", "matmul", "avg_pool2d, ceil", "mean", "batch norm, eval")
]


@pytest.mark.parametrize("case", WITH_DRAWS, ids=str)
def test_an_exact_rule_agrees_with_a_million_draws(case: Case) -> None:
    means, variances = case.inputs()
    mean, variance = propagate(case, means, variances)
    moments_within_standard_errors(case.draws(means, variances, DRAWS), mean, variance, errors=4.0)


@pytest.mark.parametrize("case", MULTILINEAR, ids=str)
def test_an_exact_rule_agrees_with_dense_algebra(case: Case) -> None:
    """Var y = Σ (∂y/∂a)² σ_a² + Σ (∂²y/∂a∂b)² σ_a² σ_b², where y is linear in a and in b."""
    means, variances = case.inputs()
    mean, variance = propagate(case, means, variances)
    assert torch.equal(mean, case.run(*means))
    torch.testing.assert_close(variance, algebra(case.run, means, variances), rtol=1e-10, atol=1e-12)


def algebra(run, means: list[Tensor], variances: list[Tensor]) -> Tensor:
    out = run(*means)
    total = torch.zeros_like(out)
    places = [place for place, variance in enumerate(variances) if variance.any()]
    for place in places:
        slope = jacrev(run, place)(*means)
        total += (slope.square() * variances[place]).reshape(*out.shape, -1).sum(-1)
    for one, other in itertools.combinations(places, 2):
        mixed = jacrev(jacrev(run, one), other)(*means).square()
        both = variances[one].flatten()[:, None] * variances[other].flatten()
        total += (mixed.reshape(*out.shape, *both.shape) * both).sum((-2, -1))
    return total


@pytest.mark.parametrize("case", FIRST_ORDER, ids=str)
def test_another_rule_agrees_up_to_its_stated_error(case: Case) -> None:
    means, variances = case.inputs()
    mean, variance = propagate(case, means, variances)
    n = 20_000
    draws = case.draws(means, variances, n)
    spread = draws.std(0)
    allowed = (5 / n**0.5 + case.off) * spread
    assert ((mean - draws.mean(0)).abs() <= allowed).all()
    assert ((variance.sqrt() - spread).abs() <= allowed).all()


@every
def test_gradients(case: Case) -> None:
    means, variances = case.inputs()
    variances = [v + 0.01 for v in variances]  # at 0 the standard deviation has no slope
    leaves = [tensor.requires_grad_() for tensor in (*means, *variances)]

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        half = len(tensors) // 2
        return propagate(case, tensors[:half], tensors[half:])

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@given(st.permutations(range(2)), st.sampled_from([case for case in ALL if case.batched and case.shapes[0][0] == 2]))
@settings(max_examples=60, deadline=None)
def test_permuting_the_batch_permutes_the_moments(order: list[int], case: Case) -> None:
    means, variances = case.inputs()
    computed = propagate(case, means, variances)
    moved = propagate(case, [m[order] for m in means], [v[order] for v in variances])
    for one, other in zip(computed, moved, strict=True):
        torch.testing.assert_close(one[order], other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", MAXIMA, ids=str)
def test_the_largest_takes_the_variance_of_the_entry_with_the_largest_mean(case: Case) -> None:
    means, _ = case.inputs()
    marks = 1 + torch.arange(means[0].numel(), dtype=torch.float64).view(means[0].shape)
    mean, variance = propagate(case, means, [marks])
    assert torch.equal(mean, case.run(*means))
    assert torch.equal(means[0].flatten()[variance.long() - 1], mean)


@pytest.mark.parametrize("case", [c for c in ACTIVATIONS if len(c.shapes) == 1 and c.off == 0], ids=str)
def test_closed_forms_agree_with_a_fine_integral(case: Case) -> None:
    """Far from and near the kinks, with deviations from 1e-4 to 3."""
    mean, scale = (
        grid.reshape(-1, 3)
        for grid in torch.meshgrid(
            torch.tensor([-30.0, -4.0, -1.0, -1e-3, 0.0, 0.3, 0.95, 2.0, 7.0], dtype=torch.float64),
            torch.tensor(
                [1e-4, 1e-2, 0.3, 0.8, 1.5, 3.0] if case.name != "exp" else [1e-4, 0.3, 0.5], dtype=torch.float64
            ),
            indexing="ij",
        )
    )
    z = torch.linspace(-12, 12, 120_001, dtype=torch.float64)
    weight = torch.exp(-z.square() / 2)
    weight = weight / weight.sum()
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    for row in range(len(mean)):
        points = mean[row][None] + scale[row][None] * z[:, None]  # points, 3
        value = case.run(points)
        first[row] = (weight[:, None] * value).sum(0)
        second[row] = (weight[:, None] * (value - first[row]).square()).sum(0)
    computed_mean, computed_variance = propagate(case, [mean], [scale.square()])
    torch.testing.assert_close(computed_mean, first, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(computed_variance.sqrt(), second.sqrt(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("function", [F.relu, F.leaky_relu, F.relu6, F.elu, F.gelu, torch.tanh, F.hardtanh])
def test_in_float32_small_deviations_keep_their_digits(function) -> None:
    mean = torch.linspace(-2, 8, 41) + 0.013
    case = of_one("", function, 41)
    for sigma in (1e-3, 1e-2, 1.0):
        wide = propagate(case, [mean.double()], [torch.full((41,), sigma**2, dtype=torch.float64)])
        computed_mean, computed = propagate(case, [mean], [torch.full((41,), sigma**2)])
        assert computed_mean.dtype == computed.dtype == torch.float32
        torch.testing.assert_close(computed_mean.double(), wide[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(computed.sqrt().double(), wide[1].sqrt(), rtol=1e-2, atol=1e-3 * sigma)


def test_extremes_are_finite() -> None:
    mean = torch.tensor([-1e30, -100.0, 0.0, 100.0, 1e30])
    for case in ACTIVATIONS:
        if len(case.shapes) > 1 or case.name in ("exp", "square", "x ** 2", "x * x", "x ** 3", "prelu"):
            continue
        for v in (0.0, 1e-38, 1e-12, 1.0, 1e6):
            computed, variance = propagate(case, [mean], [torch.full((5,), v)])
            assert torch.isfinite(computed).all(), (case.name, v)
            assert torch.isfinite(variance).all(), (case.name, v)
            assert (variance >= 0).all(), (case.name, v)


@pytest.mark.parametrize("function", [F.relu, F.gelu, torch.tanh, F.softplus, F.elu, torch.sigmoid, F.hardtanh])
def test_taylor_is_the_first_order(function) -> None:
    mean = torch.tensor([-1.5, -0.2, 0.4, 2.0], dtype=torch.float64)
    computed, variance = propagate(of_one("", function, 4), [mean], [torch.full((4,), 0.3).double()], order="taylor")
    slope = torch.stack([jacrev(function)(m) for m in mean])
    assert torch.equal(computed, function(mean))
    torch.testing.assert_close(variance, slope.square() * torch.full((4,), 0.3).double())


def test_relu_at_zero_as_the_errata_have_it() -> None:
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    case = of_one("", F.relu, 1)
    assert [part.item() for part in propagate(case, [zero], [one], order="taylor")] == [0.0, 0.0]
    assert [round(part.item(), 3) for part in propagate(case, [zero], [one])] == [0.399, 0.341]


def test_softmax_has_the_full_jacobian() -> None:
    mean = torch.randn(5, dtype=torch.float64)
    variance = torch.rand(5, dtype=torch.float64)
    for function in (F.softmax, F.log_softmax):
        jacobian = jacrev(lambda z, f=function: f(z, 0))(mean)
        _, computed = propagate(of_one("", lambda z, f=function: f(z, 0), 5), [mean], [variance])
        torch.testing.assert_close(computed, jacobian.square() @ variance)


WHICH = [(True, True, True), (True, True, False), (True, False, True), (False, True, False), (False, False, True)]
LINEAR = [case for case in linear_cases.CASES if case.operation not in (F.bilinear, F.embedding)]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("case", LINEAR, ids=str)
@pytest.mark.parametrize("which", WHICH, ids=str)
def test_a_linear_layer_by_dense_algebra(case: linear_cases.Case, which: tuple[bool, bool, bool]) -> None:
    """y is bilinear: Var y = Σ (∂y/∂x)² σ_x² + Σ (∂y/∂w)² σ_w² + Σ (∂²y/∂x∂w)² σ_x² σ_w² + Σ (∂y/∂b)² σ_b²."""
    means = [case.x(), torch.randn(case.weight, dtype=torch.float64), torch.randn(case.bias, dtype=torch.float64)]
    variances = [torch.rand_like(m) if r else torch.zeros_like(m) for m, r in zip(means, which, strict=True)]
    operands = [random(m, v) if r else m for m, v, r in zip(means, variances, which, strict=True)]
    computed = case.run(*operands)
    assert isinstance(computed, MomentTensor)
    out = case.run(*means)
    assert torch.equal(computed.expected, out)
    torch.testing.assert_close(computed.variance, algebra(case.run, means, variances), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", [c for c in linear_cases.CASES if c.operation in (F.bilinear, F.embedding)], ids=str)
@pytest.mark.parametrize("part", linear_cases.RANDOM)
def test_bilinear_and_embedding(case: linear_cases.Case, part: str) -> None:
    if case.bias is None and part != "weight":
        part = "weight"
    s = linear_cases.setting(case, part)
    weight, bias = (random(w.mean, w.variance()) if isinstance(w, RandomWeight) else w for w in (s.weight, s.bias))
    computed = case.run(s.x, weight, bias)
    assert torch.equal(computed.expected, s.mean())
    torch.testing.assert_close(computed.variance, s.variance())


def test_gradients_of_a_convolution_with_everything_random() -> None:
    shapes = [(2, 2, 4), (2, 1, 3), (2,)]
    tensors = [torch.randn(s, dtype=torch.float64) for s in shapes] + [torch.rand(s).double() + 0.1 for s in shapes]

    def run(*t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        computed = F.conv1d(*(random(m, v) for m, v in zip(t[:3], t[3:], strict=True)), padding=1, groups=2)
        return computed.expected, computed.variance, computed.correlations.positions

    assert torch.autograd.gradcheck(run, [t.requires_grad_() for t in tensors], fast_mode=True)


def test_every_rule_says_whether_it_is_exact() -> None:
    assert len(RULES.rules) > 100
    for rule in RULES.rules.values():
        assert isinstance(rule.exact, bool)
        assert rule.function.__doc__
        assert rule.exact or rule.assumes


def test_batch_norm_in_training_uses_and_updates_the_statistics_of_the_means() -> None:
    x, v = torch.randn(6, 3, 4, dtype=torch.float64), torch.rand(6, 3, 4, dtype=torch.float64)
    running = [torch.zeros(3).double(), torch.ones(3).double()]
    expected = [r.clone() for r in running]
    gain = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)
    computed = F.batch_norm(random(x, v), *running, gain, None, True)
    assert torch.equal(computed.expected, F.batch_norm(x, *expected, gain, None, True))
    assert torch.equal(running[0], expected[0])
    assert torch.equal(running[1], expected[1])
    scale = (gain / (x.var((0, 2), correction=0) + 1e-5).sqrt())[:, None]
    torch.testing.assert_close(computed.variance, scale.square() * v)


@pytest.mark.parametrize("training", [True, False])
def test_random_gain_and_offset_of_a_norm(training: bool) -> None:
    """γ·x̂ + β with fixed x̂: exact, by a million draws."""
    x = torch.randn(4, 2, dtype=torch.float64)
    case = Case(
        "",
        lambda gain, offset: F.batch_norm(x, torch.zeros(2).double(), torch.ones(2).double(), gain, offset, training),
        ((2,), (2,)),
    )
    means, variances = case.inputs()
    mean, variance = propagate(case, means, variances)
    gain, offset = (m + v.sqrt() * torch.randn(DRAWS, 2).double() for m, v in zip(means, variances, strict=True))
    hat = F.batch_norm(x, torch.zeros(2).double(), torch.ones(2).double(), None, None, training)
    moments_within_standard_errors(gain[:, None] * hat + offset[:, None], mean, variance)


@pytest.mark.parametrize("drop", [F.dropout, F.dropout1d])
def test_dropout_in_training_has_one_mask_for_both(drop) -> None:
    x, v = torch.rand(40, 5, 3) + 1, torch.rand(40, 5, 3) + 1
    torch.manual_seed(3)
    plain = drop(x, 0.4, training=True)
    torch.manual_seed(3)
    computed = drop(random(x, v), 0.4, training=True)
    torch.testing.assert_close(computed.expected, plain)
    torch.testing.assert_close(computed.variance, torch.where(plain == 0, 0, v / 0.6**2))


def test_a_spelled_out_root_mean_square_norm_is_that_of_torch() -> None:
    x, v, gain = torch.randn(2, 3, 8).double(), torch.rand(2, 3, 8).double(), torch.rand(8).double()
    for setting in ({}, {"rank": 2}):
        one = F.rms_norm(random(x, v, **setting), (8,), gain, 1e-6)
        z = random(x, v, **setting)
        two = gain * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6))
        assert isinstance(one, MomentTensor)
        assert isinstance(two, MomentTensor)
        torch.testing.assert_close(two.expected, one.expected)
        torch.testing.assert_close(two.variance, one.variance)


@pytest.mark.parametrize("make", [lambda z: z, lambda z: z.pow(2), lambda z: z.mean(-1), lambda z: z.pow(3).mean(-1)])
@pytest.mark.parametrize("root", [torch.rsqrt, torch.sqrt])
def test_the_root_of_a_number_that_is_no_statistic_has_no_rule(make, root) -> None:
    z = random(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(MissingRule, match="mean of squares alone"):
        root(make(z))
