from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import Raters, read

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


@pytest.mark.parametrize("names", [("x", "y"), ("X", "Y"), ("images", "labels")])
def test_one_set_is_divided_by_class(tmp_path: Path, names: tuple[str, str]) -> None:
    marked = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None], (40, 8, 8))
    path = saved(tmp_path / "a.npz", **dict(zip(names, (marked, LABELS), strict=True)))
    source = read(path)
    sets = [source.train, source.validation, source.test]
    assert [len(data) for data in sets] == [28, 6, 6]
    marks = [int(data.inputs[index].float().mean()) for data in sets for index in range(len(data))]
    assert sorted(marks) == list(range(40))
    assert [int(y) for data in sets for _, y in data] == [index % 4 for index in marks]
    for data, share in zip(sets, (0.7, 0.15, 0.15), strict=True):
        counts = torch.stack([y for _, y in data]).bincount(minlength=4)
        assert (counts - 10 * share).abs().max() <= 1
    assert torch.equal(read(path).test.inputs, source.test.inputs)
    assert not torch.equal(read(path, seed=1).test.inputs, source.test.inputs)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((40, 9, 8), 1),
        ((40, 9, 8, 3), 3),
        ((40, 3, 9, 8), 3),
        ((40, 9, 8, 1), 1),
        ((40, 5, 9, 8), 5),
        ((40, 9, 8, 5), 5),
    ],
)
def test_channels_are_found_first_or_last(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    x = RNG.normal(size=shape)
    source = read(saved(tmp_path / "a.npz", x=x, y=LABELS))
    assert source.train[0][0].shape == (channels, 9, 8)
    assert source.task().model()(torch.zeros(2, channels, 9, 8)).shape == (2, 4)


def test_kinds_that_do_not_suit(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    refused("must be 0 or 1", path, kind="labels")
    refused("like the images", path, kind="pixels")
    refused("size=8 is for a folder of images only", path, size=8)
    refused("ignore=3 is for masks only", path, ignore=3)
    assert read(path, kind="regression").preparation.kind == "regression"
    refused("one-hot rows", saved(tmp_path / "b.npz", x=IMAGES, y=np.ones((40, 3))), kind="classes")


def test_several_raters_and_missing_ones(tmp_path: Path) -> None:
    y = np.zeros((40, 3, 9, 8), np.int16)
    y[:, :, :4] = 1
    y[5:, 2] = -1
    patients = np.arange(40) // 4
    source = read(saved(tmp_path / "a.npz", x=IMAGES, y=y, patient=patients), rating="all")
    assert source.preparation.classes == ("0", "1")
    assert source.train.cases is not None
    rated = sum(3 if int(name) < 5 else 2 for name in source.train.cases.names)
    assert len(source.train) == rated
    assert isinstance(source.test.targets, Raters)
    assert len(source.test.targets.of(0)) == (3 if int(source.test.cases.names[0]) < 5 else 2)
    assert len(set(source.train.cases.patients) & set(source.test.cases.patients)) == 0
    y[:, 2] = -1
    refused("rater 2 of", saved(tmp_path / "b.npz", x=IMAGES, y=y))
    y[7] = -1
    refused("row 7 of", saved(tmp_path / "b.npz", x=IMAGES, y=y))
    refused("(N, raters, *(9, 8))", saved(tmp_path / "c.npz", x=IMAGES, y=y[..., 1:]))


def test_volumes(tmp_path: Path) -> None:
    x = RNG.normal(size=(20, 6, 7, 8)).astype(np.float32)
    source = read(saved(tmp_path / "a.npz", x=x, y=(x > 0).astype(np.uint8)))
    assert source.preparation.size == (6, 7, 8)
    assert source.train[0][0].shape == (1, 6, 7, 8)
    assert source.train[0][1].shape == (6, 7, 8)
    two = read(saved(tmp_path / "b.npz", x=np.stack([x, x], 1), y=np.stack([x > 0, x > 1], 1).astype(np.uint8)))
    assert two.train[0][0].shape == (2, 6, 7, 8)
    assert isinstance(two.train.targets, Raters)
    assert read(saved(tmp_path / "c.npz", x=x[:, None], y=np.arange(20) % 2)).usual_model == "encoder3d"
