"""The review page as a file: order, outlines, pictures in the page or beside it, and nothing left over."""

import io
import json
import math
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leanbayes.lab.report import review as module
from leanbayes.lab.report.review import Review
from leanbayes.lab.report.sheets import sheet_columns
from tests.lab.report.reviews import MARKUP, SIZE, photographs_page, volume, volumes_page


def cases_of(page: Path) -> list[dict]:
    (text,) = re.findall(r'<script type="application/json" id="cases">(.*?)</script>', page.read_text(), re.S)
    return json.loads(text)


def pixels_of(address: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(b64decode(address.split(",")[1]))))


def test_cases_come_in_order_of_doubt(tmp_path: Path) -> None:
    cases = cases_of(volumes_page(tmp_path))
    assert [case["name"] for case in cases] == ["P1_0.nii.gz", "P4_0.nii.gz", MARKUP, "P0_0.nii.gz", "P3_0.nii.gz"]
    assert [case["doubts"]["draw_disagreement"] for case in cases] == [0.9, 0.7, 0.5, 0.3, 0.1]
    assert all(case["shown"] == 6 for case in cases)  # the slice with the largest lesion
    assert cases[0]["sides"] == ["R", "L"]
    assert cases[0]["aspect"] == 2.0


def test_a_page_holds_its_pictures(tmp_path: Path) -> None:
    page = volumes_page(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["review.html"]
    case = cases_of(page)[0]
    across = sheet_columns(SIZE[2])
    for kind, channels in (("image", 3), ("total", 4), ("epistemic", 4)):
        assert pixels_of(case[kind]).shape == (math.ceil(10 / across) * SIZE[1], across * SIZE[0], channels)
    assert len(case["paths"]) == 2
    lesion, core = (path["slices"] for path in case["paths"])
    assert [bool(path) for path in lesion] == [False] * 4 + [True] * 5 + [False]
    assert core[6]
    assert MARKUP not in page.read_text()


def test_maps_share_a_scale_over_cases(tmp_path: Path) -> None:
    """The brightest epistemic pixel of all cases is opaque; a case with a ninth of the doubt is not."""
    cases = cases_of(volumes_page(tmp_path))
    brightest = [pixels_of(case["epistemic"])[..., 3].max() for case in cases]
    assert brightest[0] == 255
    assert brightest[-1] < 70
    total = [pixels_of(case["total"])[..., 3].max() for case in cases]
    assert total == sorted(total, reverse=True)
    assert total[-1] == pytest.approx(255 * 0.1 / math.log(3) / 0.6, abs=12)


def test_pictures_of_many_cases_lie_beside_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IN_PAGE", 1000)
    page = volumes_page(tmp_path)
    for case in cases_of(page):
        for kind in ("image", "total", "epistemic"):
            assert (tmp_path / case[kind]).is_file()
    assert len(list((tmp_path / "review").iterdir())) == 15
    (tmp_path / "review" / "notes.txt").write_text("mine")
    photographs_page(tmp_path)  # another run with fewer cases leaves nothing of the first one behind
    assert sorted(path.name for path in (tmp_path / "review").iterdir()) == sorted(
        [f"{number:04}_{kind}.webp" for number in range(2) for kind in ("epistemic", "image", "total")] + ["notes.txt"]
    )


def test_a_run_that_stops_leaves_no_page_of_an_earlier_one(tmp_path: Path) -> None:
    volumes_page(tmp_path)
    Review(tmp_path, ("a", "b"), 0.7)
    assert not (tmp_path / "review.html").exists()


def test_pictures_keep_their_colours(tmp_path: Path) -> None:
    case = cases_of(photographs_page(tmp_path))[0]
    image = pixels_of(case["image"])
    assert image.shape == (60, 90, 3)
    assert np.abs(image[5, 80].astype(int) - [200, 150, 120]).max() < 8
    assert case["slices"] == 1
    assert case["sides"] == ["", ""]


def test_large_scans_are_thinned_and_the_page_says_so(tmp_path: Path) -> None:
    review = Review(tmp_path, ("a", "b", "c"), math.log(3))
    case = volume("large", 0.5)
    tall = {name: np.repeat(getattr(case, name), 30, -1) for name in ("image", "labels", "total", "epistemic")}
    review.add(module.ReviewCase("tall", view=case.view, doubts={}, **tall))
    (shown,) = cases_of(review.write())
    assert (shown["slices"], shown["step"]) == (150, 2)
    assert shown["note"] == "The page shows 1 of 2 slices; the files hold all."
    assert shown["doubts"] == {}


def test_further_masks_are_outlined(tmp_path: Path) -> None:
    review = Review(tmp_path, ("a", "b", "c"), math.log(3))
    case = volume("one", 0.5)
    outer = case.total > 0.3
    review.add(volume("one", 0.5, masks={"outer mask": outer, "inner mask": outer & (case.labels > 0)}))
    (shown,) = cases_of(review.write())
    assert [path["name"] for path in shown["paths"]] == ["b", "c", "outer mask", "inner mask"]
    assert [path["line"] for path in shown["paths"]] == ["solid", "solid", "dashed", "dotted"]
    assert [bool(path) for path in shown["paths"][2]["slices"]] == case.view.slices(outer).any((1, 2)).tolist()


def test_an_order_that_orders_nothing_is_left_out(tmp_path: Path) -> None:
    """Where no draw predicts anything, the draws agree about every case, and the next score of doubt comes first."""
    review = Review(tmp_path, ("a", "b", "c"), math.log(3))
    for number in range(3):
        review.add(volume(f"{number}", 0.5, doubts={"draw_disagreement": 0.0, "total": 0.1 * number}))
    page = review.write()
    assert [case["name"] for case in cases_of(page)] == ["2", "1", "0"]
    assert re.findall(r'<option value="(\w*)">', page.read_text()) == ["total", ""]


def test_a_case_in_which_nothing_is_predicted_says_so(tmp_path: Path) -> None:
    review = Review(tmp_path, ("a", "b", "c"), math.log(3))
    case = volume("one", 0.5)
    review.add(case)
    review.add(replace(case, labels=0 * case.labels))
    notes = [shown["note"] for shown in cases_of(review.write())]
    assert notes == ["", "The model predicts no b or c in this case."]


def test_rounding_errors_are_not_drawn_as_doubt(tmp_path: Path) -> None:
    """The epistemic uncertainty of a plain network is about 1e-8 nats: its map is dark, not scaled to its maximum."""
    review = Review(tmp_path, ("a", "b", "c"), math.log(3))
    case = volume("one", 0.5)
    review.add(replace(case, epistemic=1e-8 * case.total))
    (shown,) = cases_of(review.write())
    assert pixels_of(shown["epistemic"])[..., 3].max() <= 1  # the opacity
    assert pixels_of(shown["total"])[..., 3].max() > 100
