from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import images, read
from tests.lab.data.makers import mask, mask_tree, picture

RNG = np.random.default_rng(0)


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["", "_segmentation", "_mask"])
def test_pairs_are_matched_by_name(tmp_path: Path, ending: str) -> None:
    top = mask_tree(tmp_path, ending=ending)
    for source in (read(top), read(top / "images", masks=top / "masks")):
        assert [len(data) for data in (source.train, source.validation, source.test)] == [14, 3, 3]
        assert source.preparation.classes == ("background", "foreground")
        for x, y in source.train:
            assert y.shape == (10, 12)
            assert y.unique().tolist() == [0, 1]
            assert x[0][y == 1].min() > x[0][y == 0].max() - 1  # the bright part is the mask


def test_no_pair_is_in_two_sets_and_all_are_in_one(tmp_path: Path) -> None:
    source = read(mask_tree(tmp_path))
    pairs = [pair for data in (source.train, source.validation, source.test) for pair in data.targets.pairs]
    assert len(pairs) == len(set(pairs)) == 20
    assert all(image.stem == mask_file.stem for image, mask_file in pairs)
    assert [image for image, _ in source.test.targets.pairs] == source.test.inputs.paths
    assert read(tmp_path, seed=1).test.inputs.paths != source.test.inputs.paths


def test_class_indices_and_pixels_that_do_not_count(tmp_path: Path) -> None:
    for index in range(10):
        picture(tmp_path / "images" / f"{index}.png", index)
        labels = RNG.integers(0, 4, (10, 12))
        labels[0] = 255
        mask(tmp_path / "masks" / f"{index}.png", labels)
    refused("such as ignore=255", tmp_path)
    source = read(tmp_path, ignore=255)
    task = source.task("unet")
    assert task.classes == ("0", "1", "2", "3")
    assert task.likelihood.ignore_index == 255
    x, y = (torch.stack(parts) for parts in zip(*source.train, strict=True))
    assert y.unique().tolist() == [0, 1, 2, 3, 255]
    logits = task.model().eval()(x)
    assert logits.shape == (6, 4, 10, 12)
    counted = torch.nn.functional.cross_entropy(logits[:, :, 1:], y[:, 1:], reduction="sum")
    torch.testing.assert_close(task.likelihood.nll(logits, y), counted)


def test_yes_no_and_a_value_that_does_not_count(tmp_path: Path) -> None:
    top = mask_tree(tmp_path)
    for file in (top / "masks").iterdir():
        labels = np.array(Image.open(file))
        labels[0, 0] = 128
        mask(file, labels)
    source = read(top, ignore=128)
    assert source.preparation.classes == ("background", "foreground")
    assert source.train[0][1].unique().tolist() == [0, 1, 128]


def test_a_value_that_does_not_count_cannot_be_that_of_yes(tmp_path: Path) -> None:
    refused("masks hold 2 values from 0 to 255", mask_tree(tmp_path), ignore=1)


def test_palette_one_bit_and_grey_colour_masks(tmp_path: Path) -> None:
    top = mask_tree(tmp_path / "p", yes=1)
    for file in (top / "masks").iterdir():
        image = Image.open(file)
        image.putpalette([0, 0, 0, 250, 3, 90])
        image.save(file)
    assert read(top).train[0][1].unique().tolist() == [0, 1]
    for mode in ("1", "RGB", "LA", "I;16"):
        top = mask_tree(tmp_path / mode.replace(";", ""))
        for file in (top / "masks").iterdir():
            Image.open(file).convert(mode).save(file)
        source = read(top)
        assert source.preparation.classes == ("background", "foreground"), mode
        assert source.train[0][1].unique().tolist() == [0, 1], mode


def test_resized_masks_have_no_new_classes_and_stay_with_their_image(tmp_path: Path) -> None:
    source = read(mask_tree(tmp_path), size=(15, 24))
    for x, y in source.test:
        assert x.shape == (1, 15, 24)
        assert y.shape == (15, 24)
        assert set(y.unique().tolist()) == {0, 1}
        assert x[0][y == 1].mean() > x[0][y == 0].mean() + 0.5


def test_layout_of_camvid(tmp_path: Path) -> None:
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        for index in range(count):
            picture(tmp_path / part / f"{part}{index}.webp", index)
            mask(tmp_path / f"{part}annot" / f"{part}{index}.png", RNG.integers(0, 12, (10, 12)))
    source = read(tmp_path, ignore=11)
    assert [len(data) for data in (source.train, source.validation, source.test)] == [4, 2, 3]
    assert len(source.preparation.classes) == 11


def test_layout_of_isic(tmp_path: Path) -> None:
    for part, count in (("Training", 10), ("Validation", 2), ("Test_v2", 3)):
        for index in range(count):
            stem = f"ISIC_{part}{index}"
            picture(tmp_path / f"ISIC-2017_{part}_Data" / f"{stem}.jpg", index)
            picture(tmp_path / f"ISIC-2017_{part}_Data" / f"{stem}_superpixels.png", index)
            labels = RNG.integers(0, 2, (10, 12)) * 255
            mask(tmp_path / f"ISIC-2017_{part}_Part1_GroundTruth" / f"{stem}_segmentation.png", labels)
    source = read(tmp_path)
    assert [len(data) for data in (source.train, source.validation, source.test)] == [10, 2, 3]


