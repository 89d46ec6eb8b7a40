import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from leanbayes.errors import FileError, InputError, LeanBayesError
from leanbayes.evaluation import evaluate
from leanbayes.lab.data import Raters, read
from leanbayes.likelihood import Categorical
from tests.lab.data.makers import CLASSES, class_tree, mask, mask_tree, picture


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


def rater_tree(top: Path) -> list[Path]:
    """images/, and two raters beside it: the second one marks a column more, and has not seen every third image."""
    mask_tree(top, 18)
    (top / "masks").rename(top / "r1")
    for index in range(18):
        if index % 3:
            labels = np.zeros((10, 12))
            labels[:, : 4 + index % 4] = 255
            mask(top / "r2" / f"i{index}.png", labels)
    return [top / "r1", top / "r2"]


def test_a_folder_for_each_rater(tmp_path: Path) -> None:
    raters = rater_tree(tmp_path)
    source = read(tmp_path / "images", raters=raters)
    assert source.preparation.classes == ("background", "foreground")
    assert (len(source.train), len(source.validation), len(source.test)) == (12, 3, 3)
    for part in (source.train, source.validation, source.test):
        assert isinstance(part.targets, Raters)
        assert part.cases is not None
        for row, name in enumerate(part.cases.names):
            index = int(name[1:-4])
            masks = part.targets.of(row)
            assert len(masks) == (2 if index % 3 else 1)
            widths = masks.sum(2)[:, 0].tolist()
            assert widths == [3 + index % 4, 4 + index % 4][: len(masks)]
            assert int(part[row][1][0].sum()) in widths
    judged = [int(source.test[row][1].sum()) for row in range(3)]
    assert judged == [int(source.test[row][1].sum()) for row in range(3)]
    assert (
        0 <= evaluate(source.task().model(), DataLoader(source.test, 3), likelihood=Categorical()).metrics["dice"] <= 1
    )


def test_all_raters_are_examples_of_their_own(tmp_path: Path) -> None:
    source = read(tmp_path / "images", raters=rater_tree(tmp_path), rating="all")
    names = read(tmp_path / "images", raters=[tmp_path / "r1", tmp_path / "r2"]).train.cases.names
    seen = sum(1 + (int(name[1:-4]) % 3 > 0) for name in names)
    assert len(source.train) == len([source.train[row] for row in range(len(source.train))]) == seen > 12
    assert len(source.test) == 3
    source.task()


def test_raters_that_cannot_be_used(tmp_path: Path) -> None:
    raters = rater_tree(tmp_path)
    images = tmp_path / "images"
    refused("there is no folder", images, raters=[tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    refused("has no case", images, raters=[raters[0], tmp_path / "empty"])
    refused("has no mask of any rater", images, raters=[raters[1]])
    refused("masks= and raters= are both given", images, raters=raters, masks=raters[0])
    refused("is for several raters", images, masks=raters[0], rating="all")
    refused("unknown rating", images, raters=raters, rating="both")
    mask(raters[1] / "other.png", np.zeros((10, 12)))
    refused("has no image", images, raters=raters)


def test_masks_that_are_no_masks(tmp_path: Path) -> None:
    top = mask_tree(tmp_path / "a", 12)
    (top / "masks" / "i3.png").rename(top / "masks" / "i3.jpg")
    refused("is a JPEG", top)
    (top / "masks" / "i3.jpg").rename(top / "masks" / "i3.png")
    mask(top / "masks" / "i3.png", np.zeros((10, 12)))
    assert "1 of 12 masks are empty" in read(top).remarks[0]
    many = mask_tree(tmp_path / "b", 12)
    for index in range(12):
        mask(many / "masks" / f"i{index}.png", np.arange(120).reshape(10, 12) * 2 + index % 2)
    refused("grey levels", many)
