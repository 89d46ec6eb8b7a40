"""Rules that other packages add: one for each kind of operation, each for a made-up operation."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from leanbayes.errors import MissingRule
from leanbayes.propagate import moments
from leanbayes.propagate.moments import RULES, Correlations, MomentTensor
from leanbayes.propagate.moments.kinds import Norm, Resampling
from tests.oracles import moments_within_standard_errors
from tests.propagate.moments.cases import random


@pytest.fixture(autouse=True)
def leave_the_rules_as_they_were() -> Iterator[None]:
    known = dict(RULES.rules)
    yield
    RULES.rules.clear()
    RULES.rules.update(known)


def made_up(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that subclasses of Tensor can override, as those of torch are."""

    def operation(*args: Any, **kwargs: Any) -> Any:
        tensors = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        if has_torch_function(tensors):
            return handle_torch_function(operation, tensors, *args, **kwargs)
        return plain(*args, **kwargs)

    operation.__name__ = "made_up"
    return operation


def hidden_layer(rank: int = 8) -> MomentTensor:
    """A tensor whose positions, neighbours and units share noise."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 6, 5, generator=draw, dtype=torch.float64)
    for shape in ((4, 3, 3, 3), (4, 4, 3, 3)):
        w = torch.randn(shape, generator=draw, dtype=torch.float64)
        x = F.conv2d(x, random(w, torch.full_like(w, 0.04), rank=rank), padding=1)
    y = x
    assert isinstance(y, MomentTensor)
    assert None not in (y.correlations.positions, y.correlations.neighbours, y.correlations.units)
    return y


def same(computed: MomentTensor, expected: MomentTensor) -> None:
    torch.testing.assert_close(computed.expected, expected.expected)
    torch.testing.assert_close(computed.variance, expected.variance)
    for name in ("positions", "neighbours", "units"):
        one, other = (getattr(value.correlations, name) for value in (computed, expected))
        assert (one is None) == (other is None), name
        if other is not None:
            torch.testing.assert_close(one, other)


class TestElementwise:
    def test_the_author_writes_mean_and_variance_alone(self) -> None:
        bend = made_up(lambda x, scale=1.0: F.softplus(scale * x) / scale)

        @RULES.elementwise(bend, exact=False, assumes="first order")
        def bent(function, mean, variance, scale=1.0):
            """By the slope at the mean."""
            return function(mean), torch.sigmoid(scale * mean).square() * variance

        y = hidden_layer()
        computed = bend(y, scale=2.0)
        torch.testing.assert_close(computed.expected, F.softplus(2 * y.expected) / 2)
        torch.testing.assert_close(computed.variance, torch.sigmoid(2 * y.expected).square() * y.variance)
        assert computed.correlations.units.shape == y.correlations.units.shape
        assert (computed.correlations.positions <= y.correlations.positions + 1e-12).all()

    def test_correlations_pass_by_the_slope(self) -> None:
        thrice = made_up(lambda x: -3 * x)

        @RULES.elementwise(thrice, exact=True)
        def tripled(function, mean, variance):
            """9 times the variance."""
            return function(mean), 9 * variance

        y = hidden_layer()
        same(thrice(y), y * -3)

    def test_it_agrees_with_draws(self) -> None:
        cube = made_up(lambda x: x**3)

        @RULES.elementwise(cube, exact=True, assumes="a Gaussian input")
        def cubed(function, mean, variance):
            """E z³ = μ³ + 3μσ², Var z³ = 9μ⁴σ² + 36μ²σ⁴ + 15σ⁶."""
            spread = 9 * mean**4 * variance + 36 * mean**2 * variance**2 + 15 * variance**3
            return function(mean) + 3 * mean * variance, spread

        mean, variance = torch.tensor([0.3, -1.0, 2.0]).double(), torch.tensor([0.2, 0.1, 0.3]).double()
        computed = cube(random(mean, variance))
        draws = (mean + variance.sqrt() * torch.randn(1_000_000, 3).double()) ** 3
        moments_within_standard_errors(draws, computed.expected, computed.variance)

    def test_first_order_asks_the_author_for_nothing(self) -> None:
        bend = made_up(torch.tanh)

        @RULES.elementwise(bend, exact=True)
        def bent(function, mean, variance):
            """Never called."""
            raise AssertionError

        mean, variance = torch.randn(5).double(), torch.rand(5).double()
        computed = bend(random(mean, variance, order="taylor"))
        torch.testing.assert_close(computed.variance, (1 - torch.tanh(mean).square()).square() * variance)

    def test_without_a_slope_positions_alone_are_followed(self) -> None:
        bend = made_up(torch.square)

        @RULES.elementwise(bend, exact=True, slope=False)
        def bent(function, mean, variance):
            """As for squares."""
            return function(mean) + variance, 4 * mean.square() * variance + 2 * variance.square()

        y = hidden_layer()
        same(bend(y), y**2)
        assert bend(y).correlations == Correlations(y.correlations.positions)

    def test_another_random_argument_is_refused(self) -> None:
        bend = made_up(lambda x, other: x + other)

        @RULES.elementwise(bend, exact=True)
        def bent(function, mean, variance, other):
            """Of one random argument."""
            return function(mean), variance

        y = hidden_layer()
        with pytest.raises(MissingRule, match="only its first argument"):
            bend(y, y)

    def test_a_call_that_the_author_does_not_know_is_refused(self) -> None:
        bend = made_up(lambda x, scale=1.0, other=None: x)

        @RULES.elementwise(bend, exact=True)
        def bent(function, mean, variance, scale=1.0):
            """Without the third argument."""
            return function(mean), variance

        with pytest.raises(MissingRule, match="its rule does not know"):
            bend(hidden_layer(), other=3)


def test_linear_operations_need_only_mean_and_variance() -> None:
    mix = made_up(lambda x, w: torch.einsum("bi,oi->bo", x, w))

    @RULES.linear(mix, exact=True, assumes="independent outputs")
    def mixed(operation, x, w):
        """Random weights and plain inputs."""
        return operation(x, w.expected), operation(x.square(), w.variance)

    x, w, v = torch.randn(3, 4), torch.randn(5, 4), torch.rand(5, 4)
    computed = mix(x, random(w, v))
    torch.testing.assert_close(computed.variance, x.square() @ v.T)
    assert computed.correlations == Correlations()


def test_rearranging_operations_need_no_body() -> None:
    exchange, halves = made_up(lambda x, a, b: x.transpose(a, b)), made_up(lambda x: x.chunk(2, 1))
    RULES.rearranging(exchange)
    RULES.rearranging(halves)
    y = hidden_layer()
    same(exchange(y, 1, 3), y.transpose(1, 3))
    for one, other in zip(halves(y), y.chunk(2, 1), strict=True):
        same(one, other)


def test_reducing_operations_need_no_body() -> None:
    total, average = (made_up(lambda x, f=f, **kwargs: f(x, **kwargs)) for f in (torch.sum, torch.mean))
    RULES.reducing(total, means=(average,))
    y = hidden_layer()
    for keepdim in (True, False):
        same(total(y, (2, 3), keepdim), y.sum((2, 3), keepdim))
        same(average(y, -1, keepdim), y.mean(-1, keepdim))


def test_resampling_operations_need_the_map_of_one_axis() -> None:
    pool = made_up(lambda x: F.avg_pool2d(x, (3, 1)))

    @RULES.resampling(pool, exact=True)
    def pooled(operation, mean):
        """Averages of three rows."""
        return Resampling(operation, lambda eye, axis: F.avg_pool1d(eye, 3 if axis == 0 else 1), 2)

    y = hidden_layer()
    same(pool(y), F.avg_pool2d(y, (3, 1)))


def test_norms_need_the_normed_means_and_the_statistics() -> None:
    centre = made_up(lambda x: x - x.mean((2, 3), keepdim=True))

    @RULES.norm(centre, exact=False, assumes="the mean does not move")
    def centred(operation, input):
        """Without a scale: y = x - mean."""
        mean = input.expected.mean((2, 3), keepdim=True)
        return Norm(operation(input.expected), mean, torch.ones_like(mean))

    y = hidden_layer()
    computed = centre(y)
    torch.testing.assert_close(computed.variance, y.variance)
    torch.testing.assert_close(computed.expected.mean((2, 3)), torch.zeros(2, 4).double())
    torch.testing.assert_close(computed.correlations.units, y.correlations.units)


def test_without_a_rule_the_error_names_the_operation_the_module_and_what_to_do() -> None:
    operation = made_up(torch.relu)

    class Bend(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return operation(x)

    model = nn.Sequential(nn.Identity(), Bend())
    y = random(torch.ones(2, 3), torch.ones(2, 3), model=model)
    with pytest.raises(MissingRule, match=r"made_up.*module '1' \(Bend\).*@RULES\.rule.*leanbayes\.propagate\.moments"):
        model(y)
    RULES.elementwise(operation, exact=True)(lambda function, mean, variance: (function(mean), variance))
    assert isinstance(model(y), MomentTensor)


def test_a_second_rule_for_an_operation_raises() -> None:
    with pytest.raises(ValueError, match="already"):
        RULES.rearranging(torch.transpose)


@pytest.mark.parametrize("kernels", ["exact", "box"])
def test_a_convolution_crosses_four_files_of_this_package(kernels: str) -> None:
    package = Path(moments.__file__).parent
    crossed: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if package in path.parents:
            crossed.add(path.relative_to(package).as_posix())

    x, w = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    operands = [random(value, value.square(), rank=8, kernels=kernels) for value in (x, w)]
    sys.setprofile(note)
    try:
        F.conv2d(*operands)
    finally:
        sys.setprofile(None)
    assert crossed == {"tensor.py", "kinds.py", "rules/linear.py", "correlations.py"}
