import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, LeanBayesError
from leanbayes.lab.data import read

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


@pytest.mark.parametrize(
    "names",
    [
        ("x_{}", "y_{}", "val"),
        ("X_{}", "Y_{}", "valid"),
        ("{}_images", "{}_labels", "val"),
        ("x_{}", "y_{}", "validation"),
    ],
)
def test_sets_are_found_by_name(tmp_path: Path, names: tuple[str, str, str]) -> None:
    x, y, validation = names
    arrays = {}
    for part, rows in (("train", slice(0, 24)), (validation, slice(24, 30)), ("test", slice(30, 40))):
        arrays |= {x.format(part): IMAGES[rows], y.format(part): LABELS[rows, None].astype(np.uint8)}
    source = read(saved(tmp_path / "a.npz", **arrays))
    assert [len(data) for data in (source.train, source.validation, source.test)] == [24, 6, 10]
    assert [int(y) for _, y in source.test] == LABELS[30:].tolist()
    raw = IMAGES[:24] / 255
    np.testing.assert_allclose(source.preparation.mean, [raw.mean()], rtol=1e-6)
    np.testing.assert_allclose(source.preparation.std, [raw.std()], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(source.test[3][0][0]), (IMAGES[33] / 255 - raw.mean()) / raw.std(), atol=1e-5)


def test_16_bit_arrays(tmp_path: Path) -> None:
    deep = IMAGES.astype(np.uint16) * 257
    a = read(saved(tmp_path / "a.npz", x=deep, y=LABELS))
    b = read(saved(tmp_path / "b.npz", x=IMAGES, y=LABELS))
    torch.testing.assert_close(a.train[0][0], b.train[0][0])


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=np.array([{"a": 1}] * 40, dtype=object))
    refused("array 'y' of", tmp_path / "a.npz")
    refused("holds pickled objects, which are never loaded", tmp_path / "a.npz")


def test_a_pickle_in_disguise_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "a.npz").write_bytes(pickle.dumps(Bomb()))
    refused("a.npz", tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "flipped"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=IMAGES, y=LABELS)
    data = path.read_bytes()
    broken = {"cut": data[:200], "empty": b"", "text": b"x,y\n1,2\n", "flipped": data[:300] + bytes(99) + data[399:]}
    path.write_bytes(broken[damage])
    with pytest.raises(FileError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_zip_of_other_things(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(LeanBayesError, match=r"a\.npz"):
        read(tmp_path / "a.npz")


def test_a_single_array_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IMAGES)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    refused("holds one array without a name", tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES, "y": LABELS[:-1]}, "has x of shape (40, 9, 8) but y of shape (39,)"),
        ({"x": IMAGES}, "has 'x' but no 'y'"),
        ({"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES}, "has 'x_test' but no 'y_test'"),
        ({"a": IMAGES, "b": LABELS}, "holds ['a', 'b']; name its arrays x and y"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:, :8], "y_test": LABELS},
            "(8, 8) for test, but (9, 8)",
        ),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS + 1},
            "the class 4, which is unseen",
        ),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, "x of"),
        ({"x": IMAGES, "y": LABELS * 0}, "one class only ([0])"),
        ({"x": np.where(IMAGES > 250, np.nan, 1.0), "y": LABELS}, "has NaN or infinite values"),
        ({"x": IMAGES, "y": np.where(LABELS == 3, np.inf, 0.5)}, "have NaN or infinite values"),
        ({"x": np.array(["a"] * 40), "y": LABELS}, "must hold numbers"),
        ({"x": np.zeros((40, 2, 2, 2, 2, 2)), "y": LABELS}, "must be (N, features)"),
        ({"x": np.zeros((40, 2)), "y": np.arange(40)}, "too many for classes"),
        ({"x": np.float64(3), "y": np.float64(3)}, "save one y for each x"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    refused(message, saved(tmp_path / "a.npz", **arrays))
