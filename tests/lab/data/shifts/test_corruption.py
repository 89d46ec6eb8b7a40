import re

import pytest
import torch

from leanbayes.errors import InputError, LeanBayesError, NonFinite, ShapeMismatch
from leanbayes.lab.data.shifts import corrupt
from leanbayes.lab.data.shifts.corruption import luminance


def test_luminance_of_grey_is_itself() -> None:
    grey = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(luminance(grey.expand(-1, 3, -1, -1)), grey)


@pytest.mark.parametrize(
    ("images", "message", "kind"),
    [
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "images.float() / 255", InputError),
        ([[1.0]], "got list", InputError),
        (torch.zeros(3, 8, 8), "(N, C, H, W)", ShapeMismatch),
        (torch.zeros(0, 3, 8, 8), "at least one", ShapeMismatch),
        (torch.zeros(1, 2, 8, 8), "1 or 3 channels", ShapeMismatch),
        (torch.zeros(1, 1, 2, 8), "3 or more pixels", ShapeMismatch),
        (torch.full((1, 1, 8, 8), float("nan")), "NaN", NonFinite),
        (torch.full((1, 1, 8, 8), float("inf")), "infinite", NonFinite),
        (torch.full((1, 1, 8, 8), 1.01), "1.01", InputError),
        (torch.full((1, 1, 8, 8), -0.01), "standardised", InputError),
    ],
)
def test_bad_images_are_refused(images: torch.Tensor, message: str, kind: type[LeanBayesError]) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        corrupt(images, "fog", 1)
