import colorsys
import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from leanbayes.lab.data.shifts import CORRUPTIONS, SEVERITIES, corrupt
from leanbayes.lab.data.shifts.corruption import luminance
from leanbayes.lab.data.shifts.spatter import distance_to, edges, equalised
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


def test_water_equals_scipy() -> None:
    dark = 0.1 * X
    noise = 0.65 + 0.1 * np.asarray(draws(dark).normal(1, 32, 32))[:, 0]
    for x, field, ours in zip(np.asarray(dark), noise, corrupt(dark, "spatter", 2), strict=True):
        liquid = ndimage.gaussian_filter(field, 0.8, mode="nearest")
        water = np.floor(np.where(liquid < 0.7, 0, 255 * liquid))
        outline = np.asarray(edges(torch.from_numpy(water)[None, None])[0, 0])
        far = np.minimum(ndimage.distance_transform_edt(~outline), 20)
        height = np.floor(ndimage.uniform_filter(far, 3, mode="mirror") + 1e-9)
        ranks = np.array([(height <= value).sum() for value in height.flat]).reshape(32, 32)
        equal = np.round(255 * (ranks - ranks.min()) / (1024 - ranks.min()))
        lit = np.clip(ndimage.correlate(equal, [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], mode="mirror"), 0, 255)
        depth = water * np.round(ndimage.uniform_filter(lit, 3, mode="mirror"))
        truth = x + 0.5 * depth / depth.max() * np.array([175, 238, 238])[:, None, None] / 255
        np.testing.assert_allclose(np.asarray(ours), truth, atol=1e-9)


def test_mud_covers_and_water_brightens() -> None:
    x = pictures(60, seed=3)
    for severity in (4, 5):
        out = corrupt(x, "spatter", severity)
        changed = (out != x).any(1)
        brown = torch.tensor([63, 42, 20], dtype=torch.float64) / 255
        gap = ((out - brown.view(3, 1, 1)).abs() / (x - brown.view(3, 1, 1)).abs().clamp(min=1e-9)).amax(1)[changed]
        assert 0.005 < changed.double().mean() < 0.4
        assert gap.max() <= 0.2 + 1e-9  # mud that is seen is 80 % opaque or more
    for severity in (1, 2, 3):
        depth = (corrupt(x * 0.1, "spatter", severity) - x * 0.1) / torch.tensor([175, 238, 238]).view(3, 1, 1) * 255
        torch.testing.assert_close(depth[:, 0], depth[:, 2])
        assert depth.min() > -1e-9
        torch.testing.assert_close(depth.flatten(1).amax(1), torch.full((60,), 0.5, dtype=torch.float64))


def test_an_image_without_drops_stays_dry() -> None:
    x = torch.full((300, 3, 3, 3), 0.5, dtype=torch.float64)
    for severity in SEVERITIES:
        out = corrupt(x, "spatter", severity)
        assert torch.isfinite(out).all()
        assert (out == x).flatten(1).all(1).any()


def test_distances_equal_scipy() -> None:
    some = torch.rand(6, 1, 50, 47) < torch.tensor([0.3, 0.02, 0.003, 0.001, 1, 0]).view(6, 1, 1, 1)
    some[3, 0, 0, 0] = True
    ours = distance_to(some, torch.float64)
    for places, one in zip(some[:5, 0], ours[:5, 0], strict=True):
        truth = ndimage.distance_transform_edt(~np.asarray(places))
        np.testing.assert_allclose(np.asarray(one), np.minimum(truth, 20), atol=1e-12)
    assert (ours[5] == 20).all()


def test_equalised_by_hand() -> None:
    flat = torch.full((2, 2), 7.0)
    steps = torch.tensor([[3.0, 3.0], [5.0, 20.0]])
    out = equalised(torch.stack([flat, steps])[:, None])
    assert torch.equal(out[0, 0], flat)
    assert torch.equal(out[1, 0], torch.tensor([[0.0, 0.0], [128.0, 255.0]]))  # 255·1/2 rounds to even


def test_edges_of_a_square_are_thin_and_closed() -> None:
    square = torch.zeros(1, 1, 16, 16)
    square[..., 4:11, 5:12] = 200
    found = edges(square)[0, 0]
    assert not edges(torch.full((1, 1, 9, 9), 200.0)).any()
    _, regions = ndimage.label(~np.asarray(found))
    assert regions == 2  # inside and outside
    assert found.sum() <= 4 * 8
    assert not edges(square / 200 * 8).any()  # at a corner 6 · 8 < 50


def test_weak_edges_count_where_they_join_strong_ones() -> None:
    step = torch.zeros(2, 1, 16, 16)
    step[..., 8:] = 30  # 50 < 4 · 30 < 150
    step[1, 0, 3, 8:] = 60
    found = edges(step)[:, 0]
    assert not found[0].any()
    assert found[1, 15, 7]
    assert not found[1, 8:, :6].any()


# An image of bytes, and what cv2.Canny(image, 50, 150) finds in it (OpenCV 5.0.0).
CANNY = """
    565a503a4d624a314469603e34405574 ###.#.#.#.#..##.
    8276593f507076696e817450332d4160 ..#.#####.##..##
    6e6e61566884929293907a56382c343a ...##......#....
    2441566277858e9c9a896d503b33382f ##.......##.....
    002c4e595c5f6f898373695947383c3b .#.#######..#...
    06294c4f3b354c68665e5d5246383230 .#....#......#..
    2b385359443a51615e56493e484e4133 ###.#.#...#...#.
    58627d856b596e6c55473e34405e6c64 ...#####.#..#..#
    626a88937f76867859443b2a2c547f88 .......#.....#..
    544d60767f92977f67503d2a345f817d ..##.....##.##..
    63494a6885998870685c47364b788262 #..#..##..#.#..#
    6f54516d827f5c4c5c65543d50787e66 .#.####...#.#...
    6b5355666d644040676d4b2e40688693 #..#.#..#.###.##
    675a64686a60373d797b3e1d3870a6c8 #....#..#.#..#..
"""


def test_edges_equal_opencv() -> None:
    rows = [line.split() for line in CANNY.strip().splitlines()]
    image = torch.tensor([list(bytes.fromhex(values)) for values, _ in rows], dtype=torch.float32)
    found = edges(image[None, None])[0, 0]
    assert ["".join(".#"[edge] for edge in row) for row in found.int().tolist()] == [marks for _, marks in rows]


def test_luminance_of_grey_is_itself() -> None:
    grey = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(luminance(grey.expand(-1, 3, -1, -1)), grey)
