import numpy as np
import pytest
import torch
from scipy import stats

from leanbayes.errors import InputError
from leanbayes.lab.data import cubic, load_data
from leanbayes.likelihood import Gaussian


def points(source, name: str) -> tuple[np.ndarray, np.ndarray]:
    part, plan = getattr(source, name), source.preparation
    y = part.targets[:, 0].double() * plan.target_std[0] + plan.target_mean[0]
    return np.asarray(part.inputs)[:, 0], np.asarray(y)


def test_noise_has_variance_nine_around_the_cube() -> None:
    x, y = points(load_data("cubic-30000"), "train")
    noise = y - x**3
    assert len(x) == 30_000
    assert abs(noise.mean()) < 4 * 3 / 30_000**0.5
    assert abs(noise.var() - 9) < 4 * 9 * (2 / 30_000) ** 0.5
    assert stats.kstest(noise / 3, "norm").pvalue > 1e-3
    assert stats.kstest(x, "uniform", (-4, 8)).pvalue > 1e-3


def test_the_test_points_reach_beyond_the_training_points() -> None:
    source = cubic(seed=1)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [20, 20, 10_000]
    assert max(abs(points(source, name)[0]).max() for name in ("train", "validation")) < 4
    x, _ = points(source, "test")
    assert stats.kstest(x, "uniform", (-6, 12)).pvalue > 1e-3


def test_seeds() -> None:
    assert np.array_equal(points(cubic(seed=1), "train"), points(cubic(seed=1), "train"))
    assert not np.array_equal(points(cubic(seed=1), "train"), points(cubic(seed=2), "train"))
    with pytest.raises(InputError, match="at least 2 points, got 1"):
        cubic(count=1)


def test_it_is_a_task() -> None:
    task = cubic().task()
    assert isinstance(task.likelihood, Gaussian)
    assert task.model()(torch.zeros(3, 1)).shape == (3, 2)
