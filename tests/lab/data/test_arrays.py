import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, InputError, LeanBayesError
from leanbayes.lab.data import Preparation, read
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
    for part, some in (("train", slice(0, 24)), (validation, slice(24, 30)), ("test", slice(30, 40))):
        arrays |= {x.format(part): IMAGES[some], y.format(part): LABELS[some, None].astype(np.uint8)}
    source = read(saved(tmp_path / "a.npz", **arrays))
    assert [len(data) for data in (source.train, source.validation, source.test)] == [24, 6, 10]
    assert [int(y) for _, y in source.test] == LABELS[30:].tolist()
    raw = IMAGES[:24] / 255
    np.testing.assert_allclose(source.preparation.mean, [raw.mean()], rtol=1e-6)
    np.testing.assert_allclose(source.preparation.std, [raw.std()], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(source.test[3][0][0]), (IMAGES[33] / 255 - raw.mean()) / raw.std(), atol=1e-5)


@pytest.mark.parametrize("names", [("x", "y"), ("X", "Y"), ("images", "labels")])
def test_one_set_is_divided_by_class(tmp_path: Path, names: tuple[str, str]) -> None:
    marked = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None], (40, 8, 8))
    path = saved(tmp_path / "a.npz", **dict(zip(names, (marked, LABELS), strict=True)))
    source = read(path)
    sets = [source.train, source.validation, source.test]
    assert [len(data) for data in sets] == [28, 6, 6]
    found = [int(data.inputs[place].float().mean()) for data in sets for place in range(len(data))]
    assert sorted(found) == list(range(40))
    assert [int(y) for data in sets for _, y in data] == [place % 4 for place in found]
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
    found = predict(task.model(), inputs, likelihood=task.likelihood, samples=1, keep_samples=True)
    back = plan.in_units(found)
    std, mean = (torch.tensor(numbers, dtype=torch.float64) for numbers in (plan.target_std, plan.target_mean))
    torch.testing.assert_close(back.mean, (found.mean * std + mean).float())
    torch.testing.assert_close(back.total, (found.total * std.square()).float())
    torch.testing.assert_close(back.samples[0], back.mean)
    chosen = y.reshape(40, -1)
    original = scaled.double() * std + mean
    assert all((np.abs(chosen - np.asarray(row)).max(1) < 1e-3).any() for row in original)


def test_large_offsets_keep_their_digits(tmp_path: Path) -> None:
    x = 1.7e9 + np.arange(40.0)[:, None]
    source = read(saved(tmp_path / "a.npz", x=x, y=LABELS))
    values = torch.cat([x for x, _ in source.train])
    assert len(values.unique()) == len(values)
    assert abs(values.std(correction=0) - 1) < 1e-4


def test_constant_inputs_become_zero(tmp_path: Path) -> None:
    source = read(saved(tmp_path / "a.npz", x=np.full((40, 2), 0.1), y=LABELS))
    assert source.preparation.std == (1.0, 1.0)
    assert torch.stack([x for x, _ in source.train]).abs().max() < 1e-9


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
        ({"x": np.zeros((40, 2, 2, 2, 2)), "y": LABELS}, "must be (N, features)"),
        ({"x": np.zeros((40, 2)), "y": np.arange(40)}, "too many for classes"),
        ({"x": np.float64(3), "y": np.float64(3)}, "save one y for each x"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    refused(message, saved(tmp_path / "a.npz", **arrays))


def test_kinds_that_do_not_suit(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    refused("must be 0 or 1", path, kind="labels")
    refused("like the images", path, kind="pixels")
    refused("size=8 is for a folder of images only", path, size=8)
    refused("ignore=3 is for masks only", path, ignore=3)
    assert read(path, kind="regression").preparation.kind == "regression"
    refused("one-hot rows", saved(tmp_path / "b.npz", x=IMAGES, y=np.ones((40, 3))), kind="classes")


def test_new_arrays_are_prepared_alike(tmp_path: Path) -> None:
    source = read(saved(tmp_path / "a.npz", x=IMAGES, y=LABELS))
    plan = Preparation.from_json(json.loads(json.dumps(source.preparation.to_json())))
    assert plan == source.preparation
    raw = np.asarray(source.test.inputs[:, 0])
    for arrays in ({"x": raw, "other": LABELS}, {"anything": raw}):
        found = list(plan.inputs(saved(tmp_path / "new.npz", **arrays)))
        assert [name for name, _ in found] == [str(place) for place in range(6)]
        assert all(torch.equal(x, source.test[place][0]) for place, (_, x) in enumerate(found))
    with pytest.raises(InputError, match="name the array of inputs x"):
        plan.inputs(saved(tmp_path / "new.npz", a=raw, b=raw))
    with pytest.raises(InputError, match=r"have shape \(6, 1, 8, 8\), but the model takes \(N, \*\(1, 9, 8\)\)"):
        plan.inputs(saved(tmp_path / "new.npz", x=raw[:, :8]))
    with pytest.raises(InputError, match="the model takes"):
        plan.inputs(saved(tmp_path / "new.npz", x=raw[:0]))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "x"},
        {"std": [0.0]},
        {"std": [1.0, 1.0]},
        {"mean": [float("nan")]},
        {"size": None},
        {"size": [10**6, 10**6]},
        {"size": [0, 8]},
        {"size": [9.5, 8]},
        {"size": [9, 8, 7]},
    ],
)
def test_a_preparation_is_checked_when_built(tmp_path: Path, change: dict[str, object]) -> None:
    fields = read(saved(tmp_path / "a.npz", x=IMAGES, y=LABELS)).preparation.to_json()
    with pytest.raises(InputError):
        Preparation.from_json({**fields, **change})


def test_a_foreign_preparation(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no preparation of LeanBayes"):
        Preparation.from_json({"kind": "classes", "colour": 3})
