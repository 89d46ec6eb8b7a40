from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import read
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian
from leanbayes.prediction import predict

RNG = np.random.default_rng(0)


IMAGES = RNG.integers(0, 256, (40, 9, 8), dtype=np.uint8)


LABELS = np.arange(40) % 4


def saved(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_classes_by_any_name(tmp_path: Path) -> None:
    texts = np.array(["no", "yes"])[LABELS % 2]
    assert read(saved(tmp_path / "t.npz", x=IMAGES, y=texts)).preparation.classes == ("no", "yes")
    assert read(saved(tmp_path / "i.npz", x=IMAGES, y=LABELS * 5 - 3)).preparation.classes == ("-3", "2", "7", "12")
    assert read(saved(tmp_path / "b.npz", x=IMAGES, y=LABELS > 1)).preparation.classes == ("False", "True")
    source = read(saved(tmp_path / "h.npz", x=IMAGES, y=np.eye(4)[LABELS]), kind="classes")
    assert source.preparation.classes == ("0", "1", "2", "3")
    assert isinstance(source.task().likelihood, Categorical)


def test_labels(tmp_path: Path) -> None:
    y = RNG.integers(0, 2, (40, 5))
    task = read(saved(tmp_path / "a.npz", x=IMAGES, y=y)).task()
    assert isinstance(task.likelihood, Bernoulli)
    assert len(task.classes) == 5
    x, y = (torch.stack(parts) for parts in zip(*task.test, strict=True))
    assert y.dtype == torch.float32
    assert torch.isfinite(task.likelihood.nll(task.model()(x), y))


def test_pixels(tmp_path: Path) -> None:
    y = (IMAGES > 127).astype(np.uint8) * 255
    source = read(saved(tmp_path / "a.npz", x=IMAGES, y=y))
    assert source.preparation.kind == "pixels"
    assert source.preparation.classes == ("background", "foreground")
    x, y = source.test[0]
    assert (
        (x[0] > source.preparation.standardise(torch.full((1, 1, 1), 127, dtype=torch.uint8)).item()) == (y == 1)
    ).all()
    assert source.task().model()(x[None]).shape == (1, 2, 9, 8)
    refused("must be integers of shape (N, *(9, 8))", saved(tmp_path / "b.npz", x=IMAGES, y=np.zeros((40, 8, 9), int)))


@pytest.mark.parametrize("columns", [1, 3])
def test_regression_is_standardised_by_training_and_can_be_undone(tmp_path: Path, columns: int) -> None:
    x = RNG.normal(size=(40, 6)) * 100 + 1e6
    y = (x @ RNG.normal(size=(6, columns))) * 7 + 50
    y = y[:, 0] if columns == 1 else y
    source = read(saved(tmp_path / "a.npz", x=x, y=y))
    plan = source.preparation
    assert plan.kind == "regression"
    assert plan.outputs == 2 * columns
    assert plan.features == ("x0", "x1", "x2", "x3", "x4", "x5")
    targets = torch.stack([y for _, y in source.train]).double()
    assert targets.shape == (28, columns)
    assert targets.mean(0).abs().max() < 1e-6
    assert (targets.std(0, correction=0) - 1).abs().max() < 1e-6
    task = source.task()
    assert isinstance(task.likelihood, Gaussian)
    inputs, scaled = (torch.stack(parts) for parts in zip(*source.test, strict=True))
    prediction = predict(task.model(), inputs, likelihood=task.likelihood, samples=1, keep_samples=True)
    back = plan.in_units(prediction)
    std, mean = (torch.tensor(numbers, dtype=torch.float64) for numbers in (plan.target_std, plan.target_mean))
    torch.testing.assert_close(back.mean, (prediction.mean * std + mean).float())
    torch.testing.assert_close(back.total, (prediction.total * std.square()).float())
    torch.testing.assert_close(back.samples[0], back.mean)
    chosen = y.reshape(40, -1)
    original = scaled.double() * std + mean
    assert all((np.abs(chosen - np.asarray(row)).max(1) < 1e-3).any() for row in original)
