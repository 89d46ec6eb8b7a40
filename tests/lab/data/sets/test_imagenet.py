from pathlib import Path

import pytest

from leanbayes.errors import FileError
from leanbayes.lab.data import load_data
from leanbayes.lab.data.sets.imagenet import imagenet
from tests.lab.data.makers import picture


def test_imagenet_tests_on_val_and_reads_when_asked(tmp_path: Path) -> None:
    for label, name in enumerate(("n01", "n02", "n03")):
        for index in range(10):
            picture(tmp_path / "ImageNet" / "train" / name / f"{name}_{index}.JPEG", 10 * label + index, (9, 7 + index))
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
