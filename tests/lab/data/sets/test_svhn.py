from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from leanbayes.errors import FileError
from leanbayes.lab.data import data_dir, load_data
from leanbayes.lab.data.sets.svhn import svhn


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    return x, (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]


def save(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": x, "y": y})


@pytest.mark.parametrize("below", ["SVHN", "."])
def test_digits_and_their_ten_for_zero(tmp_path: Path, below: str) -> None:
    save(tmp_path / below / "train_32x32.mat", *digits(100, 0))
    x, y = digits(30, 1)
    save(tmp_path / below / "test_32x32.mat", x, y)
    source = svhn(tmp_path)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [85, 15, 30]
    assert source.preparation.classes == tuple("0123456789")
    assert [int(label) for _, label in source.test] == [int(label) % 10 for label in y[:, 0]]
    assert torch.equal(source.test.inputs[7], torch.from_numpy(x[..., 7].transpose(2, 0, 1).copy()))
    assert source.train.inputs.shape == (85, 3, 32, 32)


def test_the_test_file_alone_is_divided_only_when_asked(tmp_path: Path) -> None:
    save(tmp_path / "SVHN" / "test_32x32.mat", *digits(100, 1))
    with pytest.raises(FileError, match=r"train_32x32.mat.*ufldl.stanford.edu/housenumbers"):
        load_data("svhn", tmp_path)
    source = load_data("svhn-test", tmp_path, seed=1)
    parts = [{np.asarray(x).tobytes() for x in part.inputs} for part in (source.train, source.validation, source.test)]
    assert [len(part) for part in parts] == [70, 15, 15]
    assert len(set.union(*parts)) == 100


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"no MATLAB file at all, only text" * 9, "is damaged or no MATLAB file of version 5"),
        (b"", "is damaged or no MATLAB file of version 5"),
        ({"X": np.zeros((2, 2)), "y": np.zeros((2, 1))}, r"should hold X \(32, 32, 3, N\)"),
        ({"Z": np.zeros((2, 2))}, "damaged or no file of SVHN"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full((4, 1), 11, np.uint8)}, "digits 1 to 10"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.zeros((3, 1), np.uint8)}, r"and \(3, 1\)"),
    ],
)
def test_foreign_and_damaged_files(tmp_path: Path, content, complaint: str) -> None:
    path = tmp_path / "test_32x32.mat"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        savemat(path, content)
    with pytest.raises(FileError, match=rf"test_32x32.mat.*{complaint}"):
        svhn(tmp_path, only_test=True)


@pytest.mark.skipif(not (data_dir() / "SVHN" / "test_32x32.mat").is_file(), reason="SVHN is not here")
def test_the_real_test_file() -> None:
    source = load_data("svhn-test")
    assert source.train.inputs.shape[1:] == (3, 32, 32)
    counts = torch.as_tensor(source.train.targets).bincount(minlength=10)
    assert counts.argmax() == 1  # Benford: most house numbers have a 1
