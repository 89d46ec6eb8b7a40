import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import InputError, MissingRule, NonFinite
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate.covariance import (
    RULES,
    CovarianceTensor,
    Setting,
    correlated,
    draw_covariance,
    full,
    root,
)
from tests.oracles import covariance_within_standard_errors
from tests.propagate.cases import stand_in
from tests.propagate.covariance.cases import random_weight


def random(*shape: int, dtype: torch.dtype = torch.float32, **setting) -> CovarianceTensor:
    mean = torch.randn(shape, dtype=dtype)
    size = mean[0].numel()
    factor = torch.randn(shape[0], 1, size, size)
    return CovarianceTensor.of(mean, (factor @ factor.mT / size).to(dtype), Setting(**setting))


@pytest.fixture
def x() -> CovarianceTensor:
    return random(2, 3, 4)


class TestMissingRule:
    @pytest.mark.parametrize(
        "operation",
        [
            torch.fft.fft,
            lambda x: x > 0,
            lambda x: 1 / x,
            lambda x: x / x,
            lambda x: x * x.clone(),
            lambda x: x.item(),
            lambda x: x.tolist(),
            lambda x: x.argmax(),
            lambda x: x.sum(),
            lambda x: x.mean(0),
            lambda x: x.reshape(3, 8),
            lambda x: x.transpose(0, 1),
            lambda x: x.flatten(),
            lambda x: x.T,
            lambda x: x + torch.ones(5, 2, 3, 4),
            lambda x: x + x[:, :1],
            lambda x: x @ torch.ones(4, 2),
            lambda x: F.layer_norm(x, (4,)),
            lambda x: F.conv1d(torch.ones(2, 3, 4), x),
            lambda x: F.linear(x, torch.ones(2, 4), x[0, 0, :2]),
            lambda x: F.pad(x, (0, 0, 0, 0, 1, 0)),
            lambda x: torch.zeros(2, 3, 4).add_(x),
            lambda x: torch.ops.aten.relu(x),
            lambda x: F.conv2d(x, torch.ones(1, 2, 1, 1)),
        ],
    )
    def test_nothing_falls_to_the_mean(self, x, operation):
        with pytest.raises(MissingRule):
            operation(x)

    @pytest.mark.parametrize(
        "operation",
        [F.relu, torch.tanh, lambda w: w.t(), lambda w: w.reshape(-1), lambda w: w * 2, lambda w: -w, lambda w: w + 1],
    )
    def test_a_weight_is_known_to_layers_alone(self, operation):
        with pytest.raises(MissingRule):
            operation(random_weight(torch.ones(2, 3), torch.ones(2, 3)))

    def test_it_names_the_operation_the_module_and_the_way_out(self):
        class Spectrum(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.fft.fft(x)

        model = nn.Sequential(nn.Identity(), nn.Sequential(nn.ReLU(), Spectrum()))
        with pytest.raises(MissingRule, match=r"fft_fft.*module '1\.1' \(Spectrum\).*leanbayes\.propagate\.covariance"):
            model(random(2, 3, model=model))

    def test_a_second_rule_for_an_operation_raises(self):
        with pytest.raises(ValueError, match="already"):
            RULES.rule(F.relu, exact=True)(lambda operation, x: x)


class TestLimit:
    def test_what_is_too_large_is_refused_before_it_is_made(self):
        x = CovarianceTensor.independent(torch.zeros(4, 1, 100, 100), torch.ones(4, 1, 100, 100), Setting())
        with pytest.raises(InputError, match=r"10000 numbers for each of 4 examples takes 1\.6 GB.*moments"):
            F.conv2d(CovarianceTensor.of(x.expected, x.blocks, Setting(limit=1.5)), torch.ones(1, 1, 1, 1))

    def test_of_a_plain_input_only_its_filters_count(self):
        def weight() -> CovarianceTensor:  # of one pass each
            random = RandomWeight("w", torch.ones(8, 1, 1, 1), None, torch.ones(8, 1, 1, 1), Normal())
            return CovarianceTensor.of_weight(random, Setting(limit=8 * 16**2 * 4e-9))

        assert F.conv2d(torch.ones(1, 1, 4, 4), weight()).blocks.shape == (1, 8, 16, 16)
        with pytest.raises(InputError, match="GB"):
            F.conv2d(torch.ones(1, 1, 4, 5), weight())
        with pytest.raises(InputError, match="GB"):
            full(F.conv2d(torch.ones(1, 1, 4, 4), weight()))

    @pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
    def test_a_limit_is_positive(self, limit):
        with pytest.raises(InputError, match="above 0"):
            Setting(limit=limit)


class TestInPlace:
    def test_the_tensor_itself_takes_the_result(self, x):
        for in_place, plain in (
            (lambda x: F.relu(x, inplace=True), F.relu),
            (lambda x: x.mul_(3), lambda x: x * 3),
            (lambda x: x.add_(1), lambda x: x + 1),
        ):
            expected = plain(x)
            assert in_place(x) is x
            assert torch.equal(x.expected, expected.expected)
            assert torch.equal(x.blocks, expected.blocks)

    def test_a_view_after_a_write_is_not_used_silently(self, x):
        view = x.flatten(1)
        F.relu(view, inplace=True)
        with pytest.raises(MissingRule, match="view"):
            x + 1


def test_questions(x) -> None:
    assert x.shape == x.size() == (2, 3, 4)
    assert (x.dim(), x.numel(), len(x), x.dtype) == (3, 24, 2, torch.float32)
    assert type(torch.zeros_like(x)) is Tensor
    assert "blocks" in repr(x)
    assert "'w'" in repr(random_weight(torch.ones(2), torch.ones(2)))
    assert not x.requires_grad
    assert random_weight(torch.ones(2, requires_grad=True), torch.ones(2)).requires_grad
    assert not (x * torch.ones(4, requires_grad=True)).detach().requires_grad


def test_examples_may_be_chosen_and_reordered(x) -> None:
    for rows in (slice(1), [1, 0], [1, 1, 0]):
        assert torch.equal(x[rows].expected, x.expected[rows])
        assert torch.equal(x[rows].blocks, x.blocks[rows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_types_are_kept(dtype: torch.dtype) -> None:
    w = random_weight(torch.randn(2, 3, 2, dtype=dtype), torch.rand(2, 3, 2, dtype=dtype))
    y = F.softmax(F.gelu(F.avg_pool1d(F.relu(F.conv1d(random(2, 3, 4, dtype=dtype), w)), 2)).flatten(1), -1)
    assert y.expected.dtype == y.blocks.dtype == dtype
    assert torch.isfinite(y.blocks).all()
    assert draw_covariance(y).dtype == dtype
    assert y.to(torch.float64).blocks.dtype == torch.float64


class TestRoot:
    def test_of_singular_and_of_empty_covariances(self):
        v = torch.tensor([[2.0, -1.0, 0.0, 1e-3], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
        covariance = v.unsqueeze(-1) * v.unsqueeze(-2)
        result = root(covariance)
        assert torch.isfinite(result).all()
        torch.testing.assert_close(result @ result.mT, covariance, rtol=2e-6, atol=1e-12)

    def test_variances_stay_what_they_are(self):
        covariance = torch.ones(1, 40, 40) + 1e-4 * torch.randn(1, 40, 40)
        covariance = (covariance + covariance.mT) / 2
        result = root(covariance)
        torch.testing.assert_close((result @ result.mT).diagonal(dim1=1, dim2=2), covariance.diagonal(dim1=1, dim2=2))

    def test_nan_is_refused(self):
        with pytest.raises(NonFinite, match="NaN"):
            root(torch.full((1, 2, 2), torch.nan))

    def test_gradients(self):
        v = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
        noise = torch.randn(2, 3, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda v: correlated(root(v @ v.mT + torch.eye(3)), noise), (v,))


def test_a_stand_in_and_a_joint_draw_of_what_it_becomes() -> None:
    weight = RandomWeight("w", torch.randn(2, 1, 2), None, torch.full((2, 1, 2), 0.5), Normal())
    y = F.conv1d(torch.tensor([[[1.0, 2.0, -1.0]]]).expand(100_000, 1, 3), stand_in("covariance", weight))
    one, same = (draw_covariance(y, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one, same)
    covariance_within_standard_errors(one, y.expected[0], full(y)[0])
    assert full(y)[0, 0, 1] == 0.25 * (1 * 2 + 2 * -1)
    assert draw_covariance(weight.mean) is weight.mean
    assert draw_covariance(stand_in("covariance", weight)).shape == weight.mean.shape
