import numpy as np
import torch
from scipy import ndimage

from leanbayes.lab.data.shifts import SEVERITIES, corrupt
from leanbayes.lab.data.shifts.spatter import distance_to, edges, equalised

from .pictures import draws, pictures

X = pictures(4)


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
    points = torch.rand(6, 1, 50, 47) < torch.tensor([0.3, 0.02, 0.003, 0.001, 1, 0]).view(6, 1, 1, 1)
    points[3, 0, 0, 0] = True
    ours = distance_to(points, torch.float64)
    for image, distances in zip(points[:5, 0], ours[:5, 0], strict=True):
        truth = ndimage.distance_transform_edt(~np.asarray(image))
        np.testing.assert_allclose(np.asarray(distances), np.minimum(truth, 20), atol=1e-12)
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
    edge_map = edges(square)[0, 0]
    assert not edges(torch.full((1, 1, 9, 9), 200.0)).any()
    _, regions = ndimage.label(~np.asarray(edge_map))
    assert regions == 2  # inside and outside
    assert edge_map.sum() <= 4 * 8
    assert not edges(square / 200 * 8).any()  # at a corner 6 · 8 < 50


def test_weak_edges_count_where_they_join_strong_ones() -> None:
    step = torch.zeros(2, 1, 16, 16)
    step[..., 8:] = 30  # 50 < 4 · 30 < 150
    step[1, 0, 3, 8:] = 60
    edge_map = edges(step)[:, 0]
    assert not edge_map[0].any()
    assert edge_map[1, 15, 7]
    assert not edge_map[1, 8:, :6].any()


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
    edge_map = edges(image[None, None])[0, 0]
    assert ["".join(".#"[edge] for edge in row) for row in edge_map.int().tolist()] == [marks for _, marks in rows]
