from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError
from leanbayes.lab.data import data_dir, from_raters, lidc, load_data

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
