import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from leanbayes.lab.data.shifts import CORRUPTIONS, SEVERITIES, corrupt
from leanbayes.lab.data.shifts.blur import disk, glass_blur
from leanbayes.lab.data.shifts.filters import correlate, gaussian_blurred, gaussian_kernel, pixels_first, smear, zoomed

from .pictures import draws, pictures

X = pictures(3, 3, 32, 29)


def close(ours: torch.Tensor, truth: np.ndarray, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(ours), truth, rtol=0, atol=atol)


@pytest.mark.parametrize("border", ["nearest", "reflect", "mirror"])
def test_gaussian_filter_equals_scipy_even_where_it_is_wider_than_the_image(border: str) -> None:
    for sigma, truncate in ((0.05, 4), (0.4, 4), (1.0, 4), (6.4, 3), (20.0, 4)):
        truth = ndimage.gaussian_filter(np.asarray(X), (0, 0, sigma, sigma), mode=border, truncate=truncate)
        close(gaussian_blurred(X, sigma, border, truncate), truth)  # type: ignore[arg-type]


@pytest.mark.parametrize("border", ["nearest", "reflect", "mirror"])
def test_correlation_equals_scipy(border: str) -> None:
    kernel = np.random.default_rng(0).normal(size=(3, 5))
    truth = ndimage.correlate(np.asarray(X), kernel[None, None], mode=border)
    close(correlate(X, kernel.tolist(), border), truth)  # type: ignore[arg-type]


def test_kernels_sum_to_one() -> None:
    kernels = [gaussian_kernel(sigma, 4) for sigma in (0, 0.3, 1, 100)]
    kernels += [[w for row in disk(*constants) for w in row] for constants in CORRUPTIONS["defocus_blur"].constants]
    for kernel in kernels:
        assert math.isclose(sum(kernel), 1, rel_tol=1e-12)
        assert min(kernel) >= 0


@pytest.mark.parametrize(("severity", "sigma"), list(zip(SEVERITIES, (0.4, 0.6, 0.7, 0.8, 1), strict=True)))
def test_gaussian_blur_equals_scipy(severity: int, sigma: float) -> None:
    truth = ndimage.gaussian_filter(np.asarray(X), (0, 0, sigma, sigma), mode="nearest")
    close(corrupt(X, "gaussian_blur", severity), truth)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_is_a_disk_under_a_gaussian(severity: int) -> None:
    radius, soften = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    side = np.arange(-8, 9)
    kernel = (side[:, None] ** 2 + side**2 <= radius**2).astype(float)
    kernel = ndimage.gaussian_filter(kernel / kernel.sum(), soften, radius=1)
    close(corrupt(X, "defocus_blur", severity), ndimage.correlate(np.asarray(X), kernel[None, None], mode="mirror"))


def test_motion_blur_along_the_axes_is_half_a_gaussian() -> None:
    weights = np.exp(-(np.arange(13) ** 2) / (2 * 1.5**2))
    kernel = np.concatenate([np.zeros(12), weights / weights.sum()])
    for angle, axis in ((0.0, 3), (90.0, 2)):
        truth = ndimage.correlate1d(np.asarray(X), kernel, axis=axis, mode="nearest")
        close(smear(X, 6, 1.5, torch.full((3,), angle, dtype=torch.float64)), truth)


def test_motion_blur_follows_each_images_own_line() -> None:
    dot = torch.zeros(3, 1, 21, 21, dtype=torch.float64)
    dot[..., 10, 10] = 1
    angles = torch.tensor([-45.0, 30.0, -100.0], dtype=torch.float64)
    out = smear(dot, 4, 3.0, angles)
    truth = np.zeros((3, 1, 21, 21))
    weights = np.exp(-(np.arange(9) ** 2) / 18)
    for image, angle in zip(truth, np.deg2rad([-45, 30, -100]), strict=True):
        for i, weight in enumerate(weights / weights.sum()):
            image[0, 10 - math.ceil(i * math.sin(angle) - 0.5), 10 - math.ceil(i * math.cos(angle) - 0.5)] += weight
    close(out, truth)
    assert len({tuple(image.flatten().tolist()) for image in corrupt(dot, "motion_blur", 5)}) > 1


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.06, 1.25, 1.75, 2.25])
def test_zoom_equals_scipy(factor: float) -> None:
    x = pictures(2, 3, 32, 32)
    part = math.ceil(32 / factor)
    top = (32 - part) // 2
    large = ndimage.zoom(
        np.asarray(x)[..., top : top + part, top : top + part], (1, 1, factor, factor), order=1, mode="nearest"
    )
    trim = (large.shape[2] - 32) // 2
    close(pixels_first(zoomed(pixels_first(x), factor)), large[..., trim : trim + 32, trim : trim + 32])


@pytest.mark.parametrize(("severity", "end"), list(zip(SEVERITIES, (1.06, 1.11, 1.16, 1.21, 1.26), strict=True)))
def test_zoom_blur_is_the_mean_over_the_published_factors(severity: int, end: float) -> None:
    factors = np.arange(1, end, 0.01)
    images = pixels_first(X)
    truth = sum((pixels_first(zoomed(images, factor)) for factor in factors), X) / (len(factors) + 1)
    close(corrupt(X, "zoom_blur", severity), np.asarray(truth))


def test_glass_blur_is_the_published_loop_with_its_copies() -> None:
    x = pictures(2, 3, 8, 9)
    steps = draws(x).uniform(-1, 1, 2, 8, 9).floor().long().tolist()
    truth = ndimage.gaussian_filter(np.asarray(x), (0, 0, 0.4, 0.4), mode="nearest").transpose(0, 2, 3, 1).copy()
    for image, (down, right) in zip(truth, steps, strict=True):
        for h in range(8 - 1, 1, -1):
            for w in range(9 - 1, 1, -1):
                h2, w2 = h + down[h][w], w + right[h][w]
                image[h, w], image[h2, w2] = image[h2, w2], image[h, w]  # views: this copies
    truth = ndimage.gaussian_filter(truth, (0, 0.4, 0.4, 0), mode="nearest").transpose(0, 3, 1, 2)
    close(glass_blur(x, 0.4, 1, 1, draws(x)), truth)
    assert {step for image in steps for part in image for row in part for step in row} == {-1, 0}


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "glass_blur"])
def test_blur_leaves_an_even_image(name: str) -> None:
    even = torch.full((2, 1, 12, 10), 0.3, dtype=torch.float64)
    for severity in SEVERITIES:
        close(corrupt(even, name, severity), np.asarray(even))
