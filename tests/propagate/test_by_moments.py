"""Moments as objective and as prediction: against closed forms, and against many draws of outputs or weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.models import resnet18
from leanbayes.prediction import outputs_of

SAMPLES = 4096


@pytest.fixture
def bnn() -> lb.Bayesian:
    return lb.Bayesian(nn.Linear(3, 4).double(), posterior=lb.posteriors.Normal(0.4))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 3, dtype=torch.float64)


def outputs(bnn: lb.Bayesian, x: Tensor, draws: int) -> Tensor:
    """A linear layer's outputs are independent Gaussians for one input: draws of them are draws of the truth."""
    mean, variance = lb.moments(bnn, x)
    generator = torch.Generator().manual_seed(1)
    return mean + variance.sqrt() * torch.randn(draws, *mean.shape, dtype=mean.dtype, generator=generator)


class TestPredict:
    def test_classes_agree_with_a_long_monte_carlo(self, bnn, x):
        result = lb.predict(bnn, x, by="moments", samples=SAMPLES)
        p = outputs(bnn, x, 40_000).detach().softmax(-1)
        error = p.std(0) / math.sqrt(40_000)
        assert ((result.mean - p.mean(0)).abs() < 5 * error).all()
        aleatoric = torch.special.entr(p).sum(-1)
        assert ((result.aleatoric - aleatoric.mean(0)).abs() < 5 * aleatoric.std(0) / 200).all()
        torch.testing.assert_close(result.total, torch.special.entr(result.mean).sum(-1))
        torch.testing.assert_close(result.epistemic, result.total - result.aleatoric)

    def test_a_few_points_are_nearly_as_good_as_many(self, bnn, x):
        many = lb.predict(bnn, x, by="moments", samples=SAMPLES).mean
        few = lb.predict(bnn, x, by="moments", samples=32).mean
        drawn = outputs(bnn, x, 32).detach().softmax(-1).mean(0)
        assert (few - many).abs().mean() < 0.4 * (drawn - many).abs().mean()

    def test_it_is_the_same_each_time_and_for_each_batch_size(self, bnn, x):
        one, two = (lb.predict(bnn, x, by="moments", batch_size=b) for b in (None, 4))
        torch.testing.assert_close(one.mean, two.mean)
        assert (one.draws == 1).all()
        assert not one.standard_error.any()

    def test_regression_is_exact(self, x):
        bnn = lb.Bayesian(nn.Linear(3, 1).double(), posterior=lb.posteriors.Normal(0.4), propagate="moments")
        result = lb.predict(bnn, x, likelihood=lb.Gaussian(0.5))
        torch.testing.assert_close(result.mean, bnn.model(x))
        torch.testing.assert_close(result.epistemic, 0.16 * (x.square().sum(1, keepdim=True) + 1))
        torch.testing.assert_close(result.aleatoric, torch.full((6, 1), 0.25, dtype=torch.float64))
        torch.testing.assert_close(result.total, result.aleatoric + result.epistemic)

    @pytest.mark.parametrize("pair", [False, True])
    def test_regression_with_noise_from_the_model(self, x, pair):
        class Model(nn.Linear):
            def forward(self, x):
                out = super().forward(x)
                return tuple(out.chunk(2, 1)) if pair else out

        bnn = lb.Bayesian(Model(3, 2).double(), posterior=lb.posteriors.Normal(0.2))
        likelihood = lb.Gaussian("input")
        result = lb.predict(bnn, x, likelihood=likelihood, by="moments")
        drawn = lb.predict(bnn, x, likelihood=likelihood, samples=20_000, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(result.aleatoric, drawn.aleatoric, rtol=0.05, atol=0)
        torch.testing.assert_close(result.epistemic, drawn.epistemic, rtol=0.05, atol=0)

    def test_labels(self, bnn, x):
        result = lb.predict(bnn, x, likelihood=lb.Bernoulli(), by="moments", samples=SAMPLES)
        p = outputs(bnn, x, 40_000).detach().sigmoid()
        assert ((result.mean - p.mean(0)).abs() < 5 * p.std(0) / 200).all()

    def test_samples_are_kept(self, bnn, x):
        result = lb.predict(bnn, x, by="moments", samples=16, keep_samples=True)
        assert result.samples.shape == (16, 6, 4)
        torch.testing.assert_close(result.samples.mean(0), result.mean)

    def test_at_the_mean_it_is_the_plain_model(self, bnn, x):
        with bnn.at_mean():
            mean, variance = lb.moments(bnn, x)
            result = lb.predict(bnn, x, by="moments")
        assert torch.equal(mean, bnn.model(x))
        assert not variance.any()
        torch.testing.assert_close(result.mean, bnn.model(x).softmax(1))

    def test_a_predictor_on_top_gets_draws_of_one_pass(self, x):
        bnn = lb.Bayesian(nn.Linear(3, 4).double(), posterior=lb.posteriors.Normal(0.4), propagate="moments")
        draws = torch.stack(list(outputs_of(bnn, x, 3000, torch.Generator().manual_seed(0))))
        mean, variance = lb.moments(bnn, x)
        assert ((draws.mean(0) - mean).abs() < 5 * (variance / 3000).sqrt()).all()
        assert ((draws.var(0) / variance - 1).abs() < 5 * math.sqrt(2 / 3000)).all()

    def test_nan_is_refused(self, bnn, x):
        with pytest.raises(lb.errors.NonFinite, match="moments"):
            lb.predict(bnn, x * math.nan, by="moments")


@pytest.mark.parametrize("rank", [0, 8])
def test_grad_mode_changes_no_number_of_a_residual_network(rank):
    """Without gradients, sweeps over memory leave averages over positions that later layers use."""
    bnn = lb.Bayesian(resnet18(10, 3).eval(), posterior=lb.posteriors.Normal(0.02))
    x, by = torch.randn(2, 3, 32, 32), lb.propagate.Moments(rank=rank)
    recorded = lb.moments(bnn, x, by=by)
    with torch.no_grad():
        silent = lb.moments(bnn, x, by=by)
    for one, other in zip(recorded, silent, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=3e-6, atol=3e-6)


class TestElbo:
    def test_classes_by_drawn_logits(self, bnn, x):
        y = torch.tensor([0, 1, 2, 3, 0, 1])
        generator = torch.Generator().manual_seed(0)
        result = lb.elbo(bnn, x, y, lb.Categorical(), n_data=6, propagate="moments", samples=4000, generator=generator)
        draws = outputs(bnn, x, 40_000)
        nll = F.cross_entropy(draws.transpose(1, 2), y.expand(40_000, -1), reduction="none").mean(1)
        error = nll.std() * math.sqrt(1 / 40_000 + 1 / 4000)
        assert (result.nll - nll.mean()).abs() < 4 * error
        torch.testing.assert_close(result.loss, result.nll + bnn.kl() / 6)

    def test_regression_in_closed_form(self, x):
        bnn = lb.Bayesian(nn.Linear(3, 1).double(), posterior=lb.posteriors.Normal(0.4), propagate="moments")
        y = torch.randn(6, 1, dtype=torch.float64)
        result = lb.elbo(bnn, x, y, lb.Gaussian(0.5), n_data=6)
        mean, variance = lb.moments(bnn, x)
        truth = 0.5 * (math.log(2 * math.pi * 0.25) + ((y - mean).square() + variance) / 0.25).mean()
        torch.testing.assert_close(result.nll, truth)

    @pytest.mark.parametrize("likelihood", [lb.Categorical(), lb.Bernoulli(), lb.Gaussian(1.0)], ids=repr)
    def test_gradients_reach_means_and_scales(self, bnn, x, likelihood):
        y = torch.zeros(6, dtype=torch.long) if isinstance(likelihood, lb.Categorical) else torch.zeros(6, 4).double()
        lb.elbo(bnn, x, y, likelihood, n_data=6, propagate="moments").nll.backward()
        assert bnn.model.weight.grad.abs().min() > 0
        assert all(parts.rho.grad.abs().min() > 0 for _, parts in bnn.parts())

    def test_it_trains(self):
        torch.manual_seed(0)
        x = torch.randn(64, 2)
        y = (x[:, 0] > 0).long()
        bnn = lb.Bayesian(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)), propagate="moments")
        data = torch.utils.data.TensorDataset(x, y)
        loader = torch.utils.data.DataLoader(data, batch_size=16)
        lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=25, optimizer=lb.Optimization(lr=0.02), kl_weight=0.1)
        assert (lb.predict(bnn, x).mean.argmax(1) == y).double().mean() > 0.9
