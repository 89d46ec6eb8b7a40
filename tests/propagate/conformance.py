"""What every propagation must do. A new one inherits these tests: derive a class and give ``value``."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.propagate import PROPAGATIONS, OnePass, Propagation, as_propagation

DRAWS = 4000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Module:
    first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*first, nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()


class Conformance:
    """The tests of one propagation.

    A subclass gives ``value``. ``covariant`` says whether the outputs of different examples depend on each other.
    """

    value: Propagation

    @pytest.fixture
    def x(self) -> Tensor:
        return torch.randn(4, 1, 8, 8, dtype=torch.float64)

    @pytest.fixture
    def y(self) -> Tensor:
        return torch.tensor([0, 1, 2, 0])

    @pytest.fixture
    def bnn(self) -> lb.Bayesian:
        return lb.Bayesian(network(), posterior=lb.posteriors.Normal(0.1), propagate=self.value, predict_by=self.value)

    def test_the_law_of_a_linear_layer(self) -> None:
        """For one example y = Wx + b is Gaussian with mean μx + m and covariance diag(σ²x² + s²), whatever the way."""
        layer = nn.Linear(3, 2).double()
        bnn = lb.Bayesian(layer, posterior=lb.posteriors.Normal(0.4), propagate=self.value)
        x = torch.randn(4, 3, dtype=torch.float64)
        generator = seeded()
        with torch.no_grad():
            draws = torch.stack([bnn(x, generator=generator) for _ in range(DRAWS)])
            mean = layer(x)
        variance = (0.16 * (x.square().sum(1) + 1)).unsqueeze(1).expand(-1, 2)
        assert ((draws.mean(0) - mean).abs() < 5 * (variance / DRAWS).sqrt()).all()
        assert ((draws.var(0) / variance - 1).abs() < 5 * (2 / DRAWS) ** 0.5).all()
        centred = draws - mean
        within = (centred[..., 0] * centred[..., 1]).mean(0)
        assert (within.abs() < 5 * variance[:, 0] / DRAWS**0.5).all()

    def test_the_loss_is_that_of_the_law(self) -> None:
        """For a linear layer and Gaussian noise the expected loss has a closed form."""
        layer, likelihood = nn.Linear(3, 1).double(), lb.Gaussian(0.5)
        bnn = lb.Bayesian(layer, posterior=lb.posteriors.Normal(0.4), propagate=self.value)
        x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)
        with torch.no_grad():
            losses = [lb.elbo(bnn, x, y, likelihood, n_data=4, generator=seeded(i)).nll for i in range(DRAWS // 4)]
            variance = 0.16 * (x.square().sum(1, keepdim=True) + 1)
            truth = likelihood.expected_nll(layer(x), variance, y) / 4
        result = torch.stack(losses)
        assert (result.mean() - truth).abs() <= 5 * result.std() / len(result) ** 0.5 + 1e-9

    def test_without_spread_it_is_the_plain_model(self, bnn: lb.Bayesian, x: Tensor, y: Tensor) -> None:
        sure = lb.Bayesian(copy.deepcopy(bnn.model), posterior=lb.posteriors.Normal(1e-12), propagate=self.value)
        with torch.no_grad():
            plain = bnn.model(x)
            torch.testing.assert_close(sure(x), plain, rtol=1e-7, atol=1e-9)
            loss = lb.elbo(sure, x, y, lb.Categorical(), n_data=10).nll
        torch.testing.assert_close(loss, nn.functional.cross_entropy(plain, y), rtol=1e-7, atol=1e-9)
        result = lb.predict(sure, x, by=self.value, samples=3)
        torch.testing.assert_close(result.mean, plain.softmax(1), rtol=1e-6, atol=1e-8)

    def test_a_generator_makes_it_repeatable(self, bnn: lb.Bayesian, x: Tensor, y: Tensor) -> None:
        def numbers(seed: int) -> list[Tensor]:
            loss = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, generator=seeded(seed)).loss
            result = lb.predict(bnn, x, samples=4, method="loop", generator=seeded(seed))
            return [bnn(x, generator=seeded(seed)).detach(), loss.detach(), result.mean]

        state = torch.get_rng_state()
        first, again, other = numbers(1), numbers(1), numbers(2)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(map(torch.equal, first, again))
        assert not torch.equal(first[0], other[0])

    def test_grad_mode_changes_no_number(self, bnn: lb.Bayesian, x: Tensor, y: Tensor) -> None:
        def numbers() -> list[Tensor]:
            elbo = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, generator=seeded())
            result = [bnn(x, generator=seeded()), elbo.loss, elbo.nll]
            if isinstance(self.value, OnePass):
                law = self.value.law(bnn, x)
                result += [law.mean, law.variance]
            return [value.detach() for value in result]

        recorded = numbers()
        with torch.no_grad():
            silent = numbers()
        for one, other in zip(recorded, silent, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)

    def test_gradients_reach_means_and_scales(self, bnn: lb.Bayesian, x: Tensor, y: Tensor) -> None:
        lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, generator=seeded()).nll.backward()
        for name, parts in bnn.parts():
            assert parts.rho.grad.abs().sum() > 0, name
            assert bnn.model.get_parameter(name).grad.isfinite().all(), name

    def test_one_string_is_one_value(self) -> None:
        default = type(self.value)()
        assert as_propagation(default.name) == default == lb.Bayesian(nn.Linear(1, 1), propagate=default.name).propagate
        assert PROPAGATIONS[default.name] is type(default)
        assert hash(default) == hash(type(self.value)())

    def test_it_says_what_it_is(self, bnn: lb.Bayesian) -> None:
        assert repr(self.value).startswith(type(self.value).__name__ + "(")
        assert f"propagate={self.value!r}, predict_by={self.value!r}" in bnn.extra_repr()
        assert eval(repr(self.value), {type(self.value).__name__: type(self.value)}) == self.value

    def test_a_file_brings_it_back(self, bnn: lb.Bayesian, x: Tensor, tmp_path: Path) -> None:
        lb.save(bnn, tmp_path / "x.lb")
        again = lb.load(tmp_path / "x.lb", network())
        assert (again.propagate, again.predict_by) == (self.value, self.value)
        one, two = (lb.predict(b, x, samples=4, method="loop", generator=seeded()).mean for b in (bnn, again))
        assert torch.equal(one, two)
        lone = lb.Bayesian(network(), propagate=self.value)
        lb.save(lone, tmp_path / "y.lb")
        again = lb.load(tmp_path / "y.lb", network())
        assert (again.propagate, again.predict_by) == (self.value, self.value.for_prediction)

    def test_held_weights_are_used(self, bnn: lb.Bayesian, x: Tensor, y: Tensor) -> None:
        def numbers() -> list[Tensor]:
            elbo = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, last_layer_samples=1)
            return [bnn(x), elbo.nll, lb.predict(bnn, x, samples=3).mean]

        with torch.no_grad(), bnn.at_mean():
            assert bnn.held
            plain = bnn.model(x)
            for result, truth in zip(
                numbers(), [plain, nn.functional.cross_entropy(plain, y), plain.softmax(1)], strict=True
            ):
                torch.testing.assert_close(result, truth)
        assert not bnn.held
        with torch.no_grad(), bnn.frozen(seeded()):
            first, again = numbers(), numbers()
        assert all(map(torch.equal, first, again))
        assert not torch.equal(first[0], plain)

    def test_the_last_layer_alone(self, bnn: lb.Bayesian, x: Tensor, y: Tensor) -> None:
        options = {"n_data": 10, "last_layer_samples": 3, "generator": seeded()}
        if isinstance(self.value, OnePass):
            with pytest.raises(lb.errors.InputError, match="no layer is drawn"):
                lb.elbo(bnn, x, y, lb.Categorical(), **options)
            return
        assert lb.elbo(bnn, x, y, lb.Categorical(), **options).nll.isfinite()
        with bnn.at_mean():
            result = lb.elbo(bnn, x, y, lb.Categorical(), **options).nll
        torch.testing.assert_close(result, nn.functional.cross_entropy(bnn.model(x), y))
