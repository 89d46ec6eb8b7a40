import numpy as np
import pytest
import torch
from scipy import ndimage

from leanbayes.errors import InputError, LeanBayesError
from leanbayes.lab.data.shifts import rotate

from .pictures import pictures


@pytest.mark.parametrize("size", [(28, 28), (17, 30)])
@pytest.mark.parametrize("degrees", [0.0, 10.0, 45.0, -133.0, 720.5])
def test_rotation_equals_scipy(degrees: float, size: tuple[int, int]) -> None:
    x = pictures(2, 2, *size)
    turn = np.deg2rad(degrees)
    matrix = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    centre = (np.array(size) - 1) / 2
    truth = [
        ndimage.affine_transform(channel, matrix, centre - matrix @ centre, order=1, mode="grid-constant")
        for channel in np.asarray(x).reshape(-1, *size)
    ]
    np.testing.assert_allclose(np.asarray(rotate(x, degrees)), np.stack(truth).reshape(x.shape), atol=1e-12)


def test_quarter_turns_are_exact_and_counterclockwise() -> None:
    x = pictures(2, 1, 9, 9)
    for quarters in range(-4, 5):
        torch.testing.assert_close(rotate(x, 90 * quarters), x.rot90(quarters, (2, 3)), rtol=0, atol=1e-14)


def test_dtype_follows_the_input_and_five_channels_are_fine() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out = rotate(torch.rand(1, 5, 8, 8).to(dtype), 30)
        assert out.dtype == dtype
        assert 0 <= out.min() <= out.max() <= 1


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="finite"):
        rotate(torch.rand(1, 1, 8, 8), float("nan"))
    with pytest.raises(LeanBayesError, match=r"\[0, 1\]"):
        rotate(torch.randn(1, 1, 8, 8), 10)
