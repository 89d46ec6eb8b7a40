from collections import Counter
from pathlib import Path

import pytest

from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import read
from tests.lab.data.makers import CLASSES, class_tree, picture


def files(data) -> list[Path]:
    return data.inputs.paths


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_class_folders_are_divided_by_class_without_overlap(tmp_path: Path) -> None:
    source = read(class_tree(tmp_path / "pets"))
    sets = [source.train, source.validation, source.test]
    assert [len(data) for data in sets] == [42, 9, 9]
    assert sorted(path for data in sets for path in files(data)) == sorted(tmp_path.rglob("*.png"))
    assert len({path for data in sets for path in files(data)}) == 60
    for data, each in zip(sets, (14, 3, 3), strict=True):
        assert Counter(int(y) for _, y in data) == {0: each, 1: each, 2: each}
        assert all(CLASSES[int(y)] == path.parent.name for path, (_, y) in zip(files(data), data, strict=True))
    assert source.name == "pets"
    assert source.preparation.classes == CLASSES


def test_division_repeats_by_seed(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10))
    assert files(read(top, seed=1).test) == files(read(top, seed=1).test)
    assert files(read(top, seed=1).test) != files(read(top, seed=2).test)


@pytest.mark.parametrize("validation", ["validation", "val", "Valid"])
def test_folders_that_are_divided_stay_so(tmp_path: Path, validation: str) -> None:
    for name, count in (("train", 4), (validation, 2), ("test", 3)):
        class_tree(tmp_path / name, (count, count))
    source = read(tmp_path)
    for data, name in ((source.train, "train"), (source.validation, validation), (source.test, "test")):
        assert {path.parent.parent.name for path in files(data)} == {name}


def test_a_missing_validation_set_comes_from_training(tmp_path: Path) -> None:
    class_tree(tmp_path / "train", (20, 20))
    class_tree(tmp_path / "test", (3, 3))
    source = read(tmp_path)
    assert (len(source.train), len(source.validation), len(source.test)) == (34, 6, 6)
    assert {path.parent.parent.name for path in files(source.validation)} == {"train"}


def test_train_may_be_a_class(tmp_path: Path) -> None:
    for index in range(10):
        picture(tmp_path / "train" / f"{index}.png", index)
        picture(tmp_path / "tram" / f"{index}.png", index)
    assert read(tmp_path).preparation.classes == ("train", "tram")


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10))
    for name in ("Thumbs.db", ".DS_Store", "._0.png", "notes.txt"):
        (top / "cat" / name).write_bytes(b"no image")
    (top / ".git").mkdir()
    (top / "readme.md").touch()
    picture(top / "cat" / "deeper" / "x.JPG")
    source = read(top)
    assert len(source.train) + len(source.validation) + len(source.test) == 21
    assert source.preparation.classes == ("cat", "dog")


def test_folders_that_cannot_be_learned_from(tmp_path: Path) -> None:
    refused("there is no file or folder", tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    refused("neither class folders nor images", tmp_path / "empty")
    picture(tmp_path / "loose" / "a.png")
    refused("images but no class folders", tmp_path / "loose")
    class_tree(tmp_path / "single", (10,))
    refused("has one class folder only (cat)", tmp_path / "single")
    class_tree(tmp_path / "few", (2, 2))
    refused("has too few examples (4)", tmp_path / "few")
    class_tree(tmp_path / "void", (10, 10))
    (tmp_path / "void" / "fish").mkdir()
    (tmp_path / "void" / "fish" / "Thumbs.db").touch()
    refused(f"class folder {tmp_path / 'void' / 'fish'} has no image", tmp_path / "void")
    (tmp_path / "a.txt").touch()
    refused("give one of: a .csv file, a folder of images, an .npz file", tmp_path / "a.txt")


@pytest.mark.parametrize("part", ["test", "val"])
def test_a_class_unseen_in_training_is_named(tmp_path: Path, part: str) -> None:
    for name in ("train", "val", "test"):
        class_tree(tmp_path / name, (3, 3))
    picture(tmp_path / part / "zebra" / "a.png")
    refused(f"class folder {tmp_path / part / 'zebra'} is unseen in training", tmp_path)


def test_two_folders_for_one_set(tmp_path: Path) -> None:
    for name in ("train", "val", "validation"):
        class_tree(tmp_path / name, (3, 3))
    refused("are both validation sets", tmp_path)
