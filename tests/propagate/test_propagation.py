"""Every propagation meets the conformance suite, strings are shorthand, and others may add theirs."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.propagate import (
    PROPAGATIONS,
    Covariance,
    Flipout,
    Local,
    Mirrored,
    Moments,
    Propagation,
    Sample,
    as_propagation,
)
from leanbayes.train import Optimization
from tests.propagate.conformance import Conformance, network, seeded


class TestSample(Conformance):
    value = Sample()


class TestBalancedSample(Conformance):
    value = Sample(balanced=2)


class TestMirrored(Conformance):
    value = Mirrored()


class TestLocal(Conformance):
    value = Local()


class TestFlipout(Conformance):
    value = Flipout()


class TestMoments(Conformance):
    value = Moments()


class TestLeanMoments(Conformance):
    value = Moments(rank=0, kernels="exact")


class TestFirstOrderMoments(Conformance):
    value = Moments(rank=3, positions="shared", order="taylor")


class TestCovariance(Conformance):
    value = Covariance(limit=1.0)


def test_every_propagation_is_tested() -> None:
    tested = {type(case.value) for case in globals().values() if isinstance(case, type) and hasattr(case, "value")}
    assert tested - {Alternating} == set(PROPAGATIONS.values())


class TestTwoHalves:
    def test_prediction_follows_training_unless_it_is_named(self) -> None:
        bnn = lb.Bayesian(nn.Linear(2, 1))
        assert (bnn.propagate, bnn.predict_by) == (Sample(), Sample())
        for name, kind in PROPAGATIONS.items():
            bnn.propagate = name
            assert bnn.propagate == kind()
            assert bnn.predict_by == (Sample() if kind is Mirrored else kind())
        bnn.predict_by = Moments(rank=2)
        assert (bnn.propagate, bnn.predict_by) == (Sample(), Moments(rank=2))
        bnn.predict_by = None
        assert bnn.predict_by == Sample()

    def test_elbo_and_calls_use_one_half_and_predict_the_other(self) -> None:
        bnn = lb.Bayesian(network(), propagate="local", predict_by="moments")
        x, y = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
        with torch.no_grad():
            local = bnn.call(bnn.weights(), (x,), {}, propagate=Local(), generator=seeded())
            assert torch.equal(bnn(x, generator=seeded()), local)
            losses = [
                lb.elbo(bnn, x, y, lb.Categorical(), n_data=9, propagate=by, generator=seeded()).loss
                for by in (None, "local", "moments")
            ]
        assert losses[0] == losses[1] != losses[2]
        named, default, drawn = (lb.predict(bnn, x, by=by, generator=seeded()) for by in (Moments(), None, "sample"))
        assert torch.equal(named.mean, default.mean)
        assert (default.draws == 1).all()
        assert (drawn.draws == 32).all()

    def test_moments_of_a_model_are_its_own(self) -> None:
        x, few = torch.randn(3, 1, 8, 8, dtype=torch.float64), Moments(rank=2, kernels="exact")
        for bnn in (
            lb.Bayesian(network(), predict_by=few),
            lb.Bayesian(network(), propagate=few, predict_by="sample"),
            lb.Bayesian(network(), propagate=Moments(rank=0), predict_by=few),
        ):
            default, named = lb.moments(bnn, x), lb.moments(bnn, x, by=few)
            assert all(map(torch.equal, default, named))
        bnn = lb.Bayesian(network())
        assert all(map(torch.equal, lb.moments(bnn, x), lb.moments(bnn, x, by="moments")))

    def test_a_call_a_prediction_and_the_moments_agree(self) -> None:
        bnn = lb.Bayesian(network(), posterior=lb.posteriors.Normal(0.1), propagate="moments")
        x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
        mean, variance = (part.detach() for part in lb.moments(bnn, x))
        with torch.no_grad():
            draws = torch.stack([bnn(x, generator=seeded(seed)) for seed in range(2000)])
        assert ((draws.mean(0) - mean).abs() < 5 * (variance / 2000).sqrt()).all()
        assert ((draws.var(0) / variance - 1).abs() < 5 * (2 / 2000) ** 0.5).all()
        result = lb.predict(bnn, x, likelihood=lb.Gaussian(0.5))
        torch.testing.assert_close(result.mean, mean)
        torch.testing.assert_close(result.epistemic, variance)


class TestNames:
    def test_unknown_names_are_refused_at_once(self) -> None:
        bnn, x, y = lb.Bayesian(nn.Linear(2, 2)), torch.ones(1, 2), torch.zeros(1, dtype=torch.long)
        for call in (
            lambda: lb.Bayesian(nn.Linear(2, 2), propagate="telepathy"),
            lambda: lb.Bayesian(nn.Linear(2, 2), predict_by="telepathy"),
            lambda: setattr(bnn, "propagate", "telepathy"),
            lambda: setattr(bnn, "predict_by", "telepathy"),
            lambda: lb.predict(bnn, x, by="telepathy"),
            lambda: lb.predict(bnn.model, x, by="telepathy"),
            lambda: lb.elbo(bnn, x, y, lb.Categorical(), n_data=1, propagate="telepathy"),
            lambda: lb.elbo(bnn.model, x, y, lb.Categorical(), n_data=1, propagate="telepathy"),
            lambda: lb.moments(bnn, x, by="telepathy"),
        ):
            with pytest.raises(lb.errors.UnknownName, match=r"telepathy.*flipout.*moments"):
                call()

    def test_anything_else_is_refused(self) -> None:
        bnn, x = lb.Bayesian(nn.Linear(2, 2)), torch.ones(1, 2)
        for wrong in (3, Moments):
            with pytest.raises(lb.errors.InputError, match="a propagation is a name"):
                as_propagation(wrong)
        with pytest.raises(lb.errors.InputError, match="moments needs by"):
            lb.moments(bnn, x, by="sample")
        with pytest.raises(lb.errors.InputError, match="covariance needs by"):
            lb.covariance(bnn, x, by=Moments())

    @pytest.mark.parametrize("options", [{"rank": -1}, {"kernels": "boxes"}, {"positions": "?"}, {"order": "third"}])
    def test_settings_are_checked_when_the_value_is_made(self, options: dict) -> None:
        with pytest.raises(lb.errors.LeanBayesError):
            Moments(**options)
        with pytest.raises(lb.errors.InputError):
            Covariance(limit=0.0)


@dataclass(frozen=True)
class Alternating(Propagation):
    """A propagation of somebody else: one draw, or its mirror image, with a fair coin."""

    name: ClassVar[str] = "alternating"
    chance: float = 0.5

    def stand_ins(self, weights, model, generator):
        sign = 1 if torch.rand((), generator=generator) < self.chance else -1
        return {name: weight.sample(sign * weight.noise(generator)) for name, weight in weights.items()}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    list(PROPAGATIONS)  # our own are found
    monkeypatch.setattr(PROPAGATIONS, "_members", dict(PROPAGATIONS._members))
    PROPAGATIONS.register(Alternating)


@pytest.mark.usefixtures("registered")
class TestFromOutside(Conformance):
    """One class is all that a third party writes: it is trained, predicts, and meets the same suite."""

    value = Alternating(chance=0.25)

    def test_it_trains_and_predicts_by_its_name(self) -> None:
        x = torch.randn(64, 2, generator=seeded())
        y = (x[:, 0] > 0).long()
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.01), propagate="alternating")
        assert bnn.predict_by == Alternating()
        loader = DataLoader(TensorDataset(x, y), batch_size=16)
        optimizer = Optimization("adam", lr=0.03)
        lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=20, optimizer=optimizer, kl_weight=0.01)
        assert (lb.predict(bnn, x).mean.argmax(1) == y).double().mean() > 0.9


def test_a_file_holds_registered_propagations_only(tmp_path) -> None:
    with pytest.raises(lb.errors.InputError, match=r"Alternating.* is not registered"):
        lb.save(lb.Bayesian(nn.Linear(1, 1), propagate=Alternating()), tmp_path / "x.lb")