@pytest.mark.parametrize("inside", [True, False])
def test_divided_images_and_masks(tmp_path: Path, inside: bool) -> None:
    for part, count in (("train", 10), ("val", 2)):
        tree = mask_tree(tmp_path / "tmp" / part, count)
        for what in ("images", "masks"):
            goal = tmp_path / "set" / (f"{part}/{what}" if inside else f"{what}/{part}")
            goal.parent.mkdir(parents=True, exist_ok=True)
            (tree / what).rename(goal)
    source = read(tmp_path / "set")
    assert [len(data) for data in (source.train, source.validation, source.test)] == [8, 2, 2]
    if not inside:
        same = read(tmp_path / "set" / "images", masks=tmp_path / "set" / "masks")
        assert same.train.inputs.paths == source.train.inputs.paths


def test_a_mask_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    bad = mask(mask_tree(tmp_path) / "masks" / "i4.png", np.zeros((12, 10)))
    refused(f"mask {bad} is 12x10, but its image {tmp_path / 'images' / 'i4.png'} is 10x12", tmp_path)
    refused(f"mask {bad} is 12x10", tmp_path, size=8)


def test_lonely_images_and_masks_are_named(tmp_path: Path) -> None:
    top = mask_tree(tmp_path)
    lonely = picture(top / "images" / "more.png", size=(10, 12), mode="L")
    refused(f"image {lonely} has no mask in {top / 'masks'}; its mask would be called more.png", top)
    lonely.unlink()
    lonely = mask(top / "masks" / "rest.png", np.zeros((10, 12)))
    refused(f"mask {lonely} has no image in {top / 'images'}", top)
    lonely.unlink()
    mask(top / "masks" / "i3_mask.png", np.zeros((10, 12)))
    refused("has two masks, i3.png and i3_mask.png", top)


def test_damaged_mask_is_named(tmp_path: Path) -> None:
    bad = mask_tree(tmp_path) / "masks" / "i4.png"
    bad.write_bytes(bad.read_bytes()[:50])
    refused(f"cannot read image {bad}", tmp_path)


def test_masks_that_hold_no_classes(tmp_path: Path) -> None:
    top = mask_tree(tmp_path / "colour")
    picture(top / "masks" / "i0.png")
    refused(f"mask {top / 'masks' / 'i0.png'} has colours", top)
    top = mask_tree(tmp_path / "grey", yes=128)
    refused("masks hold 2 values from 0 to 128", top)
    top = mask_tree(tmp_path / "none", yes=0)
    refused("one value only ([0])", top)


def test_a_class_unseen_in_the_training_masks_is_named(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        mask_tree(tmp_path / part, 4, yes=1)
    bad = mask(tmp_path / "val" / "masks" / "i2.png", np.full((10, 12), 2))
    refused(f"mask {bad} has the class 2, which is unseen in the training masks", tmp_path)


def test_folders_that_cannot_be_paired(tmp_path: Path) -> None:
    top = mask_tree(tmp_path / "t")
    refused("there is no folder of masks", top / "images", masks=tmp_path / "no")
    (tmp_path / "empty").mkdir()
    refused("has no images", tmp_path / "empty", masks=top / "masks")
    (top / "masks" / "train").mkdir()
    refused("divide both alike", top / "images", masks=top / "masks")
    refused("with masks: it has no 'classes'", top / "images", masks=top / "masks", kind="classes")
    (top / "masks" / "train").rmdir()
    (top / "images" / "i3.jpg").write_bytes((top / "images" / "i3.png").read_bytes())
    refused("have the same name", top)


def test_masks_too_large_for_memory_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = read(mask_tree(tmp_path))
    monkeypatch.setattr(images, "_MEMORY", 300)
    lazy = read(tmp_path)
    assert lazy.train.targets.cache[0] is None
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(kept.train, lazy.train, strict=True))


def test_names_match_as_they_look(tmp_path: Path) -> None:
    """On a Mac, the accent of a name may be a character of its own; in the images here it is not."""
    top = mask_tree(tmp_path / "set", 6)
    for file in sorted((top / "images").iterdir()):
        file.rename(file.with_name(f"\u00e4 {file.name}"))
    for file in sorted((top / "masks").iterdir()):
        file.rename(file.with_name(f"a\u0308 {file.name}"))
    source = read(top, groups="(\u00e4 .*)")
    assert sum(map(len, (source.train, source.validation, source.test))) == 6


def test_the_name_that_a_mask_would_have_has_its_folder(tmp_path: Path) -> None:
    top = mask_tree(tmp_path / "set", 6)
    lonely = picture(top / "images" / "left" / "more.png")
    refused(f"image {lonely} has no mask in {top / 'masks'}; its mask would be called left/more.png", top)
