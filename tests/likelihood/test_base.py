"""What all likelihoods share: their predictions of one draw, extreme outputs, errors; and one added from outside."""

import math
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes import _catalogue
from leanbayes.baselines import LaplaceApproximation, Temperature
from leanbayes.likelihood import LIKELIHOODS, MomentLikelihood, Uncertainty, usual_likelihood
from leanbayes.likelihood.base import surprise
from tests.likelihood.cases import HALVES, from_draws, normal


def test_predictive_of_one_draw() -> None:
    logits = normal(3, 4)
    torch.testing.assert_close(
        lb.Categorical().predictive(logits), torch.distributions.Categorical(logits=logits).probs
    )
    torch.testing.assert_close(lb.Bernoulli().predictive(logits), 1 / (1 + torch.exp(-logits)))
    assert lb.Gaussian(1.0).predictive(logits) is logits


# ---------------------------------------------------------------- extremes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("likelihood", [lb.Categorical(), lb.Bernoulli()], ids=["categorical", "bernoulli"])
def test_extreme_logits_stay_finite(likelihood: lb.Likelihood, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0]], dtype=dtype)
    result = from_draws(likelihood, [logits, -logits])
    for part in (result.mean, result.total, result.aleatoric, result.epistemic):
        assert torch.isfinite(part).all()
        assert (part >= 0).all()
    target = torch.tensor([0, 1, 2]) if isinstance(likelihood, lb.Categorical) else torch.eye(3)
    logits.requires_grad_()
    nll = likelihood.nll(logits, target)
    nll.backward()
    assert torch.isfinite(nll)
    assert torch.isfinite(logits.grad).all()


def test_opposite_certainties_are_all_epistemic() -> None:
    """Two draws that are sure of different classes: log 2 nats, none of them aleatoric."""
    logits = torch.tensor([[1e4, -1e4]])
    for likelihood in (lb.Categorical(), lb.Bernoulli()):
        result = from_draws(likelihood, [logits, -logits])
        assert result.aleatoric.abs().max() == 0
        assert result.epistemic.flatten()[0].item() == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_averaged_in_float32(dtype: torch.dtype) -> None:
    """The same rounded outputs in float64 give the same uncertainty to float32 precision."""
    classes = [normal(5, 4).to(dtype) for _ in range(40)]
    pairs = [(normal(5, 2).to(dtype), normal(5, 2).to(dtype)) for _ in range(40)]
    for likelihood, outputs in ((lb.Categorical(), classes), (lb.Bernoulli(), classes)):
        narrow, wide = from_draws(likelihood, outputs), from_draws(likelihood, [o.double() for o in outputs])
        for name in ("mean", "total", "aleatoric", "epistemic"):
            assert getattr(narrow, name).dtype == torch.float32
            torch.testing.assert_close(
                getattr(narrow, name).double(), getattr(wide, name), rtol=1e-4, atol=1e-6, msg=lambda m, n=name: n + m
            )
    narrow = from_draws(lb.Gaussian("input"), pairs)
    wide = from_draws(lb.Gaussian("input"), [(mean.double(), log.double()) for mean, log in pairs])
    for name in ("mean", "total", "aleatoric", "epistemic"):
        torch.testing.assert_close(
            getattr(narrow, name).double(), getattr(wide, name), rtol=1e-4, atol=1e-5, msg=lambda m, n=name: n + m
        )


def test_the_noise_of_half_precision_outputs_does_not_overflow() -> None:
    """exp(12) is more than float16 can hold; the average is in float32, which can."""
    output = (torch.zeros(2, 1, dtype=torch.float16), torch.full((2, 1), 12.0, dtype=torch.float16))
    result = from_draws(lb.Gaussian("input"), [output, output])
    torch.testing.assert_close(result.aleatoric, torch.full((2, 1), math.exp(12.0)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "gaussian"])
@pytest.mark.parametrize("dtype", HALVES)
def test_the_nll_of_many_half_precision_pixels_keeps_its_digits(name: str, dtype: torch.dtype) -> None:
    """90,000 nats are beyond float16, and three digits are too few for a sum over a batch of pixels."""
    logits = (0.1 * torch.randn(8, 2, 128, 128)).to(dtype)
    target = torch.randint(0, 2, (8, 128, 128))
    if name == "categorical":
        likelihood, expected = lb.Categorical(), -torch.distributions.Categorical(
            logits=logits.double().movedim(1, -1)
        ).log_prob(target).sum()  # fmt: skip
    elif name == "bernoulli":
        target = torch.stack([target, target], 1)
        law = torch.distributions.Bernoulli(logits=logits.double())
        likelihood, expected = lb.Bernoulli(), -law.log_prob(target.double()).sum()
    else:
        target = torch.stack([target, target], 1).to(dtype)
        likelihood = lb.Gaussian(1.0).to(dtype)
        expected = -torch.distributions.Normal(logits.double(), 1.0).log_prob(target.double()).sum()
    assert likelihood.nll(logits, target).item() == pytest.approx(expected.item(), rel=1e-3)


