import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.bayesian import Bayesian
from leanbayes.posteriors import Normal
from leanbayes.subspace import layers, top_k


class TestLaw:
    def test_an_output_is_exactly_normal(self):
        """Kolmogorov and Smirnov over a batch of equal inputs, whose outputs are drawn independently."""
        model = nn.Linear(3, 2).double()
        bnn = Bayesian(model, propagate="local", posterior=Normal(0.3))
        x = torch.randn(3, dtype=torch.float64)
        draws = bnn(x.expand(20_000, 3), generator=torch.Generator().manual_seed(0)).detach()
        scale = 0.3 * math.sqrt(x.square().sum() + 1)
        for output in range(2):
            law = stats.norm(model(x)[output].item(), scale)
            assert stats.kstest(draws[:, output].numpy(), law.cdf).pvalue > 1e-3
            wrong = stats.norm(model(x)[output].item(), scale * 1.1)
            assert stats.kstest(draws[:, output].numpy(), wrong.cdf).pvalue < 1e-6

    def test_so_is_a_pixel_of_a_convolution(self):
        model = nn.Conv2d(2, 3, 3, padding=1).double()
        bnn = Bayesian(model, propagate="local", posterior=Normal(0.2))
        x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
        draws = bnn(x.expand(5000, -1, -1, -1), generator=torch.Generator().manual_seed(0)).detach()[:, 1, 0, 3]
        patch = F.pad(x, (1, 1, 1, 1))[0, :, 0:3, 3:6]
        law = stats.norm(model(x)[0, 1, 0, 3].item(), 0.2 * math.sqrt(patch.square().sum() + 1))
        assert stats.kstest(draws.numpy(), law.cdf).pvalue > 1e-3

    def test_examples_are_independent(self):
        bnn = Bayesian(nn.Linear(3, 1).double(), propagate="local", posterior=Normal(0.3))
        x = torch.randn(3, dtype=torch.float64)
        y = bnn(x.expand(20_000, 3), generator=torch.Generator().manual_seed(0)).detach().view(2, -1)
        assert abs(torch.corrcoef(y)[0, 1].item()) < 5 / math.sqrt(10_000)


class TestSafeSqrt:
    def test_values(self):
        v = torch.tensor([0.0, 1e-300, 0.25, 1.0, 9.0], dtype=torch.float64)
        torch.testing.assert_close(SafeSqrt.apply(v), v.sqrt(), rtol=1e-15, atol=0)

    def test_below_zero_is_zero(self):
        assert SafeSqrt.apply(torch.tensor([-1e-9, -1.0])).tolist() == [0.0, 0.0]

    def test_gradient_above_zero(self):
        v = (torch.rand(7, dtype=torch.float64) + 0.1).requires_grad_()
        assert torch.autograd.gradcheck(SafeSqrt.apply, (v,))
        SafeSqrt.apply(v).sum().backward()
        torch.testing.assert_close(v.grad, 0.5 / v.detach().sqrt(), rtol=1e-14, atol=0)

    def test_gradient_at_zero_and_below_is_zero(self):
        v = torch.tensor([0.0, -1e-9, 4.0], requires_grad=True)
        SafeSqrt.apply(v).sum().backward()
        assert v.grad.tolist() == [0.0, 0.0, 0.25]

    def test_under_vmap(self):
        v = torch.tensor([[0.0, 4.0], [1.0, 0.0]])
        gradient = torch.func.vmap(torch.func.grad(lambda row: SafeSqrt.apply(row).sum()))(v)
        assert gradient.tolist() == [[0.0, 0.25], [0.5, 0.0]]

    def test_nan_stays_nan(self):
        assert torch.isnan(SafeSqrt.apply(torch.tensor([math.nan]))).all()


class TestOutputsWithoutARandomWeight:
    @pytest.fixture
    def bnn(self) -> Bayesian:
        """Only the weights into the first of three outputs are random."""
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
        scores = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
        scores["0.weight"][0] = 1
        return Bayesian(model, subspace=top_k(scores, k=4), propagate="local", posterior=Normal(0.5))

    def test_they_are_the_plain_ones_and_no_gradient_is_nan(self, bnn):
        x = torch.randn(5, 4, dtype=torch.float64)
        weights = bnn.weights()
        bnn.model[1] = nn.Identity()
        hidden, plain = bnn(x), bnn.model[0](x)
        assert torch.equal(hidden[:, 1:], plain[:, 1:])
        assert not torch.isclose(hidden[:, 0], plain[:, 0]).any()
        hidden.square().sum().backward()
        assert list(weights) == ["0.weight"]
        for parameter in bnn.parameters():
            assert torch.isfinite(parameter.grad).all()

    def test_an_input_of_zeros_has_no_variance_and_no_nan(self):
        model = nn.Linear(3, 2, bias=False).double()
        bnn = Bayesian(model, propagate="local")
        x = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
        y = bnn(x)
        assert not y.any()
        y.square().sum().backward()
        for tensor in (x, *bnn.parameters()):
            assert torch.isfinite(tensor.grad).all()

    def test_relu_features_that_are_all_zero(self):
        """Dead features give a variance of exactly 0 in the next layer; training must go on."""
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
        with torch.no_grad():
            model[0].weight.zero_()
            model[0].bias.fill_(-100)
        bnn = Bayesian(model, subspace=layers("2"), propagate="local")
        bnn(torch.randn(4, 2, dtype=torch.float64)).square().sum().backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in bnn.parameters())
