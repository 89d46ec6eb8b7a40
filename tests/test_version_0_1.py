"""Files of version 0.1 load, and predict the numbers that version 0.1 predicted (tests/version_0_1/numbers.json)."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._descriptions import restore_propagations
from leanbayes._files import read_header
from leanbayes.propagate import Moments, Sample

FILES = Path(__file__).parent / "version_0_1"
NUMBERS: dict[str, dict[str, Any]] = json.loads((FILES / "numbers.json").read_text())
BAYESIAN = [name for name, numbers in NUMBERS.items() if "elbo/sample" in numbers]
LEAN = Moments(rank=0, kernels="exact")


def network() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU()]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def loaded(name: str) -> Any:
    return lb.load(FILES / f"{name}.lb", network())


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 1, 8, 8, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def close(numbers: Any, truth: Any) -> None:
    """The same up to the rounding of float32."""
    for ours, theirs in zip(numbers, truth, strict=True):
        torch.testing.assert_close(torch.as_tensor(ours).detach(), torch.tensor(theirs), rtol=2e-5, atol=2e-6)


def parts(prediction: lb.Prediction) -> list[Tensor]:
    return [prediction.mean, prediction.total, prediction.epistemic]


def test_every_file_has_numbers() -> None:
    assert {path.stem for path in FILES.glob("*.lb")} == set(NUMBERS)


@pytest.mark.parametrize("name", BAYESIAN)
def test_losses_gradients_and_predictions_by_draws(name: str) -> None:
    """The numbers were made one after the other: each loss, in train mode, moved the running statistics.

    Version 0.1 drew the directions of Radial's Monte Carlo KL, over which the present one integrates.
    """
    bnn, (x, y), truth = loaded(name), batch(), NUMBERS[name]
    if isinstance(bnn.kl_estimator, lb.MonteCarlo):
        bnn.kl_estimator = dataclasses.replace(bnn.kl_estimator, statistics="accumulated")
    statistics = bnn.model[1].running_mean.clone()
    bnn.model[1].reset_running_stats()
    for propagate in ("sample", "mirrored", "local", "flipout"):
        bnn.zero_grad()
        elbo = lb.elbo(bnn, x, y, lb.Categorical(), n_data=100, propagate=propagate, generator=seeded())
        elbo.loss.backward()
        close([elbo.loss, elbo.nll, elbo.kl], truth[f"elbo/{propagate}"])
        gradient = sum(p.grad.abs().sum().item() for p in bnn.parameters() if p.grad is not None)
        assert gradient == pytest.approx(truth[f"gradient/{propagate}"], rel=1e-4)
        prediction = lb.predict(bnn, x, samples=8, by=propagate, generator=seeded(), method="loop")
        close(parts(prediction), truth[f"predict/{propagate}"])
    torch.testing.assert_close(bnn.model[1].running_mean, statistics)


@pytest.mark.parametrize("name", BAYESIAN)
def test_moments_and_covariance(name: str) -> None:
    bnn, (x, y), truth = loaded(name).eval(), batch(), NUMBERS[name]
    if isinstance(bnn.kl_estimator, lb.MonteCarlo):
        bnn.kl_estimator = dataclasses.replace(bnn.kl_estimator, statistics="accumulated")
    with torch.no_grad():
        close(lb.moments(bnn, x), truth["moments/no_grad"])
        close(lb.covariance(bnn, x[:2]), truth["covariance"])
    close(lb.moments(bnn, x), truth["moments/no_grad"])
    close(lb.moments(bnn, x, by=LEAN), truth["moments/grad"])
    elbo = lb.elbo(bnn, x, y, lb.Categorical(), n_data=100, propagate=LEAN, generator=seeded())
    close([elbo.loss, elbo.nll, elbo.kl], truth["elbo/moments"])


@pytest.mark.parametrize("name", BAYESIAN)
def test_class_probabilities_of_moments_are_nearer_to_the_truth_than_those_of_version_0_1(name: str) -> None:
    """The logits have the moments of before. Their probabilities come from other points than in version 0.1."""
    bnn, (x, _), truth = loaded(name).eval(), batch(), NUMBERS[name]
    with torch.no_grad():
        mean, variance = (part.double() for part in lb.moments(bnn, x))
    even = torch.quasirandom.SobolEngine(mean.shape[1], scramble=True, seed=3).draw(2**15, dtype=torch.float64)
    noise = torch.special.ndtri(even.clamp(1e-12, 1 - 1e-12))[:, None]
    exact = (mean + variance.sqrt() * noise).softmax(-1).mean(0)
    before = torch.tensor(truth["predict/moments"][0], dtype=torch.float64)
    now = lb.predict(bnn, x, by="moments").mean.double()
    assert (now - exact).abs().max() <= (before - exact).abs().max()
    assert (before - exact).abs().max() < 2e-3


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in BAYESIAN])
def test_sparse_models_and_predictors(name: str) -> None:
    prediction = lb.predict(loaded(name), batch()[0], samples=4, generator=seeded(), method="loop")
    close(parts(prediction), NUMBERS[name]["predict/sample"])


def test_moments_of_version_0_1_had_two_settings() -> None:
    """That version trained without factors and boxes, and predicted with them."""
    assert read_header(FILES / "everything.lb", "model", 1)["root"]["propagate"] == "sample"
    assert (loaded("everything").propagate, loaded("everything").predict_by) == (Sample(), Sample())
    assert restore_propagations({"propagate": "moments"}) == (LEAN, Moments())