# ---------------------------------------------------------------- errors and plumbing


@pytest.mark.parametrize(
    ("likelihood", "output", "target", "words"),
    [
        (lb.Categorical(), torch.zeros(4, 3), torch.zeros(5, dtype=torch.long), r"\(4, 3\).*\(4,\).*\(5,\)"),
        (lb.Categorical(), torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.long), r"Bernoulli"),
        (lb.Categorical(), torch.zeros(4), torch.zeros(4, dtype=torch.long), r"\(4,\)"),
        (lb.Categorical(), torch.zeros(4, 3), torch.zeros(4), "float32"),
        (lb.Categorical(), (torch.zeros(4, 3),) * 2, torch.zeros(4, dtype=torch.long), "tuple"),
        (lb.Categorical(torch.ones(2)), torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), "2 class weights for 3"),
        (lb.Bernoulli(), torch.zeros(4, 3), torch.zeros(4), r"\(4, 3\).*\(4,\)"),
        (lb.Bernoulli(), {"a": 1}, torch.zeros(4), "dict"),
        (lb.Gaussian(), torch.zeros(4, 1), torch.zeros(4), r"\(4, 1\).*\(4,\)"),
        (lb.Gaussian(), (torch.zeros(4), torch.zeros(4)), torch.zeros(4), 'noise="input"'),
        (lb.Gaussian("input"), torch.zeros(4, 3), torch.zeros(4, 3), r"\(4, 3\)"),
        (lb.Gaussian("input"), torch.zeros(4), torch.zeros(4), r"\(4,\)"),
    ],
)
def test_shape_errors_name_the_shapes(likelihood: lb.Likelihood, output: object, target: Tensor, words: str) -> None:
    with pytest.raises(lb.errors.ShapeMismatch, match=words):
        likelihood.nll(output, target)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lb.Gaussian(0.0),
        lambda: lb.Gaussian(-1.0),
        lambda: lb.Gaussian(math.nan),
        lambda: lb.Gaussian(math.inf),
        lambda: lb.Gaussian("loud"),
        lambda: lb.Gaussian("learned", initial=0.0),
        lambda: lb.Categorical(torch.tensor([1.0, -1.0])),
        lambda: lb.Categorical(torch.tensor([1.0, math.nan])),
        lambda: lb.Bernoulli(torch.tensor([-1.0])),
    ],
)
def test_bad_arguments(make: Callable[[], object]) -> None:
    with pytest.raises(lb.errors.InputError):
        make()


def test_weights_and_noise_move_with_the_likelihood() -> None:
    assert lb.Categorical(torch.ones(3)).double().class_weights.dtype == torch.float64
    assert lb.Bernoulli(torch.ones(3)).to("meta").positive_weights.is_meta
    assert lb.Gaussian("learned").double().noise.dtype == torch.float64


# ---------------------------------------------------------------- a likelihood from outside


