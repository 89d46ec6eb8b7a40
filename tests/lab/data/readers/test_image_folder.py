import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.errors import FileError, InputError, LeanBayesError
from leanbayes.lab.data import read
from tests.lab.data.makers import CLASSES, class_tree, mask_tree, picture


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_statistics_are_those_of_the_training_images_alone(tmp_path: Path) -> None:
    class_tree(tmp_path / "train", (6, 6))
    class_tree(tmp_path / "val", (3, 3))
    for index, name in enumerate(CLASSES[:2]):
        Image.new("RGB", (12, 10), "white").save(tmp_path / "val" / name / "white.png")
        picture(tmp_path / "test" / name / "a.png", index)
    source = read(tmp_path)
    pixels = np.stack([np.asarray(Image.open(path)) for path in (tmp_path / "train").rglob("*.png")]) / 255
    np.testing.assert_allclose(source.preparation.mean, pixels.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(source.preparation.std, pixels.std((0, 1, 2)), rtol=1e-6)
    x = torch.stack([x for x, _ in source.train]).double()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)
    assert x.shape == (12, 3, 10, 12)


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


def test_options_that_do_not_suit_a_folder(tmp_path: Path) -> None:
    top = class_tree(tmp_path, (10, 10))
    refused("target=y is for a .csv file only", top, target="y")
    refused("ignore=3 is for masks only", top, ignore=3)
    refused("has no 'regression'", top, kind="regression")
    refused("unknown kind 'colour'", top, kind="colour")
    refused("size must be a positive number", top, size=0)
    refused("no folders images and masks", top, kind="pixels")


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


def test_statistics_are_those_of_training(tmp_path: Path) -> None:
    source = read(mask_tree(tmp_path))
    pixels = np.stack([np.asarray(Image.open(path)) for path in source.train.inputs.paths]) / 255
    np.testing.assert_allclose(source.preparation.mean, [pixels.mean()], rtol=1e-6)
    np.testing.assert_allclose(source.preparation.std, [pixels.std()], rtol=1e-6)
