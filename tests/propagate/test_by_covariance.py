"""Covariance as objective and as prediction: against closed forms, and against many joint draws of the outputs."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.prediction import outputs_of
from leanbayes.propagate.by_covariance import covariance
from tests.oracles import covariance_within_standard_errors

SAMPLES = 2048


@pytest.fixture
def bnn() -> lb.Bayesian:
    """One hidden number: the logits are nearly one number too."""
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 4)).double()
    nn.init.constant_(model[1].weight, 3.0)
    return lb.Bayesian(model, posterior=lb.posteriors.Normal(0.4))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 3, dtype=torch.float64)


def outputs(bnn: lb.Bayesian, x: Tensor, draws: int) -> Tensor:
    with torch.no_grad():
        mean, result = covariance(bnn, x)
        noise = torch.randn(draws, *mean.shape, 1, dtype=mean.dtype, generator=torch.Generator().manual_seed(1))
        return mean + (torch.linalg.cholesky(result) @ noise).squeeze(-1)


class TestPredict:
    def test_classes_agree_with_joint_draws_and_not_with_independent_ones(self, bnn, x):
        result = lb.predict(bnn, x, by="covariance", samples=SAMPLES)
        p = outputs(bnn, x, 40_000).softmax(-1)
        assert ((result.mean - p.mean(0)).abs() < 5 * p.std(0) / 200).all()
        aleatoric = torch.special.entr(p).sum(-1)
        assert ((result.aleatoric - aleatoric.mean(0)).abs() < 5 * aleatoric.std(0) / 200).all()
        alone = lb.predict(bnn, x, by="moments", samples=SAMPLES)
        assert (alone.epistemic > 2 * result.epistemic).all()

    def test_it_is_the_same_each_time_and_for_each_batch_size(self, bnn, x):
        one, two = (lb.predict(bnn, x, by="covariance", batch_size=b) for b in (None, 4))
        torch.testing.assert_close(one.mean, two.mean)
        assert (one.draws == 1).all()

    def test_regression_is_exact(self, x):
        bnn = lb.Bayesian(nn.Linear(3, 1).double(), posterior=lb.posteriors.Normal(0.4), propagate="covariance")
        result = lb.predict(bnn, x, likelihood=lb.Gaussian(0.5))
        torch.testing.assert_close(result.mean, bnn.model(x))
        torch.testing.assert_close(result.epistemic, 0.16 * (x.square().sum(1, keepdim=True) + 1))

    def test_pixels(self):
        bnn, x = (
            lb.Bayesian(nn.Conv2d(1, 3, 3).double(), posterior=lb.posteriors.Normal(0.4)),
            torch.randn(2, 1, 4, 4).double(),
        )
        result = lb.predict(bnn, x, by="covariance", samples=512, keep_samples=True)
        alone = lb.predict(bnn, x, by="moments", samples=512)
        assert result.samples.shape == (512, 2, 3, 2, 2)
        torch.testing.assert_close(result.samples.mean(0), result.mean)
        error = result.samples.std(0) / math.sqrt(512)  # in one pixel the classes are independent
        assert ((result.mean - alone.mean).abs() < 3 * error).all()

    def test_a_pair_of_mean_and_log_variance(self, x):
        class Model(nn.Linear):
            def forward(self, x):
                return tuple(super().forward(x).chunk(2, 1))

        bnn = lb.Bayesian(Model(3, 2).double(), posterior=lb.posteriors.Normal(0.2))
        result, same = (lb.predict(bnn, x, likelihood=lb.Gaussian("input"), by=p) for p in ("covariance", "moments"))
        torch.testing.assert_close(result.total, same.total)

    def test_at_the_mean_it_is_the_plain_model(self, bnn, x):
        with bnn.at_mean():
            result = lb.predict(bnn, x, by="covariance")
        torch.testing.assert_close(result.mean, bnn.model(x).softmax(1))

    def test_a_predictor_on_top_gets_joint_draws_of_one_pass(self, x):
        model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 4)).double()
        bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.4), propagate="covariance")
        draws = torch.stack(list(outputs_of(bnn, x[:1], 2000, torch.Generator().manual_seed(0))))
        mean, result = covariance(bnn, x[:1])
        covariance_within_standard_errors(draws, mean, result[0])

    def test_nan_is_refused(self, bnn, x):
        with pytest.raises(lb.errors.NonFinite, match="NaN"):
            lb.predict(bnn, x * math.nan, by="covariance")


def test_a_call_draws_jointly(x) -> None:
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 4)).double()
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.4), propagate="covariance")
    with torch.no_grad():
        draws = bnn(x[:1].expand(20_000, 3), generator=torch.Generator().manual_seed(0))
        mean, result = covariance(bnn, x[:1])
    covariance_within_standard_errors(draws, mean[0], result[0])


class TestElbo:
    def test_classes_by_joint_draws(self, bnn, x):
        y = torch.tensor([0, 1, 2, 3, 0, 1])
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            result = lb.elbo(
                *(bnn, x, y, lb.Categorical()), n_data=6, propagate="covariance", samples=1000, generator=generator
            )
        draws = outputs(bnn, x, 40_000)
        nll = F.cross_entropy(draws.transpose(1, 2), y.expand(40_000, -1), reduction="none").mean(1)
        assert (result.nll - nll.mean()).abs() < 4 * nll.std() * math.sqrt(1 / 40_000 + 1 / 1000)
        torch.testing.assert_close(result.loss, result.nll + bnn.kl() / 6)

    def test_regression_in_closed_form(self, bnn, x):
        y = torch.randn(6, 4, dtype=torch.float64)
        result = lb.elbo(bnn, x, y, lb.Gaussian(0.5), n_data=6, propagate="covariance")
        mean, spread = covariance(bnn, x)
        variance = spread.diagonal(dim1=1, dim2=2)
        truth = 0.5 * (math.log(2 * math.pi * 0.25) + ((y - mean).square() + variance) / 0.25).sum() / 6
        torch.testing.assert_close(result.nll, truth)

    def test_gradients_of_a_draw_reach_means_and_scales(self, bnn, x):
        lb.propagate.Covariance().law(bnn, x).draw().square().sum().backward()
        assert all(p.grad.abs().min() > 0 for p in bnn.parameters())

    def test_it_trains(self):
        torch.manual_seed(0)
        x = torch.randn(64, 2)
        y = (x[:, 0] > 0).long()
        model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        bnn = lb.Bayesian(model, propagate="covariance")
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
        lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=10, optimizer=lb.Optimization(lr=0.03), kl_weight=0.1)
        assert (lb.predict(bnn, x).mean.argmax(1) == y).double().mean() > 0.9
