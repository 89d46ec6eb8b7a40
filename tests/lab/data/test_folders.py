import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.errors import FileError, InputError, LeanBayesError
from leanbayes.lab.data import Preparation, images, read
from leanbayes.likelihood import Categorical
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
    for place in range(10):
        picture(tmp_path / "train" / f"{place}.png", place)
        picture(tmp_path / "tram" / f"{place}.png", place)
    assert read(tmp_path).preparation.classes == ("train", "tram")


def test_statistics_are_those_of_the_training_images_alone(tmp_path: Path) -> None:
    class_tree(tmp_path / "train", (6, 6))
    class_tree(tmp_path / "val", (3, 3))
    for place, name in enumerate(CLASSES[:2]):
        Image.new("RGB", (12, 10), "white").save(tmp_path / "val" / name / "white.png")
        picture(tmp_path / "test" / name / "a.png", place)
    source = read(tmp_path)
    pixels = np.stack([np.asarray(Image.open(path)) for path in (tmp_path / "train").rglob("*.png")]) / 255
    np.testing.assert_allclose(source.preparation.mean, pixels.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(source.preparation.std, pixels.std((0, 1, 2)), rtol=1e-6)
    x = torch.stack([x for x, _ in source.train]).double()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)
    assert x.shape == (12, 3, 10, 12)


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


def test_grey_stays_one_channel_and_one_colour_image_makes_three(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10), mode="L")
    source = read(top)
    assert source.train[0][0].shape == (1, 10, 12)
    picture(top / "cat" / "0.png", mode="RGBA")
    assert read(top).train[0][0].shape == (3, 10, 12)


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10))
    odd = picture(top / "dog" / "odd.png", size=(7, 9))
    with pytest.raises(InputError) as caught:
        read(top)
    assert "odd.png" in str(caught.value) or "10x12" in str(caught.value)
    assert "give a size to bring all to" in str(caught.value)
    assert read(top, size=8).train[0][0].shape == (3, 8, 8)
    assert read(top, size=(16, 9)).train[0][0].shape == (3, 16, 9)
    odd.unlink()
    assert not read(top).preparation.resize


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_image_is_named(tmp_path: Path, damage: str) -> None:
    top = class_tree(tmp_path, (10, 10), size=(40, 40))
    bad = top / "dog" / "7.png"
    bad.write_bytes({"cut": bad.read_bytes()[:800], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(FileError) as caught:
        read(top)
    assert str(caught.value).startswith(f"cannot read image {bad}: ")
    assert str(caught.value).endswith("; remove it or copy it again")
    assert "\n" not in str(caught.value)


def test_a_cut_jpeg_is_named(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10), size=(40, 40))
    bad = picture(top / "dog" / "photo.jpg", size=(40, 40))
    bad.write_bytes(bad.read_bytes()[:-400])
    refused(f"cannot read image {bad}", top)


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


def test_options_that_do_not_suit_a_folder(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10))
    refused("target=y is for a .csv file only", top, target="y")
    refused("ignore=3 is for masks only", top, ignore=3)
    refused("has no 'regression'", top, kind="regression")
    refused("unknown kind 'colour'", top, kind="colour")
    refused("size must be a positive number", top, size=0)
    refused("no folders images and masks", top, kind="pixels")


def test_task_of_class_folders(tmp_path: Path) -> None:
    source = read(class_tree(tmp_path, (10, 10, 10)))
    state = torch.random.get_rng_state()
    task = source.task("small_cnn")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert isinstance(task.likelihood, Categorical)
    assert task.classes == CLASSES
    x, y = next(iter(torch.utils.data.DataLoader(task.train, batch_size=5)))
    assert task.model()(x).shape == (5, 3)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64


def test_a_model_that_does_not_fit_the_data_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = read(class_tree(tmp_path / "pets", (10, 10, 10)))
    (tmp_path / "own_misfit.py").write_text(
        "from torch import nn\n"
        "def five(in_features): return nn.Sequential(nn.Flatten(), nn.Linear(in_features, 5))\n"
        "def grey(): return nn.Conv2d(1, 3, 3)\n"
        "def chatty():\n    m = nn.Identity(); m.forward = lambda x: [x]; return m\n"
    )
    monkeypatch.chdir(tmp_path)
    for name, message in (
        ("five", r"returns \(2, 5\) for inputs \(2, 3, 10, 12\); these data need \(2, 3\)"),
        ("grey", r"fails on inputs of shape \(2, 3, 10, 12\)"),
        ("chatty", "the model returned a list"),
    ):
        with pytest.raises(InputError, match=message):
            source.task(f"own_misfit:{name}")


def test_preparation_survives_json_and_prepares_new_images_alike(tmp_path: Path) -> None:
    top = class_tree(tmp_path / "pets", (10, 10))
    source = read(top, size=9)
    again = Preparation.from_json(json.loads(json.dumps(source.preparation.to_json())))
    assert again == source.preparation
    for place, file in enumerate(files(source.test)):
        ((name, x),) = again.inputs(file)
        assert name == file.name
        assert torch.equal(x, source.test[place][0])
    found = dict(again.inputs(top))
    assert len(found) == 20
    assert torch.equal(found["cat/3.png"], next(again.inputs(top / "cat" / "3.png"))[1])


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


def test_sets_too_large_for_memory_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = class_tree(tmp_path, (10, 10))
    kept = read(top)
    monkeypatch.setattr(images, "_MEMORY", 2000)
    lazy = read(top)
    assert lazy.train.inputs.cache[0] is None
    assert kept.train.inputs.cache[0] is not None
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(kept.train, lazy.train, strict=True))


def test_progress_is_told_of_every_image(tmp_path: Path) -> None:
    seen: list[str] = []

    def track(items, what):
        for item in items:
            seen.append(what)
            yield item

    read(class_tree(tmp_path, (10, 10)), track=track)
    assert Counter(seen) == {"looking at images": 20, "reading images": 20}


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10))
    (top / "cat" / "1.png").chmod(0)
    refused("1.png", top)
