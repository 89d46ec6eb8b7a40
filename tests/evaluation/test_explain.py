"""Explanations against closed forms, finite differences, and captum's own arithmetic done by hand."""

import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leanbayes.baselines import LaplaceApproximation, MCDropout
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.evaluation.explain import Explainer
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian
from leanbayes.posteriors import Normal
from leanbayes.prediction import Predictor, predict
from tests.baselines.conformance import CASES, net

pytest.importorskip("captum")

QUANTITIES: tuple[Any, ...] = ("prediction", "total", "aleatoric", "epistemic")
EVERY = {
    **CASES,
    "plain": lambda dtype: net(0, dtype),
    "Bayesian": lambda dtype: Bayesian(net(0, dtype), posterior=Normal(init_scale=0.3)),
    "Bayesian, local": lambda dtype: Bayesian(net(0, dtype), propagate="local"),
    "Bayesian, moments": lambda dtype: Bayesian(net(0, dtype), propagate="moments", posterior=Normal(init_scale=0.3)),
}


def inputs(n: int = 5, width: int = 4, seed: int = 7) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Square(nn.Module):
    """f = Σ x², whose gradient is 2x and whose second order is exact."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().flatten(1).sum(1, keepdim=True)


def test_a_linear_model_is_explained_by_its_weights_and_without_fault() -> None:
    model = nn.Linear(4, 3).double()
    explain = Explainer(model, likelihood=Gaussian())
    x, target = inputs(), torch.tensor([0, 1, 2, 2, 1])
    assert torch.allclose(explain.saliency(x, target), model.weight[target].abs(), rtol=1e-12)
    assert torch.allclose(explain.saliency(x, target, signed=True), model.weight[target], rtol=1e-12)
    assert explain.sensitivity_max(x, target).abs().max() < 1e-12
    assert explain.infidelity(x, target).abs().max() < 1e-24
    change = (model.weight.abs() - model.weight)[target].detach()  # with |w| for w, (Iᵀ(|w| − w))² is left
    absolute = explain.infidelity(x, target, signed=False, radius=0.3, perturbations=20_000)
    truth = change.square().sum(1) * 0.3**2 / 3
    assert ((absolute - truth).abs() < 4 * math.sqrt(2 / 20_000) * truth).all()  # kurtosis at most 3


def test_the_gradient_of_a_probability() -> None:
    model = nn.Linear(4, 3).double()
    x = inputs()
    p = model(x).softmax(1).detach()
    target = p.argmax(1)
    truth = p.gather(1, target[:, None]) * (model.weight[target] - p @ model.weight)
    explain = Explainer(model)
    assert torch.allclose(explain.saliency(x, signed=True), truth, rtol=1e-10)
    assert torch.equal(explain.saliency(x), explain.saliency(x, target))
    assert torch.allclose(explain.score(x, target), p.amax(1), rtol=1e-12)


@pytest.mark.parametrize("batch_size", [None, 3, 100])
def test_sensitivity_and_infidelity_of_a_square_by_hand(batch_size: int | None) -> None:
    x = inputs(6, 5)
    explain = Explainer(Square(), likelihood=Gaussian(), batch_size=batch_size, seed=4)
    assert torch.allclose(explain.saliency(x), 2 * x.abs(), rtol=1e-12)
    many = 2000 if batch_size is None else 50
    moved = explain.sensitivity_max(x, radius=0.2, perturbations=many)  # |2|x + u| − 2|x||: at most 2|u| each
    farthest = 0.2 * math.sqrt(5) / x.norm(dim=1)
    assert (moved <= farthest * (1 + 1e-12)).all()
    signed = explain.sensitivity_max(x, radius=0.2, perturbations=many, signed=True)
    assert (signed > 0.7 * farthest).all()  # the largest of many is near the corner of the cube
    assert (signed <= farthest * (1 + 1e-12)).all()
    result = explain.infidelity(x, radius=0.5, perturbations=many)  # Φᵀ I − f(x) + f(x − I) = ‖I‖²
    second, fourth = 0.5**2 / 3, 0.5**4 / 5
    truth = 5 * fourth + 20 * second**2
    draws = (torch.rand(200_000, 5, dtype=torch.float64) - 0.5).square().sum(1).square()
    assert abs(draws.mean().item() - truth) < 4 * draws.std().item() / math.sqrt(len(draws))
    assert ((result - truth).abs() < 4 * draws.std() / math.sqrt(many)).all()


def test_one_perturbation_is_the_one_that_the_seed_gives() -> None:
    x = inputs(3, 5)
    explain = Explainer(Square(), likelihood=Gaussian(), seed=9)
    source = torch.Generator().manual_seed(9)
    change = (2 * torch.rand(3, 5, dtype=torch.float64, generator=source) - 1) * 0.5
    assert torch.allclose(explain.infidelity(x, perturbations=1), change.square().sum(1).square(), rtol=1e-9)
    step = change / 5
    assert torch.allclose(
        explain.sensitivity_max(x, perturbations=1, signed=True), step.norm(dim=1) / x.norm(dim=1), rtol=1e-12
    )
    assert torch.equal(explain.infidelity(x), explain.infidelity(x))
    assert not torch.equal(explain.infidelity(x), Explainer(Square(), likelihood=Gaussian()).infidelity(x))


def test_saliency_of_the_uncertainty_in_closed_form() -> None:
    bnn = Bayesian(nn.Linear(4, 1).double(), posterior=Normal(init_scale=0.2), propagate="moments")
    x = inputs()
    epistemic = Explainer(bnn, likelihood=Gaussian(0.5), of="epistemic")
    assert torch.allclose(epistemic.score(x), 0.04 * (1 + x.square().sum(1)), rtol=1e-9)
    assert torch.allclose(epistemic.saliency(x, signed=True), 0.08 * x, rtol=1e-9)
    bnn.propagate = "sample"
    draws = 500
    sampled = Explainer(bnn, likelihood=Gaussian(0.5), of="total", samples=draws).saliency(x, signed=True)
    # The gradient 2Cx with C the sample covariance of the weights: errors of its entries are σ²/√draws, √2 times on
    # the diagonal.
    assert (sampled - 0.08 * x).abs().max() < 4 * 2 * 0.04 * math.sqrt(2 / draws) * x.norm(dim=1).max()
    model = nn.Linear(4, 2).double()
    p = model(x).softmax(1).detach()
    slope = (p[:, 1] / p[:, 0]).log() * p[:, 0] * p[:, 1]  # dH/dz of two classes with z₀ − z₁ = z
    truth = slope[:, None] * (model.weight[0] - model.weight[1])
    for of in ("total", "aleatoric"):
        assert torch.allclose(Explainer(model, of=of).saliency(x, signed=True), truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", list(EVERY))
def test_every_predictor_has_the_gradient_of_its_score(case: str) -> None:
    predictor, x, step = EVERY[case](torch.float64), inputs(2), 1e-5
    moves = step * torch.cat([torch.eye(4), -torch.eye(4)]).double()
    around = (x[:, None] + moves).flatten(0, 1)
    for of in QUANTITIES:
        explain = Explainer(predictor, of=of, samples=3)
        target = torch.tensor([2, 0]) if of == "prediction" else None
        result = explain.saliency(x, target, signed=True)
        with torch.no_grad():
            scores = explain.score(around, None if target is None else target.repeat_interleave(8)).view(2, 2, 4)
        assert torch.allclose(result, (scores[:, 0] - scores[:, 1]) / (2 * step), rtol=1e-4, atol=1e-8)
        assert result.abs().max() > 0 or (of == "epistemic" and case in ("plain", "temperature"))


@pytest.mark.parametrize("case", list(EVERY))
def test_what_is_said_of_an_input_depends_on_it_alone(case: str) -> None:
    explain = Explainer(EVERY[case](torch.float64), samples=3)
    x = inputs(3)
    order = torch.tensor([2, 0, 1])
    whole = explain.saliency(x, signed=True)
    assert torch.allclose(explain.saliency(x[order], signed=True), whole[order], rtol=1e-9, atol=1e-12)
    parts = Explainer(explain.predictor, samples=3, batch_size=2)
    assert torch.allclose(parts.saliency(x, signed=True), whole, rtol=1e-9, atol=1e-12)
    moved = parts.sensitivity_max(x, perturbations=2)
    assert moved.shape == (3,)
    assert torch.isfinite(moved).all()


@pytest.mark.parametrize("case", list(EVERY))
def test_the_prediction_that_is_explained_is_the_one_that_is_made(case: str) -> None:
    predictor = EVERY[case](torch.float64)
    x = inputs(3)
    draws = 50
    made = predict(predictor, x, samples=draws, generator=torch.Generator().manual_seed(1), keep_samples=True)
    explain = Explainer(predictor, samples=draws, seed=2)
    with torch.no_grad():
        message = explain.uncertainty(x)
    assert made.samples is not None
    error = made.samples.std(0, correction=0) * math.sqrt(2 / draws)
    members = getattr(predictor, "members", None)
    if members is not None or case in ("plain", "Bayesian, moments"):
        error = torch.zeros_like(error)  # all draws there are, or none: no chance in it
    assert ((message.mean - made.mean).abs() <= 4.5 * error + 1e-9).all()
    assert torch.allclose(message.total, made.total, atol=9 * error.max().item() + 1e-9)


@pytest.mark.parametrize("case", [name for name in CASES if "laplace" in name])
def test_draws_of_laplace_have_its_functional_variance(case: str) -> None:
    predictor = CASES[case](torch.float64)
    assert isinstance(predictor, LaplaceApproximation)
    x, count = inputs(3), 300
    with torch.no_grad():
        draws = torch.stack([one(x) for one in predictor.eval().networks(count, torch.Generator().manual_seed(0))])
    mean, covariance = predictor.functional_variance(x)
    variance = covariance.diagonal(dim1=1, dim2=2)
    assert ((draws.mean(0) - mean).abs() <= 4 * (variance / count).sqrt() + 1e-12).all()
    assert ((draws.var(0) - variance).abs() <= 4 * math.sqrt(2 / count) * variance + 1e-12).all()
    assert variance.max() > 0.01


def test_dropout_without_a_batching_rule_goes_row_by_row() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(2, 6, num_layers=2, dropout=0.5, batch_first=True)
            self.last = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.gru(x)[0][:, -1])

    x = torch.randn(4, 5, 2, dtype=torch.float64)
    explain = Explainer(MCDropout(Recurrent().double()), samples=3)
    whole = explain.saliency(x)
    assert whole.abs().max() > 0
    assert torch.allclose(explain.saliency(x[2:3]), whole[2:3], rtol=1e-9)


def test_saturated_probabilities_have_no_slope_and_no_nan() -> None:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.mul_(1e4)
    x = inputs().float()
    for likelihood in (Categorical(), Bernoulli()):
        for of in QUANTITIES:
            result = Explainer(model, likelihood=likelihood, of=of).saliency(x)
            assert torch.isfinite(result).all()
    mixed = nn.Linear(1, 2)  # one label far from doubt, the other in it
    with torch.no_grad():
        mixed.weight.copy_(torch.tensor([[1000.0], [0.5]]))
        mixed.bias.zero_()
    one = torch.ones(1, 1)
    p = torch.tensor(0.5).sigmoid()
    slope = 0.5 * (p * (1 - p) * 0.5 * 0.5)  # dH/dz = −z p(1−p); the mean over two labels
    result = Explainer(lambda z: mixed(z[:, :1]), likelihood=Bernoulli(), of="total").saliency(one)
    assert result.item() == pytest.approx(slope.item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pixels_labels_and_narrow_types(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = Bayesian(nn.Conv2d(1, 3, 3, padding=1).to(dtype))
    x = torch.randn(2, 1, 6, 6, dtype=dtype).to(memory_format=torch.channels_last)
    for likelihood in (Categorical(), Bernoulli()):
        explain = Explainer(model, likelihood=likelihood, samples=3)
        for target in (None, torch.tensor([0, 2]), torch.randint(3, (2, 6, 6))):
            result = explain.saliency(x, target)
            assert result.shape == x.shape
            assert result.dtype == dtype
            assert explain.infidelity(x, target).shape == explain.sensitivity_max(x, target).shape == (2,)
    with torch.no_grad():
        explain = Explainer(model, samples=3)
        mean = explain.uncertainty(x).mean
        target = torch.randint(3, (2, 6, 6))
        expected = mean.gather(1, target[:, None]).flatten(1).mean(1)
        assert torch.allclose(explain.score(x, target), expected)


def test_a_model_is_left_as_it_was_and_held_draws_are_kept() -> None:
    bnn = Bayesian(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))).train()
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    x = inputs().float()
    explain = Explainer(bnn, samples=2)
    explain.saliency(x)
    explain.infidelity(x)
    assert bnn.training
    assert bnn.model[2].training  # type: ignore[index]
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
    assert all(parameter.grad is None for parameter in bnn.parameters())
    assert not x.requires_grad
    with bnn.at_mean():
        at_mean = explain.saliency(x)
    assert torch.allclose(at_mean, Explainer(bnn.model).saliency(x))


def test_global_randomness_is_untouched() -> None:
    explainers = [Explainer(EVERY[case](torch.float64), samples=2) for case in ("dropout", "Bayesian", "swag")]
    state = torch.get_rng_state()
    for explain in explainers:
        explain.saliency(inputs(2))
        explain.sensitivity_max(inputs(2))
        explain.infidelity(inputs(2))
    assert torch.equal(torch.get_rng_state(), state)


class Own(Predictor):
    def outputs(self, x: Any, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        yield from (x for _ in range(draws))

    def parts(self) -> dict[str, nn.Module]:
        return {}


def test_what_does_not_depend_on_the_input_has_no_slope() -> None:
    for noise in (0.5, "learned"):
        explain = Explainer(nn.Linear(4, 1).double(), likelihood=Gaussian(noise), of="aleatoric")
        assert explain.saliency(inputs()).tolist() == torch.zeros(5, 4).tolist()
        assert explain.sensitivity_max(inputs()).tolist() == [0.0] * 5


def test_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs()
    explain = Explainer(nn.Linear(4, 3).double())
    with pytest.raises(UnknownName, match="epistemic"):
        Explainer(nn.Linear(4, 3), of="doubt")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1"):
        Explainer(nn.Linear(4, 3), samples=0)
    with pytest.raises(InputError, match="Bayesian"):
        Explainer(nn.Sequential(Bayesian(nn.Linear(4, 3))))
    with pytest.raises(InputError, match="define its method networks"):
        Explainer(Own()).saliency(x)
    for wrong in (x[0], x.long(), x[:0], [x]):
        with pytest.raises(InputError, match="floating-point"):
            explain.saliency(wrong)  # type: ignore[arg-type]
    shapes = torch.tensor([0, 1]), torch.zeros(5, 2).long()
    for target in (*shapes, [0, 1, 2, 0, 1], torch.full((5,), 3), torch.zeros(5)):
        with pytest.raises(ShapeMismatch):
            explain.saliency(x, target)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no target"):
        Explainer(nn.Linear(4, 3), of="total").saliency(x.float(), torch.zeros(5).long())
    with pytest.raises(InputError, match="target"):
        Explainer(nn.Linear(4, 3), likelihood=Gaussian()).saliency(x.float())
    with pytest.raises(InputError, match="radius"):
        explain.infidelity(x, radius=0.0)
    with pytest.raises(InputError, match="perturbation"):
        explain.sensitivity_max(x, perturbations=0)
    with pytest.raises(NonFinite, match="NaN"):
        explain.saliency(torch.full_like(x, math.nan))
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(InputError, match=r"pip install leanbayes\[explain\]"):
        explain.saliency(x)
