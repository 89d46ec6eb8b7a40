"""New scans and pictures: read when they are needed, refused if they do not fit, and brought back to their size."""

from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.new_cases import NewCase, NewCases
from leanbayes.prediction import Prediction
from tests.lab.data.makers import picture
from tests.lab.data.scan_makers import dicom, nifti, rotated

PLAN = Preparation("pixels", (10.0,), (2.0,), ("a", "b"), size=(8, 8, 8), window=(8, 8, 8), spacing=(3.0, 0.7, 1.3))


def constant(size: tuple[int, ...], draws: int = 3) -> Prediction:
    mean = torch.stack([torch.full(size, 0.25), torch.full(size, 0.75)])[None]
    total = torch.full((1, *size), 0.5)
    samples = mean[None].expand(draws, *mean.shape)
    return Prediction(mean, total, total, total * 0, torch.zeros(1), torch.full((1,), draws), samples)


def test_scans_are_standardised_and_named_by_their_path(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 50, (5, 6, 7)).astype(np.int16)
    nifti(tmp_path / "a" / "x.nii.gz", values, rotated())
    dicom(tmp_path / "s", values, spacing=(3.0, 0.7, 1.3))
    cases = NewCases(PLAN, tmp_path)
    assert cases.names == ["a/x.nii.gz", "s"]
    assert cases[0].x.shape == (1, 7, 5, 6)
    assert float(cases[0].x.mean()) == pytest.approx((values.mean() - 10) / 2, rel=1e-5)
    assert NewCases(PLAN, tmp_path / "s").names == ["s"]
    assert NewCases(PLAN, tmp_path / "a" / "x.nii.gz").names == ["x.nii.gz"]


def test_another_spacing_is_refused_or_resampled(tmp_path: Path) -> None:
    path = nifti(tmp_path / "x.nii.gz", np.zeros((5, 6, 8), np.int16), rotated((0.7, 1.3, 1.5)))
    with pytest.raises(InputError, match=r"has the spacing 1\.5 x 0\.7 x 1\.3 mm, but the model was trained on 3 x"):
        NewCases(PLAN, path)[0]
    plan = Preparation(**{**PLAN.__dict__, "resample": True})
    case = NewCases(plan, path)[0]
    assert case.x.shape == (1, 4, 5, 6)
    own = case.restored(constant((4, 5, 6)), 0)
    assert own.mean.shape == (1, 2, 8, 5, 6)
    assert own.total.shape == (1, 8, 5, 6)
    assert own.samples is not None
    assert own.samples.shape == (3, 1, 2, 8, 5, 6)
    torch.testing.assert_close(own.mean[0, 1], torch.full((8, 5, 6), 0.75))


def test_a_single_slice_keeps_its_axis(tmp_path: Path) -> None:
    plan = Preparation("pixels", (0.0,), (1.0,), ("a", "b"), size=(6, 7), spacing=(0.5, 0.8))
    case = NewCases(plan, dicom(tmp_path / "s", np.zeros((6, 7, 1), int)))[0]
    assert (case.x.shape, case.size) == ((1, 6, 7), (6, 7, 1))
    assert case.restored(constant((6, 7)), 0).mean.shape == (1, 2, 6, 7, 1)
    with pytest.raises(InputError, match="single slices"):
        NewCases(plan, nifti(tmp_path / "x.nii.gz", np.zeros((6, 7, 3), np.int16)))[0]


def test_what_is_no_scan(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file or folder"):
        NewCases(PLAN, tmp_path / "none")
    with pytest.raises(InputError, match="the model takes scans"):
        NewCases(PLAN, picture(tmp_path / "a.png"))
    whole = Preparation("pixels", (0.0,), (1.0,), ("a", "b"), size=(8, 8, 8), spacing=(1.0, 1.0, 1.0))
    with pytest.raises(InputError, match=r"has 4x4x4 voxels, but the model takes 8x8x8; train it with window="):
        NewCases(whole, nifti(tmp_path / "x.nii.gz", np.zeros((4, 4, 4), np.int16)))[0]


def test_pictures_know_their_own_size(tmp_path: Path) -> None:
    plan = Preparation("pixels", (0.5,), (1.0,), ("a", "b"), size=(4, 6), resize=True)
    picture(tmp_path / "p" / "a.png", size=(10, 12), mode="L")
    case = NewCases(plan, tmp_path / "p")[0]
    assert (case.x.shape, case.size) == ((1, 4, 6), (10, 12))
    assert case.restored(constant((4, 6)), 0).total.shape == (1, 10, 12)
    alone = NewCases(plan, tmp_path / "p" / "a.png")[0]
    assert (alone.name, alone.size) == ("a.png", (10, 12))
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4, 6), np.uint8))
    assert NewCases(plan, tmp_path / "a.npz")[2].size is None
    assert NewCase("0", torch.zeros(1)).restored(constant((4, 6)), 0).total.shape == (1, 4, 6)
