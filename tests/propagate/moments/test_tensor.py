import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import LeanBayesError, UnknownName
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate.moments import RULES, MissingRule, MomentTensor, Setting, draw_moments
from tests.oracles import moments_within_standard_errors
from tests.propagate.moments.cases import random


@pytest.fixture
def x() -> MomentTensor:
    return random(torch.randn(2, 3, 4), torch.rand(2, 3, 4))


class TestMissingRule:
    @pytest.mark.parametrize(
        "operation",
        [
            torch.fft.fft,
            torch.linalg.norm,
            lambda x: x > 0,
            lambda x: 1 / x,
            lambda x: x / x,
            lambda x: x.item(),
            bool,
            float,
            lambda x: x.tolist(),
            lambda x: x.numpy(),
            lambda x: x.data,
            lambda x: x.argmax(),
            lambda x: x.cumsum(0),
            lambda x: x.max(),
            lambda x: torch.max(x, x),
            lambda x: torch.max(x, torch.zeros(())),
            lambda x: F.alpha_dropout(x, training=True),
            lambda x: torch.sort(x),
            lambda x: torch.lgamma(x),
            lambda x: torch.add(x, 1, out=torch.empty(2, 3, 4)),
            lambda x: torch.zeros(2, 3, 4).add_(x),
            lambda x: torch.zeros(2, 3, 4).__setitem__(0, x[0]),
            lambda x: torch.zeros(2, 3, 4).copy_(x),
            lambda x: torch.bilinear(x, x, torch.ones(1, 4, 4), None),
            lambda x: torch.einsum("bii->b", x[:, :, :3]),
            lambda x: torch.lstm_cell(x, (x, x), x, x),
            lambda x: torch.ones(5)[x],
            lambda x: torch.ops.aten.relu(x),
        ],
    )
    def test_nothing_falls_to_the_mean(self, x, operation):
        with pytest.raises(MissingRule):
            operation(x)

    def test_it_names_the_operation_the_module_and_the_way_out(self):
        class Spectrum(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.fft.fft(x)

        model = nn.Sequential(nn.Identity(), nn.Sequential(nn.ReLU(), Spectrum()))
        y = random(torch.ones(2, 3), torch.ones(2, 3), model=model)
        with pytest.raises(MissingRule, match=r"fft_fft.*module '1\.1' \(Spectrum\).*@RULES\.rule"):
            model(y)

    def test_it_is_an_error_of_ours(self):
        assert issubclass(MissingRule, LeanBayesError)
        assert issubclass(MissingRule, NotImplementedError)

    def test_a_second_rule_for_an_operation_raises(self):
        with pytest.raises(ValueError, match="already"):
            RULES.rule(F.relu, exact=True)(lambda operation, x: x)


class TestQuestions:
    def test_shape_type_and_place(self, x):
        assert x.shape == x.size() == (2, 3, 4)
        assert (x.dim(), x.ndim, x.numel(), len(x), x.size(-1)) == (3, 3, 24, 2, 4)
        assert (x.dtype, x.device, x.is_floating_point()) == (torch.float32, torch.device("cpu"), True)
        assert x.is_contiguous()
        assert not x.requires_grad
        assert type(torch.zeros_like(x)) is type(x.new_ones(3)) is Tensor
        assert "variance" in repr(x)
        assert x.type() == "torch.FloatTensor"
        assert x.type(torch.float64).variance.dtype == torch.float64
        assert F.alpha_dropout(x, training=False) is x

    def test_requires_grad_is_that_of_mean_or_variance(self):
        assert random(torch.ones(2), torch.ones(2, requires_grad=True)).requires_grad
        assert random(torch.ones(2, requires_grad=True), torch.ones(2)).requires_grad

    def test_settings_are_checked(self):
        with pytest.raises(UnknownName, match="order"):
            Setting(order="second")
        with pytest.raises(UnknownName, match="positions"):
            Setting(positions="none")


class TestInPlace:
    @pytest.mark.parametrize(
        ("in_place", "plain"),
        [
            (lambda x: F.relu(x, inplace=True), F.relu),
            (lambda x: F.leaky_relu(x, 0.1, True), lambda x: F.leaky_relu(x, 0.1)),
            (torch.relu_, torch.relu),
            (lambda x: x.relu_(), torch.relu),
            (lambda x: x.mul_(3), lambda x: x * 3),
            (lambda x: x.add_(1), lambda x: x + 1),
            (lambda x: x.clamp_(0, 1), lambda x: x.clamp(0, 1)),
            (lambda x: F.silu(x, inplace=True), F.silu),
        ],
    )
    def test_the_tensor_itself_takes_the_result(self, x, in_place, plain):
        expected = plain(x)
        computed = in_place(x)
        assert computed is x
        assert torch.equal(x.expected, expected.expected)
        assert torch.equal(x.variance, expected.variance)

    def test_augmented_assignment(self, x):
        alias, mean = x, x.expected.clone()
        x += 1
        x *= 2
        assert x is alias
        assert torch.equal(x.expected, (mean + 1) * 2)

    def test_item_assignment(self, x):
        y, mean = random(torch.ones(3, 4), torch.full((3, 4), 7.0)), x.expected.clone()
        x[0] = y
        x[1, 0] = 5.0
        assert torch.equal(x.expected[0], y.expected)
        assert torch.equal(x.variance[0], y.variance)
        assert (x.expected[1, 0] == 5).all()
        assert not x.variance[1, 0].any()
        assert torch.equal(x.expected[1, 1:], mean[1, 1:])

    def test_a_view_after_a_write_is_not_used_silently(self, x):
        view = x.flatten(1)
        F.relu(view, inplace=True)
        assert (view.expected >= 0).all()
        with pytest.raises(MissingRule, match="view"):
            x + 1

    def test_nor_its_base(self, x):
        view = x[0]
        x.add_(1)
        with pytest.raises(MissingRule, match="view"):
            view + 1
        assert isinstance(x[0] + 1, MomentTensor)

    def test_a_copy_is_free(self, x):
        copy = x.clone()
        x.add_(1)
        assert torch.equal((copy + 1).expected, x.expected)


def test_a_stand_in_and_a_draw_of_what_it_becomes() -> None:
    weight = RandomWeight("w", torch.randn(2, 3), None, torch.full((2, 3), 0.5), Normal())
    y = F.linear(torch.ones(100_000, 3), MomentTensor.of_weight(weight, Setting()))
    one, same = (draw_moments(y, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one, same)
    moments_within_standard_errors(one, weight.mean.sum(1), torch.full((2,), 0.75))
    assert draw_moments(weight.mean) is weight.mean

    class Spectrum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x)

    with pytest.raises(MissingRule, match=r"'0' \(Spectrum\)"):
        nn.Sequential(Spectrum())(y)


def test_detach_stops_both() -> None:
    x = random(torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)).detach()
    assert not x.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_types_are_kept(dtype: torch.dtype) -> None:
    x = random(torch.randn(2, 3, 8, dtype=dtype), torch.rand(2, 3, 8, dtype=dtype))
    w = random(torch.randn(4, 8, dtype=dtype), torch.rand(4, 8, dtype=dtype))
    y = F.softmax(F.gelu(F.layer_norm(F.elu(F.linear(F.relu(x), w)), (4,))), -1).mean(1)
    assert y.expected.dtype == y.variance.dtype == dtype
    assert torch.isfinite(y.variance).all()
    assert x.to(torch.float64).variance.dtype == x.double().expected.dtype == torch.float64


class TestViews:
    @pytest.mark.parametrize("rank", [0, 8])
    @pytest.mark.parametrize("size", [8, 32])  # small images, and images that the kernels lay out in their own way
    def test_whatever_layout_a_convolution_has_its_output_can_be_viewed(self, size, rank):
        """People write ``x.view(len(x), -1)`` after a convolution, and the plain network takes it."""
        x = torch.randn(4, 3, size, size)
        weights = [random(w, torch.full_like(w, 0.01), rank=rank) for w in (torch.randn(16, 3, 3, 3), torch.eye(16))]
        with torch.no_grad():
            h = F.relu(F.conv2d(F.relu(F.conv2d(x, weights[0], padding=1)), weights[1][..., None, None]))
            for flat in (h.view(len(h), -1), h.view((len(h), -1)), h.view_as(h.reshape(len(h), -1))):
                assert torch.equal(flat.expected, h.expected.reshape(4, -1))
                assert torch.equal(flat.variance, h.variance.reshape(4, -1))
                assert isinstance(flat @ torch.randn(flat.shape[1], 2), MomentTensor)
