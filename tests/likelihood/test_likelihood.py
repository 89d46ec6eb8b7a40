"""Likelihoods against torch.distributions in float64, and their uncertainties against draws that are all kept."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.likelihood import Uncertainty

HALVES = [torch.bfloat16, torch.float16]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def from_draws(likelihood: lb.Likelihood, outputs: list[object]) -> Uncertainty:
    """What a stream of draws gives: averages of the statistics, then the uncertainty."""
    centre = likelihood.centre(outputs[0])
    averages = torch.stack([likelihood.statistics(output, centre) for output in outputs]).mean(0)
    return likelihood.uncertainty(averages, torch.full((len(averages),), len(outputs)), centre)


def entropy(p: np.ndarray, axis: int) -> np.ndarray:
    return -(p * np.log(p)).sum(axis)


# ---------------------------------------------------------------- Categorical


def test_categorical_nll_is_that_of_torch_distributions() -> None:
    logits, target = 3 * normal(7, 4), torch.randint(0, 4, (7,))
    expected = -torch.distributions.Categorical(logits=logits).log_prob(target).sum()
    torch.testing.assert_close(lb.Categorical().nll(logits, target), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(lb.Categorical()(logits, target), expected / 7, rtol=1e-12, atol=0)


def test_categorical_per_pixel_with_weights_and_void() -> None:
    """Σ over pixels that count of weight[y]·(−log p(y)): no division by the sum of weights."""
    logits, target = 2 * normal(3, 4, 5, 2), torch.randint(0, 4, (3, 5, 2))
    weights = torch.tensor([0.5, 1.0, 3.0, 0.0], dtype=torch.float64)
    target[0, :2] = 255
    nll = lb.Categorical(class_weights=weights, ignore_index=255).nll(logits, target)
    expected = 0.0
    for n in range(3):
        for i in range(5):
            for j in range(2):
                label = int(target[n, i, j])
                if label != 255:
                    law = torch.distributions.Categorical(logits=logits[n, :, i, j])
                    expected -= weights[label].item() * law.log_prob(torch.tensor(label)).item()
    assert nll.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_class_weights_meet_outputs_of_another_dtype(dtype: torch.dtype) -> None:
    """Weights are given once, as float32; the model decides the outputs' dtype."""
    logits, target = torch.zeros(2, 3, dtype=dtype), torch.tensor([0, 2])
    nll = lb.Categorical(class_weights=torch.tensor([1.0, 1.0, 3.0])).nll(logits, target)
    assert nll.item() == pytest.approx(4 * math.log(3), rel=1e-2 if dtype == torch.bfloat16 else 1e-6)


def test_categorical_uncertainty_is_that_of_the_stacked_draws() -> None:
    outputs = [2 * normal(5, 4) for _ in range(9)]
    found = from_draws(lb.Categorical(), outputs)
    p = np.stack([torch.distributions.Categorical(logits=o).probs.numpy() for o in outputs])
    np.testing.assert_allclose(found.mean, p.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.total, entropy(p.mean(0), 1), rtol=1e-12)
    np.testing.assert_allclose(found.aleatoric, entropy(p, 2).mean(0), rtol=1e-12)
    divergence = (p * np.log(p / p.mean(0))).sum(2).mean(0)  # mutual information as a mean KL(p_s‖mean)
    np.testing.assert_allclose(found.epistemic, divergence, rtol=1e-10)


def test_categorical_uncertainty_per_pixel() -> None:
    outputs = [2 * normal(2, 3, 4, 5) for _ in range(6)]
    found = from_draws(lb.Categorical(), outputs)
    p = np.stack([torch.softmax(o, 1).numpy() for o in outputs])
    assert found.mean.shape == (2, 3, 4, 5)
    assert found.total.shape == found.aleatoric.shape == found.epistemic.shape == (2, 4, 5)
    np.testing.assert_allclose(found.total, entropy(p.mean(0), 1), rtol=1e-12)
    np.testing.assert_allclose(found.aleatoric, entropy(p, 2).mean(0), rtol=1e-12)


