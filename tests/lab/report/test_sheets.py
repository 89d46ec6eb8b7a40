import io

import numpy as np
from PIL import Image

from leanbayes.lab.report.sheets import Thinning, doubt_colours, doubt_gradient, sheet, sheet_columns


def test_slices_lie_row_by_row() -> None:
    pixels = np.zeros((5, 16, 32, 3), np.uint8)
    pixels[np.arange(5)] = (40 * np.arange(1, 6, dtype=np.uint8))[:, None, None, None]
    assert sheet_columns(5) == 3
    image = np.asarray(Image.open(io.BytesIO(sheet(pixels))).convert("L")).astype(int)
    assert image.shape == (32, 96)
    centres = image[8::16, 16::32]
    assert np.abs(centres - [[40, 80, 120], [160, 200, 0]]).max() < 6


def test_doubt_is_invisible_where_there_is_none() -> None:
    pixels = doubt_colours(np.array([[0.0, 0.35, 0.7, 2.0, np.nan]]), 0.7)
    assert pixels[0, :, 3].tolist()[0] == 0
    assert pixels[0, 0, 3] < pixels[0, 1, 3] < pixels[0, 2, 3] == pixels[0, 3, 3] == 255
    assert (pixels[0, 2] == pixels[0, 3]).all()  # never beyond the scale
    assert pixels[0, 4, 3] == 0
    assert not doubt_colours(np.zeros((2, 2)), 0.0)[..., 3].any()
    assert doubt_gradient().startswith("linear-gradient(to right, rgb(0 0 4)")


def test_thinning_bounds_a_sheet_and_says_so() -> None:
    assert Thinning.of(64, 200, 256) == Thinning(1, 1)
    assert Thinning.of(64, 200, 256).words == ""
    assert Thinning.of(1, 900, 1000) == Thinning(1, 1)
    thin = Thinning.of(600, 512, 512)
    assert thin == Thinning(2, 3)
    assert thin.words == "The page shows 1 of 2 pixels along each side and 1 of 3 slices; the files hold all."
