"""``leanbayes predict`` from the shell: tables, maps, and models that do not fit."""

import csv
import hashlib
import json
import math
import re
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from PIL import Image

from leanbayes.lab.cli.saved import read_model
from leanbayes.lab.report.outlines import outline
from tests.lab.cli.shell import QUICK, complaint, picture, rows_of, run, shell
from tests.lab.data.scan_makers import ball_tree, dicom, patient_of


def reviewed_cases(page: Path) -> list[dict]:
    (text,) = re.findall(r'<script type="application/json" id="cases">(.*?)</script>', page.read_text(), re.S)
    return json.loads(text)


def test_a_folder_of_images_is_learnt_and_predicted(halves: Path) -> None:
    message = shell(
        "train", "--data", "halves", "--recipe", "partial:rate=0.05", "--out", "run", *QUICK, "--epochs", "20",
        folder=halves,
    )  # fmt: skip
    assert "Accuracy" in message
    scores = json.loads((halves / "run" / "scores.json").read_text())
    assert scores["metrics"]["accuracy"] > 0.8
    assert not (halves / "run" / "checkpoints").exists()
    for bright in ("left", "right"):
        picture(halves / "new" / f"{bright}.png", bright, 99)
    shell("predict", "run/model.lb", "new", "--out", "said", "--quiet", folder=halves)
    message = shell("predict", "run/model.lb", "new", "--out", "said", "--review", folder=halves, code=2)
    assert "--review shows segmentations, and this model predicts classes" in message
    rows = rows_of(halves / "said" / "predictions.csv")
    assert [(row["name"], row["predicted"]) for row in rows] == [("left.png", "left"), ("right.png", "right")]
    for row in rows:
        assert float(row["p(left)"]) + float(row["p(right)"]) == pytest.approx(1, abs=1e-4)
        assert float(row["probability"]) == max(float(row["p(left)"]), float(row["p(right)"]))
        assert 0 <= float(row["epistemic"]) <= float(row["total"]) <= math.log(2) + 1e-6
        assert float(row["aleatoric"]) + float(row["epistemic"]) == pytest.approx(float(row["total"]), abs=1e-4)
        assert row["draws"] == "32"


def test_images_with_masks_give_maps(
    squares: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(squares)
    run("train", "--data", "images", "--masks", "masks", "--recipe", "layers", "--out", "run", *QUICK, "--epochs", "12")
    assert json.loads((squares / "run" / "scores.json").read_text())["metrics"]["dice"] > 0.5
    capsys.readouterr()
    run("predict", "run/model.lb", "images", "--out", "said", "--json")
    result = json.loads(capsys.readouterr().out)
    assert result == {"predictions": "said/predictions.csv", "inputs": 16}
    row = rows_of(squares / "said" / "predictions.csv")[3]
    assert row["name"] == "03.png"
    maps = {
        kind: np.asarray(Image.open(squares / "said" / f"03_{kind}.png")) for kind in ("classes", "total", "epistemic")
    }
    assert all(pixels.shape == (16, 16) for pixels in maps.values())
    assert set(np.unique(maps["classes"])) <= {0, 1}
    assert float(row["share(foreground)"]) == pytest.approx(maps["classes"].mean(), abs=1e-5)
    assert float(row["total"]) == pytest.approx(maps["total"].mean() / 255 * math.log(2), abs=0.5 / 255)
    assert (maps["epistemic"].astype(int) <= maps["total"].astype(int) + 1).all()


def test_maps_of_images_that_differ_in_their_suffix_only(squares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maps of ``x.bmp`` used to overwrite those of ``x.png``."""
    monkeypatch.chdir(squares)
    run("train", "--data", "images", "--masks", "masks", "--recipe", "deterministic", "--out", "run", *QUICK)
    (squares / "new").mkdir()
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(squares / "new" / "x.png")
    Image.open(squares / "images" / "03.png").save(squares / "new" / "x.bmp")
    run("predict", "run/model.lb", "new", "--out", "said", "--quiet")
    assert len(list((squares / "said").glob("*_classes.png"))) == 2
    names = json.loads((squares / "said" / "predictions.json").read_text())["maps"]
    for row in rows_of(squares / "said" / "predictions.csv"):
        pixels = np.asarray(Image.open(squares / "said" / f"{names[row['name']]}_classes.png"))
        assert float(row["share(foreground)"]) == pytest.approx(pixels.mean(), abs=1e-5)


def test_maps_do_not_go_among_the_images(
    squares: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run took the maps of the first one for images."""
    monkeypatch.chdir(squares)
    run("train", "--data", "images", "--masks", "masks", "--recipe", "deterministic", "--out", "run", *QUICK)
    assert "lies in images" in complaint(capsys, "predict", "run/model.lb", "images", "--out", "images/maps")


def test_the_seed_repeats_a_prediction_and_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run gave other numbers, and no file said how they were made."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(90, 3))
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    run("train", "--data", "data.npz", "--recipe", "vi:init_scale=0.5", "--out", "run", *QUICK)
    texts = []
    for seed in ("7", "7", "8"):
        run("predict", "run/model.lb", "data.npz", "--seed", seed, "--out", "said", "--quiet")
        texts.append((tmp_path / "said" / "predictions.csv").read_bytes())
    assert texts[0] == texts[1] != texts[2]
    record = json.loads((tmp_path / "said" / "predictions.json").read_text())
    assert record["options"]["seed"] == 8
    assert record["command"] == "leanbayes predict run/model.lb data.npz --seed 8 --out said --quiet"
    assert record["model_sha256"] == hashlib.sha256((tmp_path / "run" / "model.lb").read_bytes()).hexdigest()
    assert record["predictions_sha256"] == hashlib.sha256(texts[2]).hexdigest()
    assert record["machine"]["torch"] == torch.__version__
    assert record["leanbayes"]


def test_arrays_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(120, 3))
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    np.savez(tmp_path / "new.npz", x=np.array([[3.0, 0, 0], [-3.0, 0, 0]]))
    run("train", "--data", "data.npz", "--recipe", "vi", "--out", "a", *QUICK, "--epochs", "30")
    run("predict", "a/model.lb", "new.npz", "--out", "a", "--samples", "auto", "--quiet")
    assert [row["predicted"] for row in rows_of(tmp_path / "a" / "predictions.csv")] == ["1", "0"]

    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["dose", "age", "outcome"])
        writer.writerows([a, b, 100 + 30 * a + generator.normal()] for a, b, _ in x)
    (tmp_path / "new.csv").write_text("age,dose\n0,1.5\n0,-1.5\n")
    run(
        "train", "--data", "table.csv", "--target", "outcome", "--recipe", "deterministic", "--out", "b", *QUICK,
        "--epochs", "60",
    )  # fmt: skip
    run("predict", "b/model.lb", "new.csv", "--out", "b", "--quiet")
    rows = rows_of(tmp_path / "b" / "predictions.csv")
    assert [float(row["mean"]) for row in rows] == [pytest.approx(145, abs=12), pytest.approx(55, abs=12)]
    assert all(0 < float(row["deviation"]) < 30 for row in rows)


