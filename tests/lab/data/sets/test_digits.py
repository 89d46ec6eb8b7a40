import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import data_dir, digits, mnist
from leanbayes.lab.data.arrays import read_idx
from leanbayes.likelihood import Categorical


def pixels(data) -> list[bytes]:
    return [np.asarray(x).tobytes() for x, _ in data]


def test_digits_are_three_disjoint_sets_of_all_known_digits() -> None:
    task = digits(0)
    sizes = [len(data) for data in (task.train, task.validation, task.test)]
    assert sizes == [300, 150, 993]
    images = pixels(task.train) + pixels(task.validation) + pixels(task.test)
    assert len(set(images)) >= 1443 - 5  # scikit-learn's set itself may repeat an image
    assert task.classes == tuple("01234567")
    assert isinstance(task.likelihood, Categorical)


def test_digits_are_stratified() -> None:
    task = digits(3)
    counts = [
        torch.stack([y for _, y in data]).bincount(minlength=8) for data in (task.train, task.validation, task.test)
    ]
    whole = sum(counts)
    for count in counts:
        assert ((count - whole * count.sum() / whole.sum()).abs() <= 2).all()


def test_digits_repeat_by_seed() -> None:
    assert pixels(digits(1).train) == pixels(digits(1).train)
    assert pixels(digits(1).train) != pixels(digits(2).train)


def test_shifted_digits_are_turned_or_unseen() -> None:
    task = digits(0)
    x, y = task.test[5]
    turned, same = task.shifted["rotated"][5]
    assert torch.equal(torch.rot90(turned, -1, (1, 2)), x)
    assert same == y
    assert {int(y) for _, y in task.shifted["unseen"]} == {8, 9}
    assert len(task.shifted["rotated"]) == len(task.test)


def test_the_model_of_digits_is_new_each_time_and_fits() -> None:
    task = digits(0)
    x = torch.stack([task.train[index][0] for index in range(4)])
    first, second = task.model(), task.model()
    assert first(x).shape == (4, 8)
    assert not torch.equal(first[0].weight, second[0].weight)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 20)):
        images = random.integers(0, 256, (count, 9, 8), dtype=np.uint8)
        labels = (np.arange(count) % 5).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


def test_mnist_files_plain_and_gzipped(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = mnist(tmp_path)
    assert (len(source.train), len(source.validation), len(source.test)) == (51, 9, 20)
    assert source.preparation.size == (9, 8)
    assert source.preparation.classes == tuple("01234")
    assert [int(y) for _, y in source.test] == [index % 5 for index in range(20)]
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    assert torch.equal(mnist().train[7][0], source.train[7][0])
    assert source.task().model()(torch.zeros(1, 1, 9, 8)).shape == (1, 5)


@pytest.mark.parametrize("damage", [lambda b: b[:40], lambda b: b"", lambda b: gzip.compress(gzip.decompress(b)[:-3])])
def test_damaged_idx_file_is_named(raw: Path, tmp_path: Path, damage) -> None:
    file = raw / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(FileError, match=r"train-images-idx3-ubyte.gz.*copy it again"):
        read_idx(file)


def test_missing_mnist_says_where_it_was_looked_for(tmp_path: Path, raw: Path) -> None:
    with pytest.raises(FileError, match=r"FashionMNIST.raw.*LEANBAYES_DATA"):
        mnist(tmp_path, "FashionMNIST")
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileError, match="t10k-labels"):
        mnist(tmp_path)


def test_mnist_with_too_few_labels(tmp_path: Path, raw: Path) -> None:
    (raw / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, np.uint8)))
    with pytest.raises(InputError, match=r"test images of shape \(20, 9, 8\) but labels of shape \(3,\)"):
        mnist(tmp_path)


def test_data_directory_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEANBAYES_DATA", raising=False)
    assert data_dir() == Path("data")
    monkeypatch.setenv("LEANBAYES_DATA", "/somewhere")
    assert data_dir() == Path("/somewhere")
