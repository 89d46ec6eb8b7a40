from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import data_dir, load_data
from leanbayes.lab.data.sets.medmnist import _CLASSES, SETS, medmnist
from leanbayes.likelihood import Bernoulli, Categorical

SIZES = {"train": 40, "val": 10, "test": 20}


def save(top: Path, name: str, labels: int = 1, shape: tuple[int, ...] = (28, 28), **changes) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in SIZES.items():
        arrays[f"{part}_images"] = random.integers(0, 256, (count, *shape), dtype=np.uint8)
        y = np.arange(count)[:, None] % 2 if labels == 1 else random.integers(0, 2, (count, labels))
        arrays[f"{part}_labels"] = y.astype(np.uint8)
    arrays = {key: value for key, value in (arrays | changes).items() if value is not None}
    (top / "MedMNIST").mkdir(exist_ok=True)
    np.savez(top / "MedMNIST" / f"{name}.npz", **arrays)
    return arrays


def test_breast_keeps_the_published_split(tmp_path: Path) -> None:
    arrays = save(tmp_path, "breastmnist")
    source = load_data("breastmnist", tmp_path, seed=5)
    for part, key in ((source.train, "train"), (source.validation, "val"), (source.test, "test")):
        assert torch.equal(part.inputs, torch.from_numpy(arrays[f"{key}_images"])[:, None])
        assert torch.equal(part.targets, torch.from_numpy(arrays[f"{key}_labels"][:, 0]).long())
    assert source.preparation.classes == ("malignant", "normal, benign")
    assert isinstance(source.task().likelihood, Categorical)


def test_chest_has_fourteen_labels(tmp_path: Path) -> None:
    arrays = save(tmp_path, "chestmnist_224", labels=14, shape=(30, 30))
    source = load_data("chestmnist_224", tmp_path)
    assert torch.equal(source.test.targets, torch.from_numpy(arrays["test_labels"]).float())
    assert source.preparation.classes[-1] == "hernia"
    task = source.task()
    assert isinstance(task.likelihood, Bernoulli)
    assert task.model()(source.train[0][0][None]).shape == (1, 14)


def test_colours_come_first(tmp_path: Path) -> None:
    arrays = save(tmp_path, "pathmnist", shape=(28, 28, 3))
    source = medmnist(tmp_path, "pathmnist")
    assert torch.equal(source.train.inputs, torch.from_numpy(arrays["train_images"]).permute(0, 3, 1, 2))


def test_a_set_that_has_no_name_here_keeps_its_numbers(tmp_path: Path) -> None:
    save(tmp_path, "mymnist")
    assert medmnist(tmp_path, "mymnist").preparation.classes == ("0", "1")


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"val_images": None, "val_labels": None}, InputError, "train, val and test"),
        ({"val_labels": None}, InputError, "no 'val_labels'"),
        ({"train_labels": np.arange(40)[:, None] % 3}, InputError, "classes 0 to 1, got 0, 1, 2"),
        ({"train_images": np.zeros((40, 28, 28, 28), np.uint8)}, InputError, "shape|volumes"),
        ({"train_labels": np.array([{}] * 40)}, FileError, "pickled objects"),
        ({"test_labels": np.zeros((3, 1), np.uint8)}, InputError, "one y for each x"),
    ],
)
def test_foreign_files(tmp_path: Path, changes, error, complaint: str) -> None:
    save(tmp_path, "breastmnist", **changes)
    with pytest.raises(error, match=complaint):
        medmnist(tmp_path)


def test_volumes_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "organmnist3d", shape=(6, 6, 6))
    with pytest.raises(InputError, match=r"holds volumes \(6, 6, 6\)"):
        medmnist(tmp_path, "organmnist3d")


def test_missing_file_names_the_source(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"MedMNIST/chestmnist.npz.*zenodo.org/records/10519652"):
        load_data("chestmnist", tmp_path)


def test_every_set_has_classes_and_an_address() -> None:
    assert {data_set.name.partition("_")[0] for data_set in SETS} == set(_CLASSES)
    for data_set in SETS:
        (remote,) = data_set.origin.remotes
        assert f"/files/{data_set.name}.npz" in remote.url
        assert len(bytes.fromhex(remote.md5)) == 16


@pytest.mark.skipif(not (data_dir() / "MedMNIST" / "breastmnist.npz").is_file(), reason="BreastMNIST is not here")
def test_real_breast_images() -> None:
    source = load_data("breastmnist")
    assert [len(part) for part in (source.train, source.validation, source.test)] == [546, 78, 156]
    assert torch.as_tensor(source.test.targets).bincount().tolist() == [42, 114]