def test_a_saved_model_refuses_what_it_was_not_trained_for(
    halves: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(halves)
    run("train", "--data", "halves", "--recipe", "deterministic", "--out", "run", *QUICK)
    picture(halves / "new" / "big.png", "left", 0, size=30)
    assert "big.png" in complaint(capsys, "predict", "run/model.lb", "new")
    (halves / "new" / "big.png").write_bytes(b"no image")
    assert "big.png" in complaint(capsys, "predict", "run/model.lb", "new")
    model = halves / "run" / "model.lb"
    model.write_bytes(model.read_bytes()[:-100])
    assert "cut short" in complaint(capsys, "predict", "run/model.lb", "new")


def test_maps_of_resized_images_have_the_size_of_the_images(squares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maps had the size that the model sees, so nobody could lay them over the images."""
    monkeypatch.chdir(squares)
    run("train", "--data", "images", "--masks", "masks", "--size", "8", "--recipe", "layers", "--out", "run", *QUICK)
    run("predict", "run/model.lb", "images", "--out", "said", "--samples", "3", "--quiet")
    row = rows_of(squares / "said" / "predictions.csv")[3]
    classes, total = (np.asarray(Image.open(squares / "said" / f"03_{kind}.png")) for kind in ("classes", "total"))
    assert classes.shape == total.shape == (16, 16)
    assert float(row["share(foreground)"]) == pytest.approx(classes.mean(), abs=1e-5)
    assert 0 <= float(row["draw_disagreement"]) <= 1
    overlay = np.asarray(Image.open(squares / "said" / "03_overlay.png"))
    assert overlay.shape == (256, 516, 3)


def test_scans_come_back_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From files to maps: turned NIfTI files with voxels that are no cubes, and a DICOM series."""
    monkeypatch.chdir(tmp_path)
    ball_tree(tmp_path, 10, ((12, 14, 10), (9, 17, 20)))
    run(
        "train", "--data", "images", "--masks", "masks", "--groups", "(p[0-9])_", "--window", "16", "16", "16",
        "--patches", "6", "--recipe", "layers", "--out", "run", *QUICK, "--epochs", "16", "--lr", "0.01",
    )  # fmt: skip
    cases = rows_of(tmp_path / "run" / "cases.csv")
    assert {"name", "patient", "dice", "hd95", "volume_error", "draw_disagreement"} <= cases[0].keys()
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["by_case"]["over"] == "patients"
    run("predict", "run/model.lb", "images", "--samples", "3", "--out", "said", "--quiet", "--review")
    rows = rows_of(tmp_path / "said" / "predictions.csv")
    assert len(rows) == 10
    reviewed = reviewed_cases(tmp_path / "said" / "review.html")
    doubts = {row["name"]: float(row["draw_disagreement"]) for row in rows}
    assert [case["name"] for case in reviewed] == sorted(doubts, key=lambda name: -doubts[name])
    scores = []
    for row in rows:
        stem = row["name"].removesuffix(".nii.gz")
        before = nibabel.load(tmp_path / "images" / row["name"])
        true = np.asarray(nibabel.load(tmp_path / "masks" / row["name"]).dataobj) > 0
        for kind in ("classes", "total", "aleatoric", "epistemic"):
            after = nibabel.load(tmp_path / "said" / f"{stem}_{kind}.nii.gz")
            assert (after.affine == before.affine).all()
            assert after.shape == before.shape
        marked = np.asarray(nibabel.load(tmp_path / "said" / f"{stem}_classes.nii.gz").dataobj) > 0
        scores.append(2 * (marked & true).sum() / (marked.sum() + true.sum()))
        assert float(row["volume_ml(foreground)"]) == pytest.approx(marked.sum() * 0.7 * 1.3 * 3 / 1000, rel=1e-4)
        assert (tmp_path / "said" / f"{stem}_overlay.png").is_file()
    assert np.mean(scores) > 0.5  # in another orientation it would be near 0
    values = np.random.default_rng(0).integers(980, 1020, (11, 12, 13))
    dicom(tmp_path / "series", values, spacing=(3.0, 0.7, 1.3))
    run("predict", "run/model.lb", "series", "--samples", "2", "--out", "told", "--quiet")
    record = json.loads((tmp_path / "told" / "predictions.json").read_text())
    assert "has no StudyInstanceUID" in record["without_dicom_seg"]["series"]
    assert not list((tmp_path / "told").glob("*.dcm"))
    dicom(tmp_path / "series", values, spacing=(3.0, 0.7, 1.3), **patient_of(tmp_path))
    run("predict", "run/model.lb", "series", "--samples", "2", "--out", "told", "--quiet")
    segments = pydicom.dcmread(tmp_path / "told" / "series_seg.dcm")
    (referred,) = segments.ReferencedSeriesSequence
    assert referred.SeriesInstanceUID == pydicom.dcmread(next((tmp_path / "series").iterdir())).SeriesInstanceUID
    assert [segment.SegmentLabel for segment in segments.SegmentSequence] == ["foreground"]
    marked = np.asarray(nibabel.load(tmp_path / "told" / "series_classes.nii.gz").dataobj)
    assert segments.pixel_array.sum() == (marked > 0).sum()
    after = nibabel.load(tmp_path / "told" / "series_total.nii.gz")
    assert after.shape == values.shape
    np.testing.assert_allclose(after.affine @ [0, 0, 0, 1], [-10, 20, 5, 1], atol=1e-5)
    np.testing.assert_allclose(np.diag(after.affine)[:3], [-3.0, -0.7, 1.3], atol=1e-6)
    record = json.loads((tmp_path / "told" / "predictions.json").read_text())
    assert record["packages"]["nibabel"]
    assert record["model_sha256"] == hashlib.sha256((tmp_path / "run" / "model.lb").read_bytes()).hexdigest()


def test_a_review_outlines_the_masks_that_carry_a_guarantee(squares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(squares)
    recipe = "deterministic+conformal:level=0.5,share=0.5,inner=0.5"
    run("train", "--data", "images", "--masks", "masks", "--recipe", recipe, "--out", "run", *QUICK, "--epochs", "12")
    run("predict", "run/model.lb", "images", "--out", "said", "--quiet", "--review")
    reviewed = reviewed_cases(squares / "said" / "review.html")
    assert len(reviewed) == 16
    predictor, preparation, _ = read_model(squares / "run" / "model.lb")
    for case in reviewed[:3]:
        assert [path["name"] for path in case["paths"]] == [
            "foreground",
            "outer mask: false negatives at most 50 % on average",
            "inner mask: false positives at most 50 % on average",
        ]
        ((_, x),) = preparation.inputs(squares / "images" / case["name"])
        inner, outer = predictor.nested(x[None])
        assert [path["slices"] for path in case["paths"][1:]] == [[outline(np.asarray(m[0]))] for m in (outer, inner)]
    assert {"total", "epistemic", "expected_dice_loss"} == reviewed[0]["doubts"].keys()
    losses = [case["doubts"]["expected_dice_loss"] for case in reviewed]
    assert losses == sorted(losses, reverse=True)  # a network without draws orders the cases by what Dice they may lose
