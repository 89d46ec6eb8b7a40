import io

import numpy as np
from PIL import Image

from leanbayes.lab.cli.overlays import contours, overlay_png


def test_a_contour_is_what_has_a_neighbour_outside() -> None:
    mask = np.zeros((7, 7), bool)
    mask[1:6, 1:6] = True
    edge = contours(mask)
    assert edge.sum() == 16
    assert not edge[2:5, 2:5].any()


def test_an_overlay_can_be_seen() -> None:
    classes = np.zeros((20, 30), np.int64)
    classes[5:15, 5:15] = 1
    classes[5:15, 20:25] = 2
    data = overlay_png(np.random.default_rng(0).normal(size=(1, 20, 30)), classes, classes * 0.2, 0.69)
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    assert pixels.shape == (260, 2 * 390 + 4, 3)
    left = pixels[:, :390].reshape(-1, 3)
    for colour in ((213, 94, 0), (86, 180, 233)):
        assert (left == colour).all(1).sum() > 300
    assert len(np.unique(pixels[:, 394:].reshape(-1, 3), axis=0)) == 3
