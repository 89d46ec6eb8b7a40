from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from leanbayes.errors import InputError
from leanbayes.lab.data import Task, cubic, digits, length
from leanbayes.lab.data.source import from_arrays
from leanbayes.prediction import Prediction, predict

RNG = np.random.default_rng(0)


def regression(outputs: int) -> tuple[Task, np.ndarray]:
    """A task of 40 training rows, and its test targets in their unit."""
    x = RNG.normal(size=(60, 4))
    y = 1e4 + 300 * x @ RNG.normal(size=(4, outputs))
    sets = {"train": (x[:40], y[:40]), "validation": (x[40:50], y[40:50]), "test": (x[50:], y[50:])}
    return from_arrays(Path("a.npz"), sets, "regression").task(), y


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictions_and_targets_come_back_in_the_unit_of_the_target(outputs: int, dtype: torch.dtype) -> None:
    task, y = regression(outputs)
    mean, std = y[:40].mean(0), y[:40].std(0)
    targets = torch.stack([target for _, target in task.test]).to(dtype)
    back = task.targets_in_units(targets)
    assert back.dtype == dtype
    np.testing.assert_allclose(np.asarray(back), y[50:], rtol=1e-6)
    values = {name: torch.rand(10, outputs, dtype=dtype) for name in ("mean", "total", "aleatoric", "epistemic")}
    samples = torch.rand(5, 10, outputs, dtype=dtype)
    prediction = Prediction(**values, standard_error=torch.zeros(10), draws=torch.full((10,), 5), samples=samples)
    moved = task.in_units(prediction)
    np.testing.assert_allclose(np.asarray(moved.mean), np.asarray(values["mean"]) * std + mean, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(moved.samples), np.asarray(prediction.samples) * std + mean, rtol=1e-6)
    for name in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(np.asarray(getattr(moved, name)), np.asarray(values[name]) * std**2, rtol=1e-5)


def test_an_error_in_units_is_the_standardised_error_times_the_deviation() -> None:
    task = cubic().task()
    x, y = (torch.stack(parts) for parts in zip(*(task.test[row] for row in range(50)), strict=True))
    prediction = predict(task.model(), x, likelihood=task.likelihood, samples=1)
    error = (prediction.mean - y).square().mean().sqrt()
    in_units = (task.in_units(prediction).mean - task.targets_in_units(y)).square().mean().sqrt()
    assert task.preparation is not None
    torch.testing.assert_close(in_units, error * task.preparation.target_std[0])


def test_classes_have_no_unit() -> None:
    task = digits()
    x, y = (torch.stack(parts) for parts in zip(*(task.test[row] for row in range(5)), strict=True))
    prediction = predict(task.model(), x, likelihood=task.likelihood, samples=1)
    sets = {"train": (np.arange(40.0)[:, None], np.arange(40) % 2)}
    for other in (task, from_arrays(Path("a.npz"), sets, "classes").task()):
        assert other.in_units(prediction) is prediction
        assert other.targets_in_units(y) is y


def test_an_empty_set_is_refused() -> None:
    empty = TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0))
    assert length(empty) == 0
    with pytest.raises(InputError, match="the test set of task 'digits' is empty"):
        replace(digits(), test=empty)
