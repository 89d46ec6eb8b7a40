from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.errors import FileError
from leanbayes.lab.data import data_dir, from_raters, lidc, load_data
from leanbayes.lab.data.sets.lidc import main, write_lidc

N, RATERS, SIDE = 200, 3, 12


def rated() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """The first pixel of an image is its number, and only the rater's own row is marked."""
    images = torch.zeros(N, SIDE, SIDE, dtype=torch.uint8)
    images[:, 0, 0] = torch.arange(N)
    images[:, 5:] = 99
    masks = torch.zeros(N, RATERS, SIDE, SIDE, dtype=torch.uint8)
    masks[:, range(RATERS), range(RATERS)] = 1
    sizes = torch.randint(1, 9, (N,), generator=torch.Generator().manual_seed(0))
    patients = torch.arange(N).repeat_interleave(sizes)[:N]
    return images, masks, [f"p{patient}" for patient in patients]


def numbers(part) -> list[int]:
    return [int(image[0, 0, 0]) for image in part.inputs]


def make(**options):
    images, masks, patients = rated()
    return from_raters(Path("some.npz"), images, masks, patients, ("background", "nodule"), **options)


@pytest.mark.parametrize("pack", [True, False])
def test_lidc_file_packed_or_not(tmp_path: Path, pack: bool) -> None:
    images, masks, patients = rated()  # 12 pixels are no whole number of bytes
    kept = np.packbits(np.asarray(masks), axis=3) if pack else np.asarray(masks)
    (tmp_path / "LIDC").mkdir()
    np.savez(tmp_path / "LIDC" / "lidc_128x128_4raters.npz", images=images, masks=kept, patient=np.array(patients))
    source, same = lidc(tmp_path, fold=2), make(fold=2)
    assert numbers(source.test) == numbers(same.test)
    assert torch.equal(source.test.targets.by_rater(), same.test.targets.by_rater())
    assert source.preparation.classes == ("background", "nodule")


def lidc_file(folder: Path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    images, masks, patients = rated()
    (folder / "LIDC").mkdir()
    kept = np.packbits(np.asarray(masks), axis=3)
    np.savez(folder / "LIDC" / "lidc_128x128_4raters.npz", images=images, masks=kept, patient=np.array(patients))
    return images, masks, patients


def test_lidc_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The slice that the raters marked most, of each patient; masks of all raters, also of those who marked nothing."""
    images, masks, patients = lidc_file(tmp_path)
    folders = write_lidc(tmp_path, tmp_path / "files", slices=2, side=10)
    assert [folder.name for folder in folders] == ["images", "rater1", "rater2", "rater3"]
    names = sorted(file.name for file in folders[0].iterdir())
    for folder in folders:
        assert sorted(file.name for file in folder.iterdir()) == names
    assert len(names) == sum(min(2, patients.count(patient)) for patient in set(patients))
    for name in names:
        row = int(name.removesuffix(".png").split("_")[1])
        assert name.startswith(f"P{patients[row]}_")
        assert (np.asarray(Image.open(folders[0] / name)) == np.asarray(images[row, 1:11, 1:11])).all()
        for rater, folder in enumerate(folders[1:]):
            assert (np.asarray(Image.open(folder / name)) == 255 * np.asarray(masks[row, rater, 1:11, 1:11])).all()
    assert main([str(tmp_path)]) == 2
    assert main([str(tmp_path / "nothing"), str(tmp_path / "x")]) == 2
    assert "cancerimagingarchive" in capsys.readouterr().err


def test_lidc_that_is_foreign_or_missing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"LIDC/lidc_128x128_4raters.npz.*cancerimagingarchive"):
        load_data("lidc", tmp_path)
    file = tmp_path / "lidc_128x128_4raters.npz"
    np.savez(file, images=np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(FileError, match="should hold images, masks and patient, got"):
        lidc(tmp_path)
    np.savez(file, images=np.zeros((4, 8, 8)), masks=np.zeros((4, 2, 8, 8), np.uint8), patient=np.arange(4))
    with pytest.raises(FileError, match="should hold bytes"):
        lidc(tmp_path)


@pytest.mark.skipif(not (data_dir() / "LIDC" / "lidc_128x128_4raters.npz").is_file(), reason="LIDC is not here")
def test_real_nodules_have_four_raters() -> None:
    source = load_data("lidc")
    assert len(source.train) + len(source.validation) + len(source.test) == 3849
    raters = source.validation.targets.by_rater()
    assert raters.shape[::2] == (4, 128)
    assert raters.flatten(2).any(2).any(0).all()
