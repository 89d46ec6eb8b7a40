from pathlib import Path

import numpy as np
import pytest

from leanbayes.errors import FileError
from leanbayes.lab.data import load_data
from leanbayes.lab.data.sets.cityscapes import cityscapes
from tests.lab.data.makers import mask, picture

CITIES = {"train": ("aachen", "bochum", "bremen", "ulm", "jena", "zurich"), "val": ("frankfurt",)}


def streets(top: Path) -> Path:
    for split, cities in CITIES.items():
        for city in cities:
            for index in range(2):
                stem = f"{city}_{index:06}_000019"
                picture(top / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png", index, size=(8, 16))
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
