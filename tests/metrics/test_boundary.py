"""The band around edges against scipy's distance transform, and its calibration error against a loop."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.metrics import calibration_error
from leanbayes.metrics.boundary import boundary_bins, boundary_calibration_error, edge_band
from leanbayes.metrics.calibration import error_of_bins


def blobs(*shape: int, classes: int = 2, seed: int = 0) -> torch.Tensor:
    noise = np.random.default_rng(seed).normal(size=shape)
    smooth = ndimage.gaussian_filter(noise, (0, *[1.5] * (len(shape) - 1)))
    edges = np.quantile(smooth, np.linspace(0, 1, classes + 1)[1:-1])
    return torch.from_numpy(np.digitize(smooth, edges))


@pytest.mark.parametrize(
    ("shape", "spacing", "distance"),
    [((2, 40), (1.0,), 3.0), ((3, 21, 17), None, 2.0), ((2, 21, 17), (0.7, 1.3), 2.0), ((2, 9, 12, 10), (2.5, 1, 1), 2),
     ((2, 9, 12, 10), (2.5, 0.6, 0.8), 5.0), ((1, 5, 5), None, 50.0), ((2, 12, 12), (1.0, 1.0), math.sqrt(2))],
)  # fmt: skip
@pytest.mark.parametrize("classes", [2, 4])
def test_the_band_is_that_of_scipy(shape, spacing, distance: float, classes: int) -> None:  # type: ignore[no-untyped-def]
    masks = blobs(*shape, classes=classes)
    expected = np.zeros(shape, dtype=bool)
    for number, mask in enumerate(masks.numpy()):
        for label in np.unique(mask):
            far = ndimage.distance_transform_edt(mask == label, sampling=spacing)
            expected[number] |= (mask == label) & (far <= distance + 1e-9)
    assert expected.sum() > 0
    assert torch.equal(edge_band(masks, distance, spacing), torch.from_numpy(expected))


def test_a_mask_without_edges_has_no_band() -> None:
    masks = torch.zeros(1, 6, 6, dtype=torch.long)
    assert not edge_band(masks, 3).any()
    assert math.isnan(boundary_calibration_error(torch.full((1, 2, 6, 6), 0.5), masks))


def test_pixels_that_do_not_count_make_no_edge() -> None:
    masks = torch.tensor([[0, 0, 9, 0, 0, 1, 1]])
    assert edge_band(masks, 1, counted=masks != 9).int().tolist() == [[0, 0, 0, 0, 1, 1, 0]]
    assert edge_band(masks, 1).int().tolist() == [[0, 1, 1, 1, 1, 1, 0]]


def test_the_error_is_that_of_the_pixels_in_the_band() -> None:
    masks = blobs(3, 20, 20)
    probabilities = torch.rand(3, 2, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probabilities = probabilities / probabilities.sum(1, keepdim=True)
    masks[:, :2] = -100
    band = edge_band(masks, 2.0, counted=masks != -100)
    rows = probabilities.movedim(1, -1)[band]
    expected = calibration_error(rows, masks[band])
    assert boundary_calibration_error(probabilities, masks, 2.0).item() == pytest.approx(expected.item())
    parts = sum(boundary_bins(probabilities[i : i + 1], masks[i : i + 1], 2.0) for i in range(3))
    assert isinstance(parts, torch.Tensor)
    assert error_of_bins(parts).item() == pytest.approx(expected.item())


def test_a_network_that_is_too_sure_near_edges_is_found_out() -> None:
    """It is right far from the edge and guesses near it; over all pixels its error looks small."""
    masks = torch.zeros(1, 64, 64, dtype=torch.long)
    masks[:, :, 32:] = 1
    guess = masks.clone()
    guess[:, ::2, 31:33] = 1 - guess[:, ::2, 31:33]
    sure = torch.nn.functional.one_hot(guess, 2).movedim(-1, 1).double() * 0.98 + 0.01
    assert boundary_calibration_error(sure, masks, 1.0) > 0.45 > 0.05 > calibration_error(sure, masks)


@pytest.mark.parametrize(
    ("masks", "distance", "spacing", "error"),
    [(torch.zeros(3, 3), 0.0, None, InputError), (torch.zeros(3, 3), math.inf, None, InputError),
     (torch.zeros(3, 3), 1.0, (0.0,), InputError), (torch.zeros(3, 3), 1.0, (1.0, 1.0), ShapeMismatch),
     (torch.zeros(3), 1.0, None, ShapeMismatch)],
)  # fmt: skip
def test_bad_input(masks, distance: float, spacing, error) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error):
        edge_band(masks, distance, spacing)
