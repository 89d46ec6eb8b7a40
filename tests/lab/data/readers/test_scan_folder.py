"""Folders of scans: masks, raters, classes, windows, and what is refused before training."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import Raters, read
from tests.lab.data.scan_makers import ball_tree, dicom, nifti, rotated

RNG = np.random.default_rng(0)


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scans_with_masks_by_patient(tmp_path: Path) -> None:
    source = read(ball_tree(tmp_path, 12), groups=r"(p\d+)_")
    plan = source.preparation
    assert (plan.size, plan.classes, plan.kind) == ((10, 12, 14), ("background", "foreground"), "pixels")
    assert plan.spacing == pytest.approx((3.0, 0.7, 1.3))
    x, y = source.train[0]
    assert x.shape == (1, 10, 12, 14)
    assert float(x[0][y > 0].mean()) > float(x[0][y == 0].mean()) + 2
    assert len({*source.train.cases.patients} | {*source.test.cases.patients}) == len(
        {*source.train.cases.patients}
    ) + len({*source.test.cases.patients})


def test_windows_of_scans_that_differ_in_size(tmp_path: Path) -> None:
    top = ball_tree(tmp_path, 8, ((12, 14, 10), (9, 17, 20)))
    refused("give a window to train on", top)
    source = read(top, window=(16, 8, 8), patches=3)
    assert len(source.train) == 3 * 6
    assert source.preparation.window == (16, 8, 8)
    for row in range(len(source.train)):
        x, y = source.train[row]
        assert x.shape == (1, 16, 8, 8)
        assert y.shape == (16, 8, 8)
        assert set(y.unique().tolist()) <= {-100, 0, 1}
        assert (x[0][y == -100] == 0).all()
    first, second = (source.validation[1] for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert any(not torch.equal(source.train[0][0], source.train[0][0]) for _ in range(9))
    marked = sum(bool((source.train[row % 18][1] > 0).any()) for row in range(90))
    assert marked >= 45
    assert {source.test[row][0].shape[1:] for row in range(len(source.test))} <= {(10, 12, 14), (20, 9, 17)}
    refused("window must be 3 positive numbers", top, window=(8, 8))
    refused("patches=3 is the number of windows", ball_tree(tmp_path / "b"), patches=3)


def test_another_spacing(tmp_path: Path) -> None:
    top = ball_tree(tmp_path, 8)
    image = nibabel.load(top / "images" / "p1_3.nii.gz")
    finer = rotated((0.7, 1.3, 1.5))
    for folder in ("images", "masks"):
        values = np.asarray(nibabel.load(top / folder / "p1_3.nii.gz").dataobj)
        nifti(top / folder / "p1_3.nii.gz", values, finer)
    refused("spacing=", top)
    refused("3 x 0.7 x 1.3 mm", top)
    source = read(top, spacing=(3.0, 1.4, 1.3), window=(8, 4, 8))
    assert source.preparation.resample
    assert source.preparation.spacing == (3.0, 1.4, 1.3)
    sizes = {
        tuple(part.inputs[row].shape[1:])
        for part in (source.train, source.validation, source.test)
        for row in range(len(part.targets))
    }
    assert sizes == {(10, 6, 14), (5, 6, 14)}
    assert image.shape == (12, 14, 10)


def test_raters_of_scans(tmp_path: Path) -> None:
    top = ball_tree(tmp_path, 8)
    for file in sorted((top / "masks").iterdir())[:5]:
        nifti(top / "second" / file.name, np.asarray(nibabel.load(file).dataobj) * 0, rotated())
    source = read(top / "images", raters=[top / "masks", top / "second"], window=(8, 8, 8))
    assert isinstance(source.test.targets, Raters)
    assert sum(int(part.targets.present.sum()) for part in (source.train, source.validation, source.test)) == 13
    (top / "third").mkdir()
    refused("has no masks", top / "images", raters=[top / "masks", top / "third"])


def test_dicom_scans_with_nifti_masks_and_single_slices(tmp_path: Path) -> None:
    for index in range(7):
        values = RNG.integers(0, 900, (6, 7, 4))
        dicom(tmp_path / "images" / f"c{index}", values)
        affine = np.diag([-0.5, -0.8, 2.0, 1.0])
        affine[:3, 3] = -10, 20, 5
        nifti(tmp_path / "masks" / f"c{index}.nii.gz", (values > 450).astype(np.uint8), affine)
        for name in "ab":
            dicom(tmp_path / "flat" / name / f"{index}", RNG.integers(0, 900, (6, 7, 1)))
    source = read(tmp_path / "images", masks=tmp_path / "masks")
    for x, y in source.train:
        assert float(x[0][y > 0].min()) > float(x[0][y == 0].max())
    flat = read(tmp_path / "flat", kind="classes")
    assert flat.preparation.classes == ("a", "b")
    assert (flat.preparation.size, flat.usual_model) == ((6, 7), "small_cnn")
    assert flat.preparation.spacing == pytest.approx((0.5, 0.8))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda values, affine: (values[:-1], affine), "11 x"),
        (lambda values, affine: (values, affine + np.outer([9, 0, 0, 0], [0, 0, 0, 1])), "lies elsewhere"),
        (lambda values, affine: (values * 0.5, affine), "no class indices"),
        (lambda values, affine: (RNG.integers(0, 256, values.shape).astype(np.uint8), affine), "grey levels"),
    ],
)  # fmt: skip
def test_masks_that_do_not_fit(tmp_path: Path, change, complaint: str) -> None:
    top = ball_tree(tmp_path, 8)
    for file in sorted((top / "masks").iterdir()):
        image = nibabel.load(file)
        nifti(file, *change(np.asarray(image.dataobj), image.affine))
    refused(complaint, top)


def test_masks_that_are_missing_or_empty(tmp_path: Path) -> None:
    top = ball_tree(tmp_path, 8)
    nifti(top / "masks" / "p0_1.nii.gz", np.zeros((12, 14, 10), np.uint8), rotated())
    assert "1 of 8 masks are empty" in read(top).remarks[0]
    (top / "masks" / "p0_1.nii.gz").unlink()
    refused("has no mask in", top)
    nifti(top / "masks" / "p0_1.nii.gz", np.zeros((12, 14, 10), np.uint8), rotated())
    nifti(top / "masks" / "more.nii.gz", np.zeros((12, 14, 10), np.uint8), rotated())
    refused("has no scan in", top)


def test_names_of_scans_match_as_they_look(tmp_path: Path) -> None:
    """The accent of a name may be a character of its own, or one with its letter."""
    top = ball_tree(tmp_path)
    for folder, accent in (("images", "\u00e4"), ("masks", "a\u0308")):
        for file in sorted((top / folder).iterdir()):
            file.rename(file.with_name(f"{accent}{file.name}"))
    table = tmp_path / "patients.csv"
    table.write_text("name,patient\n" + "".join(f"a\u0308p{k // 2}_{k}.nii.gz,{k // 2}\n" for k in range(8)))
    source = read(top / "images", masks=top / "masks", groups=str(table))
    assert len(set(source.test.cases.patients) | set(source.train.cases.patients)) > 1
