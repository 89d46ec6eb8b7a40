"""The estimators pass the checks of scikit-learn, and say how sure they are."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import leanbayes as lb
from leanbayes.integrations.sklearn import LeanClassifier, LeanRegressor
from tests.integrations.matrix import shows
from tests.integrations.pages import run_page

QUICK = {"hidden": (8,), "epochs": 24, "random_state": 0}  # fewer epochs do not reach the R² that is checked


@shows("scikit-learn", "LeanClassifier and LeanRegressor pass all estimator checks of scikit-learn.")
@parametrize_with_checks([LeanClassifier(**QUICK), LeanRegressor(**QUICK)])
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def moons() -> tuple[Any, Any]:
    return make_moons(200, noise=0.15, random_state=0)


@shows("scikit-learn", "A classifier gives probabilities, their standard deviations, and uncertainty in nats.")
def test_a_classifier_is_the_network_inside_on_standardised_inputs() -> None:
    x, y = moons()
    model = LeanClassifier(random_state=0, epochs=40).fit(x, y)
    assert model.score(x, y) > 0.85
    mean, std = model.predict_proba(x, return_std=True)
    standardised = torch.tensor((x - x.mean(0)) / x.std(0))
    want = lb.predict(model.bnn_, standardised, by="moments", keep_samples=True)
    np.testing.assert_allclose(mean, want.mean)
    np.testing.assert_allclose(std, want.samples.std(0, correction=0), atol=1e-12)
    parts = model.predict_uncertainty(x)
    np.testing.assert_allclose(parts["total"], parts["aleatoric"] + parts["epistemic"], atol=1e-6)
    wrong = model.predict(x) != y
    assert parts["total"][wrong].mean() > parts["total"][~wrong].mean()


@shows("scikit-learn", "A regressor gives means and standard deviations in the units of the targets.")
def test_a_regressor_learns_the_noise_and_is_less_sure_far_away() -> None:
    """For a linear network and many points, mean and noise are those of least squares."""
    numbers = np.random.default_rng(0)
    x = numbers.uniform(-1, 1, (300, 1))
    y = 1000 + 300 * x[:, 0] + 60 * numbers.normal(size=300)
    model = LeanRegressor(network=nn.Linear, epochs=60, random_state=0).fit(x, y)
    slope, intercept = np.polyfit(x[:, 0], y, 1)
    grid = np.array([[-0.5], [0.0], [0.5], [30.0]])
    mean, std = model.predict(grid, return_std=True)
    np.testing.assert_allclose(mean[:3], slope * grid[:3, 0] + intercept, atol=15)
    residual = np.std(y - slope * x[:, 0] - intercept)
    assert abs(model.noise_ / residual - 1) < 0.15
    assert abs(std[1] / residual - 1) < 0.2
    assert std[3] > std[1]
    parts = model.predict_uncertainty(grid)
    np.testing.assert_allclose(np.sqrt(parts["total"]), std)


def test_several_outputs_and_draws() -> None:
    x = np.linspace(-1, 1, 64)[:, None]
    y = np.concatenate([x, -100 * x], 1)
    model = LeanRegressor(predict_by="sample", samples=8, epochs=40, random_state=0).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert model.score(x, y) > 0.9
    np.testing.assert_array_equal(model.predict(x), mean)


@shows("pandas", "Data frames go into the estimators for scikit-learn, with the names of their columns.")
def test_data_frames_pipelines_and_searches() -> None:
    x, y = moons()
    frame, labels = pd.DataFrame(x, columns=["left", "right"]), pd.Series(np.where(y > 0, "yes", "no"))
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), LeanClassifier(**QUICK))
    search = GridSearchCV(pipeline, {"leanclassifier__hidden": [(4,), (8,)]}, cv=2).fit(frame, labels)
    assert set(search.predict(frame)) <= {"yes", "no"}
    assert list(search.best_estimator_[-1].feature_names_in_) == ["left", "right"]


def test_a_seed_repeats_and_the_random_state_of_torch_stays() -> None:
    x, y = moons()
    state = torch.get_rng_state()
    first, second = (LeanClassifier(**QUICK).fit(x, y).predict_proba(x) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(state, torch.get_rng_state())
    third = LeanClassifier(**{**QUICK, "random_state": 1}).fit(x, y).predict_proba(x)
    assert np.abs(first - third).max() > 0


def test_a_fitted_estimator_can_be_pickled() -> None:
    x, y = moons()
    model = LeanClassifier(**QUICK).fit(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))  # noqa: S301


def test_the_network_inside_is_a_bayesian_with_random_weights() -> None:
    x, y = moons()
    model = LeanClassifier(network=lambda inputs, outputs: nn.Linear(inputs, outputs), epochs=3).fit(x, y)
    assert isinstance(model.bnn_, lb.Bayesian)
    assert model.bnn_.summary().random == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"epochs": True}, "epochs must be a whole number of at least 1, got True"),
        ({"samples": 2.5}, "samples must be a whole number"),
        ({"hidden": 50}, r"hidden must hold the sizes of the hidden layers, such as \(50, 50\), got 50"),
        ({"hidden": (8, -3)}, r"hidden must hold .* got \(8, -3\)"),
        ({"hidden": "50"}, r"hidden must hold .* got '50'"),
        ({"network": nn.Linear(2, 2)}, "network must be a function .* got a Linear"),
        ({"network": "mlp"}, "network must be a function .* got a str"),
        (
            {"network": lambda inputs, outputs: nn.Linear(inputs + 1, outputs)},
            r"does not take inputs of shape \(2, 2\)",
        ),
        ({"network": lambda inputs, outputs: nn.Linear(inputs, 7)}, r"outputs have the shape \(2, 7\) for 2 inputs"),
        ({"network": lambda inputs, outputs: "net"}, "it returned a str"),
        ({"predict_by": "moment"}, "did you mean 'moments'"),
        ({"optimizer": "adan"}, "adan"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        LeanClassifier(**options).fit(*moons())


@shows("scikit-learn", "The code of the page on scikit-learn runs.")
def test_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/integrations/sklearn.md", tmp_path)
