from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.errors import InputError
from leanbayes.lab.data.lidc_files import main, write_lidc
from tests.lab.data.sets.test_lidc import rated


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
    first, others = (write_lidc(tmp_path, tmp_path / f"from{skip}", patients=2, skip=skip, side=8) for skip in (0, 2))
    assert len(list(first[0].iterdir())) == 2
    assert not {file.name for file in first[0].iterdir()} & {file.name for file in others[0].iterdir()}
    with pytest.raises(InputError, match="at least 1"):
        write_lidc(tmp_path, tmp_path / "none", patients=0, side=8)
    with pytest.raises(InputError, match=f"less than the {len(set(patients))} patients"):
        write_lidc(tmp_path, tmp_path / "none", skip=len(set(patients)), side=8)
    assert main([str(tmp_path / "nothing"), str(tmp_path / "x")]) == 2
    assert "cancerimagingarchive" in capsys.readouterr().err


def test_lidc_as_one_file_of_arrays(tmp_path: Path) -> None:
    """The file that ``--data lidc.npz`` reads holds the same pixels as the folders."""
    lidc_file(tmp_path)
    assert main([str(tmp_path), str(tmp_path / "lidc.npz"), "--slices", "2", "--side", "10"]) == 0
    folders = write_lidc(tmp_path, tmp_path / "files", slices=2, side=10)
    with np.load(tmp_path / "lidc.npz") as arrays:
        assert arrays["y"].shape == (len(arrays["x"]), len(folders) - 1, 10, 10)
        rows = zip(arrays["patient"], arrays["x"], arrays["y"], strict=True)
        planes = {(who, x.tobytes(), y.tobytes()) for who, x, y in rows}
    for file in folders[0].iterdir():
        masks = np.stack([np.asarray(Image.open(folder / file.name)) // 255 for folder in folders[1:]])
        who = file.name[1:].split("_")[0]
        assert (who, np.asarray(Image.open(file)).tobytes(), masks.tobytes()) in planes