def test_equal_draws_leave_no_epistemic_uncertainty() -> None:
    found = from_draws(lb.Categorical(), [normal(20, 4)] * 7)
    assert (found.epistemic >= 0).all()
    torch.testing.assert_close(found.epistemic, torch.zeros(20, dtype=torch.float64), rtol=0, atol=1e-14)


def test_predictive_of_one_draw() -> None:
    logits = normal(3, 4)
    torch.testing.assert_close(
        lb.Categorical().predictive(logits), torch.distributions.Categorical(logits=logits).probs
    )
    torch.testing.assert_close(lb.Bernoulli().predictive(logits), 1 / (1 + torch.exp(-logits)))
    assert lb.Gaussian(1.0).predictive(logits) is logits


# ---------------------------------------------------------------- Bernoulli


@pytest.mark.parametrize("shape", [(6,), (6, 3), (2, 3, 4, 4)])
def test_bernoulli_nll_is_that_of_torch_distributions(shape: tuple[int, ...]) -> None:
    logits = 3 * normal(*shape)
    target = torch.randint(0, 2, shape)
    expected = -torch.distributions.Bernoulli(logits=logits).log_prob(target.double()).sum()
    for kind in (torch.long, torch.bool, torch.float64, torch.float32):
        torch.testing.assert_close(lb.Bernoulli().nll(logits, target.to(kind)), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weights", [torch.tensor([0.5, 2.0, 7.0]), torch.tensor(3.0)])
def test_positive_weights_count_the_positive_terms(weights: Tensor) -> None:
    logits, target = normal(5, 3), torch.randint(0, 2, (5, 3)).double()
    law = torch.distributions.Bernoulli(logits=logits)
    factor = torch.where(target == 1, weights.double().expand(5, 3), 1.0)
    expected = -(factor * law.log_prob(target)).sum()
    torch.testing.assert_close(
        lb.Bernoulli(positive_weights=weights).double().nll(logits, target), expected, rtol=1e-6, atol=0
    )


def test_bernoulli_uncertainty_is_that_of_the_stacked_draws() -> None:
    outputs = [2 * normal(5, 3) for _ in range(9)]
    found = from_draws(lb.Bernoulli(), outputs)
    p = np.stack([torch.sigmoid(o).numpy() for o in outputs])
    both = np.stack([p, 1 - p])
    np.testing.assert_allclose(found.mean, p.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.total, entropy(both.mean(1), 0), rtol=1e-12)
    np.testing.assert_allclose(found.aleatoric, entropy(both, 0).mean(0), rtol=1e-12)
    divergence = (both * np.log(both / both.mean(1, keepdims=True))).sum(0).mean(0)
    np.testing.assert_allclose(found.epistemic, divergence, rtol=1e-9)


# ---------------------------------------------------------------- Gaussian


def gaussian_cases() -> list[tuple[str, Callable[[], tuple[lb.Gaussian, object, Tensor, Tensor]]]]:
    """Name, and a maker of (likelihood, output, means, standard deviations)."""

    def known() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean = normal(6, 2)
        return lb.Gaussian(0.3), mean, mean, torch.full_like(mean, 0.3)

    def learned() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean, likelihood = normal(6, 2), lb.Gaussian("learned", initial=2.0).double()
        with torch.no_grad():
            likelihood.log_variance.fill_(-0.8)
        return likelihood, mean, mean, torch.full_like(mean, math.exp(-0.4))

    def pair() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean, log_variance = normal(6, 2), normal(6, 2)
        return lb.Gaussian("input"), (mean, log_variance), mean, torch.exp(log_variance / 2)

    def channels() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean, log_variance = normal(6, 2, 3), normal(6, 2, 3)
        return lb.Gaussian("input"), torch.cat([mean, log_variance], 1), mean, torch.exp(log_variance / 2)

    return [("known", known), ("learned", learned), ("pair", pair), ("channels", channels)]


@pytest.mark.parametrize(("name", "make"), gaussian_cases(), ids=[name for name, _ in gaussian_cases()])
def test_gaussian_nll_is_that_of_torch_distributions(name: str, make: Callable[[], tuple]) -> None:
    likelihood, output, mean, std = make()
    target = normal(*mean.shape)
    expected = -torch.distributions.Normal(mean, std).log_prob(target).sum()
    torch.testing.assert_close(likelihood.nll(output, target), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(likelihood.predictive(output), mean)


def test_known_noise_is_the_number_given() -> None:
    assert lb.Gaussian(0.25).noise.item() == pytest.approx(0.25, rel=1e-6)
    assert list(lb.Gaussian(0.25).parameters()) == []
    assert len(list(lb.Gaussian("learned").parameters())) == 1
    assert lb.Gaussian("learned", initial=3.0).noise.item() == pytest.approx(3.0, rel=1e-6)


def test_gaussian_uncertainty_is_that_of_the_stacked_draws() -> None:
    """Far from the origin, where E[m²] − E[m]² would have lost every digit in float32."""
    means, logs = [1e4 + normal(5, 2).float() for _ in range(11)], [normal(5, 2).float() for _ in range(11)]
    found = from_draws(lb.Gaussian("input"), list(zip(means, logs, strict=True)))
    stacked = torch.stack(means).double().numpy()
    np.testing.assert_allclose(found.mean, stacked.mean(0), rtol=1e-7)
    np.testing.assert_allclose(found.epistemic, stacked.var(0, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(found.aleatoric, torch.stack(logs).exp().mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic, rtol=1e-6)


def test_gaussian_variance_is_unbiased() -> None:
    outputs = [normal(4, 2) for _ in range(3)]
    found = from_draws(lb.Gaussian(0.5).double(), outputs)
    np.testing.assert_allclose(found.epistemic, np.var(torch.stack(outputs).numpy(), axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(found.aleatoric, 0.25, rtol=1e-6)


def test_one_draw_has_no_spread_and_each_input_its_own_count() -> None:
    assert (from_draws(lb.Gaussian(1.0).double(), [normal(4, 2)]).epistemic == 0).all()
    likelihood, centre = lb.Gaussian(1.0).double(), torch.zeros(2, 1, dtype=torch.float64)
    draws = [torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 7.0, -1.0, 4.0]).double()]
    averages = torch.stack(
        [torch.stack([d.mean(), d.square().mean(), torch.ones(()).double()]).view(3, 1) for d in draws]
    )
    found = likelihood.uncertainty(averages, torch.tensor([2, 4]), centre)
    np.testing.assert_allclose(found.epistemic[:, 0], [d.var().item() for d in draws], rtol=1e-12)


def test_nats_of_a_variance_are_half_its_logarithm() -> None:
    found = Uncertainty(*[torch.tensor([4.0])] * 4)
    assert lb.Gaussian(1.0).nats(found).item() == pytest.approx(math.log(2))
    assert lb.Categorical().nats(found).item() == 4


def test_learned_noise_finds_the_true_standard_deviation() -> None:
    likelihood, true = lb.Gaussian("learned", initial=5.0).double(), 0.35
    target = true * normal(4000, 1)
    optimizer = torch.optim.Adam(likelihood.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        likelihood(torch.zeros_like(target), target).backward()
        optimizer.step()
    maximum = target.square().mean().sqrt().item()  # the maximum likelihood estimate in closed form
    assert likelihood.noise.item() == pytest.approx(maximum, rel=1e-4)
    assert abs(likelihood.noise.item() - true) < 5 * true / math.sqrt(2 * 4000)


# ---------------------------------------------------------------- extremes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("likelihood", [lb.Categorical(), lb.Bernoulli()], ids=["categorical", "bernoulli"])
def test_extreme_logits_stay_finite(likelihood: lb.Likelihood, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0]], dtype=dtype)
    found = from_draws(likelihood, [logits, -logits])
    for part in (found.mean, found.total, found.aleatoric, found.epistemic):
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
        found = from_draws(likelihood, [logits, -logits])
        assert found.aleatoric.abs().max() == 0
        assert found.epistemic.flatten()[0].item() == pytest.approx(math.log(2), rel=1e-6)


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
    found = from_draws(lb.Gaussian("input"), [output, output])
    torch.testing.assert_close(found.aleatoric, torch.full((2, 1), math.exp(12.0)), rtol=1e-4, atol=0)


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
