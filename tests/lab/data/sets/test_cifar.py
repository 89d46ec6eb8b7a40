import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError
from leanbayes.lab.data import data_dir, load_data
from leanbayes.lab.data.sets.cifar import cifar10

FILES = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]


def records(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).integers(0, 256, (count, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(count) % 10
    return rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for index, name in enumerate(FILES):
        records(20, index).tofile(tmp_path / "cifar-10-batches-bin" / name)
    return tmp_path


def test_records_become_images_and_named_classes(folder: Path) -> None:
    source = cifar10(folder)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [85, 15, 20]
    truth = records(20, 5)
    assert torch.equal(source.test.inputs[13], torch.from_numpy(truth[13, 1:].reshape(3, 32, 32)))
    assert [int(y) for _, y in source.test] == truth[:, 0].tolist()
    assert source.preparation.classes[3] == "cat"
    assert source.task().classes[9] == "truck"


def test_every_image_is_in_one_set_and_its_own_class(folder: Path) -> None:
    source = cifar10(folder, seed=3)
    truth = {row[1:].tobytes(): row[0] for index in range(5) for row in records(20, index)}
    classes = {}
    for part in (source.train, source.validation):
        for x, y in zip(part.inputs, part.targets, strict=True):
            classes[np.asarray(x).tobytes()] = int(y)
    assert classes == truth
    assert not torch.equal(cifar10(folder, seed=4).validation.inputs, source.validation.inputs)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"\x0a" + b[1:]])
def test_damaged_batch_is_named(folder: Path, damage) -> None:
    file = folder / "cifar-10-batches-bin" / "data_batch_4.bin"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(FileError, match=r"data_batch_4.bin is damaged"):
        cifar10(folder)


def test_missing_batch_names_the_source(folder: Path) -> None:
    (folder / "cifar-10-batches-bin" / "data_batch_2.bin").unlink()
    with pytest.raises(FileError, match=r"data_batch_2.bin.*cs.toronto.edu/~kriz/cifar.html.*download"):
        cifar10(folder)


def test_the_pickled_layout_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({b"data": [1]}))
    with pytest.raises(FileError, match=r"no cifar-10-batches-bin.*binary version"):
        load_data("cifar10", tmp_path)


@pytest.mark.skipif(not (data_dir() / "cifar-10-batches-bin").is_dir(), reason="CIFAR-10 is not here")
def test_real_cifar_has_its_known_statistics() -> None:
    source = load_data("cifar10")
    assert [len(part) for part in (source.train, source.validation, source.test)] == [42_500, 7_500, 10_000]
    assert source.preparation.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=2e-3)
    assert torch.equal(torch.as_tensor(source.test.targets).bincount(), torch.full((10,), 1000))