class Poisson(lb.Likelihood):
    """Counts: the output is the logarithm of their rate. This class is all that a third party writes."""

    usual_for = ("counts",)

    def nll(self, output: Any, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(output, target.to(output.dtype), log_input=True, full=False, reduction="sum")

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        rate = output.exp()
        return torch.stack([rate, rate.square()], dim=1)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        rate, square = averages.unbind(1)
        epistemic = (square - rate.square()).clamp_min(0)
        return Uncertainty(rate, rate + epistemic, rate, epistemic)

    def predictive(self, output: Any) -> Tensor:
        return output.exp()


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(LIKELIHOODS, "_members", dict(LIKELIHOODS))
    LIKELIHOODS.register(Poisson)


@pytest.mark.parametrize("propagate", ["sample", "moments"])
def test_a_likelihood_from_outside_trains_predicts_and_evaluates(propagate: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(256, 2)
    rate = torch.exp(1 + x[:, :1] - x[:, 1:])
    y = torch.poisson(rate)
    bnn, likelihood = lb.Bayesian(nn.Linear(2, 1), propagate=propagate), Poisson()
    result = lb.elbo(bnn, x, y, likelihood, n_data=256)
    assert result.loss.requires_grad
    lb.fit(bnn, [(x, y)] * 4, likelihood=likelihood, epochs=40, optimizer=lb.Optimization(lr=0.05), kl_weight=0.01)
    prediction = lb.predict(bnn, x, likelihood=likelihood, samples=16)
    assert (prediction.mean - rate).abs().mean() < 0.3
    assert (prediction.total >= prediction.aleatoric).all()
    auto = lb.predict(bnn, x[:8], likelihood=likelihood, samples="auto")
    assert torch.isfinite(auto.standard_error).all()
    metrics = lb.evaluate(bnn, [(x, y)], likelihood=likelihood, samples=16, shifted={"far": [(x + 3, y)]}).metrics
    assert metrics["rmse"] < 1.2 * (y - rate).square().mean().sqrt().item()
    assert metrics["ood/far/auroc"] >= 0
    assert 0.8 < metrics["coverage@0.9"] <= 1


@pytest.mark.usefixtures("_registered")
def test_a_registered_likelihood_is_found() -> None:
    assert LIKELIHOODS.named("Poisson") is Poisson
    assert isinstance(usual_likelihood("counts"), Poisson)


def test_a_likelihood_of_another_package_comes_in_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("poisson", f"{__name__}:Poisson", "leanbayes.likelihoods")
    monkeypatch.setattr(_catalogue, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(LIKELIHOODS, "_members", {})
    monkeypatch.setattr(LIKELIHOODS, "_sources", {})
    monkeypatch.setattr(LIKELIHOODS, "_complete", False)
    assert sorted(LIKELIHOODS) == [
        "Bernoulli",
        "Categorical",
        "Gaussian",
        "MeanCrossEntropy",
        "MomentLikelihood",
        "Poisson",
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("classes", lb.Categorical), ("pixels", lb.Categorical), ("labels", lb.Bernoulli), ("regression", lb.Gaussian)],
)
def test_each_kind_has_a_usual_likelihood(kind: str, expected: type[lb.Likelihood]) -> None:
    assert type(usual_likelihood(kind)) is expected
    with pytest.raises(lb.errors.InputError, match="classes, labels, pixels, regression"):
        usual_likelihood("melodies")
    assert usual_likelihood("pixels", ignore_index=255).ignore_index == 255


def test_the_kind_of_data_follows_from_the_targets() -> None:
    for likelihood, shape, kind in (
        (lb.Categorical(), (4,), "classes"),
        (lb.Categorical(), (4, 3, 3), "pixels"),
        (lb.Bernoulli(), (4,), "labels"),
        (lb.Bernoulli(), (4, 2), "labels"),
        (lb.Bernoulli(), (4, 1, 3, 3), "pixels"),
        (lb.Gaussian(), (4, 2), "regression"),
        (MomentLikelihood(lb.Categorical()), (4, 3, 3), "pixels"),
        (Poisson(), (4, 1), "regression"),
    ):
        assert likelihood.kind(torch.zeros(shape)) == kind
        assert likelihood.counted(torch.zeros(shape)).all()


def test_what_needs_logits_says_so() -> None:
    for ask in (
        lambda: Poisson().logit_rows(torch.zeros(2, 1)),
        lambda: Poisson().mixture_nll(torch.zeros(3, 2), torch.zeros(2)),
        lambda: Poisson().as_probabilities(torch.zeros(2), torch.zeros(2)),
        lambda: MomentLikelihood(Poisson()),
        lambda: Temperature.fit(nn.Linear(1, 1), [], Poisson()),
        lambda: LaplaceApproximation.fit(nn.Linear(1, 1), [], Poisson()),
    ):
        with pytest.raises(lb.errors.InputError, match="Poisson"):
            ask()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_surprise_is_that_of_torch_and_keeps_small_probabilities(dtype: torch.dtype) -> None:
    p = torch.cat([torch.zeros(1, dtype=dtype), torch.logspace(-37, 0, 200, dtype=dtype)])
    torch.testing.assert_close(surprise(p), torch.special.entr(p), rtol=1e-5, atol=0)
    assert surprise(torch.tensor([torch.nan], dtype=dtype)).isnan().all()
    assert abs(surprise(torch.tensor(-1e-9, dtype=dtype))) < 1e-6
