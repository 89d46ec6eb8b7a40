import colorsys
import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from leanbayes.lab.data.shifts import CORRUPTIONS, SEVERITIES, corrupt
from leanbayes.lab.data.shifts.weather import plasma

from .pictures import draws, pictures

X = pictures(4)


def test_plasma_equals_diamond_square_point_by_point() -> None:
    like = torch.zeros(2, dtype=torch.float64)
    shakes = draws(like).uniform(-1, 1, 8, 8).tolist()
    fields = plasma(draws(like), 8, 8, 1.75)[:, 0]
    for shake, ours in zip(shakes, fields, strict=True):
        field = np.zeros((8, 8))
        step, size = 8, 1.0
        while step > 1:
            half = step // 2
            for h in range(half, 8, step):
                for w in range(half, 8, step):
                    ends = [(h + a, w + b) for a in (-half, half) for b in (-half, half)]
                    field[h, w] = np.mean([field[a % 8, b % 8] for a, b in ends]) + size * shake[h][w]
            for h in range(0, 8, half):
                for w in range(0, 8, half):
                    if (h // half + w // half) % 2:
                        ends = [(h - half, w), (h + half, w), (h, w - half), (h, w + half)]
                        field[h, w] = np.mean([field[a % 8, b % 8] for a, b in ends]) + size * shake[h][w]
            step, size = half, size / 1.75**2
        np.testing.assert_allclose(np.asarray(ours), (field - field.min()) / (field.max() - field.min()), atol=1e-12)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_adds_plasma_and_dims(severity: int) -> None:
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    largest = X.flatten(1).amax(1).view(-1, 1, 1, 1)
    truth = (X + amount * plasma(draws(X), 32, 32, decay)) * largest / (largest + amount)
    torch.testing.assert_close(corrupt(X, "fog", severity), truth)
    black = torch.zeros(1, 3, 9, 9)
    assert torch.equal(corrupt(black, "fog", severity), black)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_mixes_a_bluish_texture_with_the_published_shares(severity: int) -> None:
    keep, amount = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    dark = X * 0.5  # so that nothing is cut off
    ice = (corrupt(dark, "frost", severity) - keep * dark) / amount
    texture = (corrupt(dark, "frost", 1) - dark) / 0.2
    torch.testing.assert_close(ice, texture)
    assert 0 <= ice.min() < 0.05
    assert 0.95 < ice.max() <= 1
    assert (ice[:, 0] <= ice[:, 1]).all()
    assert (ice[:, 1] <= ice[:, 2]).all()
    assert ice.flatten(1).std(1).min() > 0.1


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_equals_colorsys(severity: int) -> None:
    amount = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    x = torch.cat([X[:2, :, :8, :8], torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8)]).double()
    x[2, 0, 0] = 1e-310  # so small that a ratio of values would overflow
    x[2, 1, 1] = 0.25
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in x.permute(0, 2, 3, 1).reshape(-1, 3).tolist()]
    truth = torch.tensor([colorsys.hsv_to_rgb(h, s, min(v + amount, 1)) for h, s, v in hsv], dtype=torch.float64)
    torch.testing.assert_close(corrupt(x, "brightness", severity).permute(0, 2, 3, 1).reshape(-1, 3), truth)


def test_snow_whitens_and_its_flakes_are_the_same_upside_down() -> None:
    for severity, constants in zip(SEVERITIES, CORRUPTIONS["snow"].constants, strict=True):
        dark = torch.full((40, 1, 32, 32), 0.02, dtype=torch.float64)
        flakes = corrupt(dark, "snow", severity) - constants[-1] * 0.02 - (1 - constants[-1]) * 0.53
        torch.testing.assert_close(flakes, flakes.rot90(2, (2, 3)))
        assert -1e-12 < flakes.min() < 1e-9
        assert flakes.max() > 0.02
    shares = [float((corrupt(dark, "snow", s) > 0.3).double().mean()) for s in (1, 5)]
    assert shares[0] < shares[1]


def test_snow_equals_scipy_and_a_loop_over_its_taps() -> None:
    for severity in (1, 4):
        mean, scale, zoom, threshold, radius, sigma, keep = CORRUPTIONS["snow"].constants[severity - 1]
        source = draws(X)
        noise, angles = mean + scale * np.asarray(source.normal(1, 32, 32)), source.uniform(-135, -45).tolist()
        part = math.ceil(32 / zoom)
        crop = slice((32 - part) // 2, (32 - part) // 2 + part)
        weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
        for x, field, angle, ours in zip(np.asarray(X), noise[:, 0], angles, corrupt(X, "snow", severity), strict=True):
            large = ndimage.zoom(field[crop, crop], zoom, order=1, mode="nearest")
            trim = (len(large) - 32) // 2
            flakes = np.clip(large, 0, 1)[trim : trim + 32, trim : trim + 32]
            flakes = np.pad(np.where(flakes < threshold, 0, flakes), 30, mode="edge")
            fallen = np.zeros((32, 32))
            for i, weight in enumerate(weights / weights.sum()):
                down, right = (math.ceil(i * f(math.radians(angle)) - 0.5) for f in (math.sin, math.cos))
                fallen += weight * flakes[30 + down : 62 + down, 30 + right : 62 + right]
            grey = np.tensordot([0.299, 0.587, 0.114], x, 1)
            truth = keep * x + (1 - keep) * np.maximum(x, 1.5 * grey + 0.5) + fallen + fallen[::-1, ::-1]
            np.testing.assert_allclose(np.asarray(ours), np.clip(truth, 0, 1), atol=1e-12)
