import json
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import Preparation, read
from tests.lab.data.makers import class_tree, csv_file, mask_tree, picture


def files(data) -> list[Path]:
    return data.inputs.paths


def test_preparation_survives_json_and_prepares_new_images_alike(tmp_path: Path) -> None:
    top = class_tree(tmp_path / "pets", (10, 10))
    source = read(top, size=9)
    again = Preparation.from_json(json.loads(json.dumps(source.preparation.to_json())))
    assert again == source.preparation
    for index, file in enumerate(files(source.test)):
        ((name, x),) = again.inputs(file)
        assert name == file.name
        assert torch.equal(x, source.test[index][0])
    inputs = dict(again.inputs(top))
    assert len(inputs) == 20
    assert torch.equal(inputs["cat/3.png"], next(again.inputs(top / "cat" / "3.png"))[1])


def test_new_images_that_do_not_suit(tmp_path: Path) -> None:
    plan = read(class_tree(tmp_path / "pets", (10, 10))).preparation
    other = picture(tmp_path / "new" / "a.png", size=(5, 5))
    with pytest.raises(InputError, match="is 5x5, but the model takes 10x12"):
        list(plan.inputs(other))
    other.write_bytes(b"")
    with pytest.raises(FileError, match=r"cannot read image .*a.png"):
        list(plan.inputs(tmp_path / "new"))
    other.unlink()
    with pytest.raises(InputError, match="has no images"):
        plan.inputs(tmp_path / "new")
    with pytest.raises(FileError, match="there is no file"):
        plan.inputs(tmp_path / "nowhere")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="the model takes images"):
        plan.inputs(tmp_path / "a.csv")


RNG = np.random.default_rng(0)


IMAGES = RNG.integers(0, 256, (40, 9, 8), dtype=np.uint8)


LABELS = np.arange(40) % 4


def saved(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


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


def test_new_arrays_are_prepared_alike(tmp_path: Path) -> None:
    source = read(saved(tmp_path / "a.npz", x=IMAGES, y=LABELS))
    plan = Preparation.from_json(json.loads(json.dumps(source.preparation.to_json())))
    assert plan == source.preparation
    raw = np.asarray(source.test.inputs[:, 0])
    for arrays in ({"x": raw, "other": LABELS}, {"anything": raw}):
        inputs = list(plan.inputs(saved(tmp_path / "new.npz", **arrays)))
        assert [name for name, _ in inputs] == [str(index) for index in range(6)]
        assert all(torch.equal(x, source.test[index][0]) for index, (_, x) in enumerate(inputs))
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
        {"size": [9, 8, 7, 6]},
    ],
)
def test_a_preparation_is_checked_when_built(tmp_path: Path, change: dict[str, object]) -> None:
    fields = read(saved(tmp_path / "a.npz", x=IMAGES, y=LABELS)).preparation.to_json()
    with pytest.raises(InputError):
        Preparation.from_json({**fields, **change})


def test_a_foreign_preparation(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no preparation of LeanBayes"):
        Preparation.from_json({"kind": "classes", "colour": 3})


def test_preparation_of_masks_survives_json(tmp_path: Path) -> None:
    source = read(mask_tree(tmp_path))
    again = Preparation.from_json(json.loads(json.dumps(source.preparation.to_json())))
    assert again == source.preparation
    inputs = dict(again.inputs(tmp_path / "images"))
    assert torch.equal(inputs[source.test.inputs.paths[0].name], source.test[0][0])


def rows(target: list[object], separator: str = ",") -> list[str]:
    return [separator.join([f"{index}", f"{index * index / 7}", str(value)]) for index, value in enumerate(target)]


def test_new_rows_are_prepared_alike_whatever_the_order_of_columns(tmp_path: Path) -> None:
    source = read(csv_file(tmp_path / "a.csv", "a,b,y", rows([index % 2 for index in range(60)])), target="y")
    plan = Preparation.from_json(json.loads(json.dumps(source.preparation.to_json())))
    assert plan == source.preparation
    raw = source.test.inputs.tolist()
    new = csv_file(tmp_path / "new.csv", "b,note,a", [f"{b!r},hello,{a!r}" for a, b in raw])
    inputs = list(plan.inputs(new))
    assert [name for name, _ in inputs] == [str(index) for index in range(len(raw))]
    assert all(torch.equal(x, source.test[index][0]) for index, (_, x) in enumerate(inputs))
    np.savez(tmp_path / "new.npz", x=np.array(raw))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(plan.inputs(tmp_path / "new.npz"), inputs, strict=True))
    with pytest.raises(InputError, match="has no column 'b'"):
        plan.inputs(csv_file(tmp_path / "new.csv", "a,c", ["1,2"]))
    with pytest.raises(InputError, match="line 2, column 'b' is missing"):
        plan.inputs(csv_file(tmp_path / "new.csv", "a,b", ["1,"]))
    with pytest.raises(InputError, match=r"takes 2 features; give a .csv or an .npz"):
        plan.inputs(tmp_path)
