import base64
import io

import numpy as np
import pytest
from PIL import Image

from leanbayes.lab.report import pictures


def test_the_overlay_paints_each_verdict_in_its_colour():
    truth = np.array([[0, 1, 0, 1, 1]])
    predicted = np.array([[0, 1, 1, 0, 2]])
    painted = pictures.overlay(np.full((1, 5), 0.5), truth, predicted, strength=1.0)[0]
    colours = ["#%02x%02x%02x" % tuple(pixel) for pixel in painted.tolist()]  # noqa: UP031
    missed = pictures.FALSE_NEGATIVE
    assert colours == ["#808080", pictures.TRUE_POSITIVE, pictures.FALSE_POSITIVE, missed, missed]
    for colour, channel in ((pictures.TRUE_POSITIVE, 1), (pictures.FALSE_POSITIVE, 2), (missed, 0)):
        levels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert levels.index(max(levels)) == channel  # green, blue, red


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (4, 4, 1), (4, 4, 7)])
def test_pictures_of_any_channels_become_rgb(shape):
    image = np.full(shape, 2.0)
    image[0, 0] = np.nan
    assert pictures.picture(image).shape == (4, 4, 3)
    assert pictures.picture(image)[0, 0].tolist() == [0, 0, 0]
    assert pictures.picture(image)[1, 1].tolist() == [255, 255, 255]


def test_small_pictures_are_exact_and_large_ones_are_small():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (28, 28, 3), dtype=np.uint8)
    kind, _, data = pictures.data_address(pixels).partition(";base64,")
    assert kind == "data:image/png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), pixels)
    large = pictures.data_address(rng.integers(0, 256, (900, 600, 3), dtype=np.uint8))
    assert large.startswith("data:image/jpeg")
    assert len(large) < 60_000


def test_a_map_without_doubt_is_dark():
    np.testing.assert_array_equal(pictures.heat(np.zeros((2, 2)), 0.0), pictures.heat(np.zeros((2, 2)), 1.0))
