import numpy as np
import pytest

from leanbayes.lab.slices import View, largest_slice, reduced, reduced_labels, shades


def test_a_scan_is_seen_from_the_feet() -> None:
    scan = np.zeros((4, 5, 6))  # right, front, up
    scan[3, 4, 2] = 1  # the patient's right, in front, in the third slice from the feet
    view = View.of(scan.shape, (1.0, 2.0, 3.0))
    slices = view.slices(scan)
    assert slices.shape == (6, 5, 4)
    assert np.argwhere(slices).tolist() == [[2, 0, 0]]  # on the left of the page, on top
    assert view.sides == ("R", "L")
    assert view.aspect == 2.0


@pytest.mark.parametrize(
    ("shape", "aspect", "sides"),
    [((4, 5, 1), 2.0, ("R", "L")), ((4, 1, 5), 3.0, ("R", "L")), ((1, 4, 5), 1.5, ("A", "P"))],
)
def test_a_single_slice_is_shown_as_it_lies(shape, aspect: float, sides) -> None:
    scan = np.zeros(shape)
    scan[tuple(side - 1 for side in shape)] = 1
    view = View.of(shape, (1.0, 2.0, 3.0))
    assert view.slices(scan).shape == (1, 5, 4)
    assert np.argwhere(view.slices(scan)).tolist() == [[0, 0, 0]]
    assert (view.aspect, view.sides) == (aspect, sides)


def test_pictures_and_arrays_are_shown_as_they_are() -> None:
    picture = np.arange(6.0).reshape(1, 2, 3)
    view = View.of((2, 3), None)
    assert (view.slices(picture) == picture[:, None]).all()
    assert (view.aspect, view.sides) == (1.0, ("", ""))
    volume = np.arange(24).reshape(2, 3, 4)
    assert (View.of((2, 3, 4), None).slices(volume) == volume).all()
    flat = View.of((2, 3), (1.0, 2.0))  # a slice of a scan whose third axis is not there
    assert flat.slices(picture).shape == (1, 1, 3, 2)
    assert flat.slices(picture)[0, 0, 0, 0] == 5
    assert flat.aspect == 2.0


def test_the_slice_with_the_largest_foreground_or_the_most_doubt() -> None:
    labels, total = np.zeros((4, 3, 3)), np.zeros((4, 3, 3))
    total[1] = 0.3
    assert largest_slice(labels, total) == 1
    labels[3, 0, 0] = 1
    assert largest_slice(labels, total) == 3


def test_reduction_keeps_means_and_puts_labels_on_the_same_grid() -> None:
    values = np.random.default_rng(0).normal(size=(2, 8, 12))
    assert reduced(values, 4).mean() == pytest.approx(values.mean())
    assert reduced(values, 4)[1, 1, 2] == pytest.approx(values[1, 4:, 8:].mean())
    odd = np.zeros((7, 9), np.int64)
    odd[:4, :5] = 2
    assert reduced(odd, 3).shape == reduced_labels(odd, 3).shape == (3, 3)
    assert reduced_labels(odd, 3).tolist() == [[2, 2, 0], [0, 0, 0], [0, 0, 0]]
    assert reduced_labels(odd, 1) is odd


def test_shades_keep_bytes_and_spread_hounsfield_units() -> None:
    assert shades(np.array([0, 51, 255], np.uint8)).tolist() == [0, 0.2, 1]
    assert shades(np.array([0.2, 0.7])).tolist() == [0.2, 0.7]
    scan = np.r_[np.linspace(-1000, 1000, 2001), 30_000].astype(np.int16)
    grey = shades(scan)
    assert (grey.min(), grey.max()) == (0, 1)
    assert 0.4 < grey[1000] < 0.6  # one bright voxel does not make the rest black
    assert not shades(np.full((2, 2), 7.0)).any()
    assert not shades(np.full((2, 2), np.nan)).any()
    assert np.isfinite(shades(np.array([np.nan, 3.0, 900.0]))).all()
