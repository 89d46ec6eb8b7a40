import colorsys
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from leanbayes.lab.data.shifts import SEVERITIES, corrupt
from leanbayes.lab.data.shifts.digital import elastic_transform

from .pictures import draws, pictures

X = pictures(3)
BYTES = (255 * X).round().byte()


@pytest.mark.parametrize(("severity", "keep"), list(zip(SEVERITIES, (0.75, 0.5, 0.4, 0.3, 0.15), strict=True)))
def test_contrast_keeps_means_and_scales_deviations(severity: int, keep: float) -> None:
    out = corrupt(X, "contrast", severity)
    torch.testing.assert_close(out.mean((2, 3)), X.mean((2, 3)))
    torch.testing.assert_close(out.std((2, 3)), keep * X.std((2, 3)))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_saturate_equals_colorsys(severity: int) -> None:
    factor, more = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    x = torch.cat([X[:2, :, :9, :9], torch.zeros(1, 3, 9, 9), torch.full((1, 3, 9, 9), 0.6)])
    x[2, 2, 0] = 0.5
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in x.permute(0, 2, 3, 1).reshape(-1, 3).tolist()]
    truth = [colorsys.hsv_to_rgb(h, min(s * factor + more, 1), v) for h, s, v in hsv]
    ours = corrupt(x, "saturate", severity).permute(0, 2, 3, 1).reshape(-1, 3)
    torch.testing.assert_close(ours, torch.tensor(truth, dtype=torch.float64))


def test_a_grey_image_has_no_colour_to_saturate() -> None:
    grey = X[:, :1]
    for severity in (1, 2, 3):
        torch.testing.assert_close(corrupt(grey, "saturate", severity), grey)
    for severity, more in ((4, 0.1), (5, 0.2)):  # red by 10 and 20 %: green and blue, 0.701 of the light, lose that
        torch.testing.assert_close(corrupt(grey, "saturate", severity), grey * (1 - 0.701 * more))


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (33, 47)])
@pytest.mark.parametrize(("severity", "share"), list(zip(SEVERITIES, (0.95, 0.9, 0.85, 0.75, 0.65), strict=True)))
def test_pixelate_equals_pillow(severity: int, share: float, size: tuple[int, int]) -> None:
    x = pictures(1, 1, *size).float()
    height, width = size
    image = Image.fromarray(np.asarray(x[0, 0]))
    small = image.resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    truth = np.asarray(small.resize((width, height), Image.Resampling.BOX))
    np.testing.assert_allclose(np.asarray(corrupt(x, "pixelate", severity)[0, 0]), truth, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_equals_pillow(channels: int) -> None:
    for severity, quality in zip(SEVERITIES, (80, 65, 58, 50, 40), strict=True):
        out = corrupt(BYTES[:, :channels].double() / 255, "jpeg_compression", severity)
        for one, ours in zip(BYTES[:, :channels], out, strict=True):
            file = BytesIO()
            pixels = np.asarray(one.permute(1, 2, 0))
            Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(file, "JPEG", quality=quality)
            truth = np.asarray(Image.open(file)).reshape(32, 32, channels).transpose(2, 0, 1)
            assert torch.equal((255 * ours).round().byte(), torch.from_numpy(truth.copy()))


def test_elastic_transform_equals_scipy() -> None:
    x = pictures(2, 3, 30, 24)
    strength, smooth, shake = 0.1, 0.04, 0.05
    source = draws(x)
    moves = np.asarray(source.uniform(-shake * 24, shake * 24, 3, 2))
    fields = np.asarray(source.uniform(-1, 1, 2, 30, 24))
    ours = elastic_transform(x, strength, smooth, shake, draws(x))
    corners = np.array([[15.0, 12]]) + 8 * np.array([[1, 1], [-1, 1], [-1, -1]])
    for image, move, field, out in zip(np.asarray(x), moves, fields, np.asarray(ours), strict=True):
        back, *_ = np.linalg.lstsq(np.c_[corners + move, np.ones(3)], corners, rcond=None)
        down, right = (
            ndimage.gaussian_filter(f, smooth * 24, mode="reflect", truncate=3) * strength * 24 for f in field
        )
        h, w = np.mgrid[:30, :24]
        for channel, one in zip(image, out, strict=True):
            turned = ndimage.affine_transform(channel, back[:2].T, back[2], order=1, mode="mirror")
            truth = ndimage.map_coordinates(turned, [h + down, w + right], order=1, mode="reflect")
            np.testing.assert_allclose(one, truth, atol=1e-10)


def test_elastic_transform_moves_smoothly_in_its_own_units() -> None:
    for size in (28, 128):
        ramp = torch.linspace(0.2, 0.8, size, dtype=torch.float64).expand(10, 1, size, size)
        for severity, shake in ((1, 0.08), (5, 0.03)):
            moved = (corrupt(ramp, "elastic_transform", severity) - ramp)[
                ..., size // 3 : -size // 3, size // 3 : -size // 3
            ]
            assert 0.1 * shake < moved.abs().mean() / 0.6 < 1.5 * shake
