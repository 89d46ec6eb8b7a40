from pathlib import Path

import numpy as np

from leanbayes.lab.data import load_data
from tests.lab.data.makers import mask, picture


def isic(top: Path, parts: tuple[str, ...] = ("Training", "Validation", "Test_v2")) -> Path:
    for part, count in zip(parts, (20, 4, 5), strict=False):
        base = top / "ISIC2017" / f"ISIC-2017_{part}"
        for index in range(count):
            picture(Path(f"{base}_Data") / f"ISIC_{index:07}.jpg", index, size=(20, 24))
            labels = np.zeros((20, 24))
            labels[4 : 6 + index % 5] = 255
            mask(Path(f"{base}_Part1_GroundTruth") / f"ISIC_{index:07}_segmentation.png", labels)
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
        for index in range(count):
            base = tmp_path / "ISIC2018"
            picture(base / f"ISIC2018_Task1-2_{part}_Input" / f"ISIC_{index:07}.jpg", index)
            labels = np.zeros((10, 12))
            labels[4 : 6 + index % 3] = 255
            mask(base / f"ISIC2018_Task1_{part}_GroundTruth" / f"ISIC_{index:07}_segmentation.png", labels)
    source = load_data("isic2018", tmp_path, size=8)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [20, 4, 5]
