"""Synthetic lesions, and raters who disagree about them: segmentation data that need no files."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.named import DataSet
from leanbayes.lab.data.rated import from_raters
from leanbayes.lab.data.source import Source

__all__ = ["lesions"]

_IMAGES_OF_A_PATIENT = 4


def lesions(
    folder: Path | str | None = None,  # noqa: ARG001 - every data set takes it
    seed: int = 0,
    *,
    patients: int = 150,
    size: int = 64,
    raters: int = 4,
) -> Source:
    """Draw grey images of one bulgy lesion each, with a mask of every rater.

    Let s(x) be the distance of a pixel x from the edge of the lesion, positive inside, and w the width of the edge. The
    brightness is contrast·sigmoid(s/w). Rater r draws the edge where s = w·(tᵣ + uᵣ(x)), with a habit tᵣ, from wide to
    narrow, and a smooth wobble uᵣ. Raters therefore disagree most where the edge is vague, which one can see in the
    image. A rater may overlook a faint lesion, but at least one rater sees it.

    Args:
        folder: is not used, because the set is computed.
        seed: decides all draws.
        patients: how many patients there are, with four images each.
        size: the height and the width of the images.
        raters: how many raters draw a mask of each image.

    >>> source = lesions(patients=20)
    >>> source.test.targets.by_rater().shape
    torch.Size([4, 20, 64, 64])
    """
    if min(patients, raters) < 1 or size < 16:
        raise InputError(
            f"patients and raters must be at least 1 and size at least 16, got {patients}, {raters} and {size}"
        )
    random = torch.Generator().manual_seed(seed)
    n = patients * _IMAGES_OF_A_PATIENT

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=random)

    def smooth(waves: int, *shape: int) -> Tensor:
        coarse = torch.randn(*shape, waves, waves, generator=random).flatten(0, -3)[:, None]
        fine = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=True)
        return fine.view(*shape, size, size)

    of_patient = torch.arange(n) // _IMAGES_OF_A_PATIENT
    contrast = uniform(0.15, 0.6, patients)[of_patient]
    vague = uniform(0.02, 0.12, n)
    axis = torch.linspace(-1, 1, size)
    y, x = (axis.view(-1, 1) - uniform(-0.4, 0.4, n, 1, 1), axis.view(1, -1) - uniform(-0.4, 0.4, n, 1, 1))
    angle = torch.tensor([2.0, 3.0, 4.0]) * torch.atan2(*torch.broadcast_tensors(y, x))[..., None]
    bulges = uniform(0, 0.12, n, 1, 1, 3) * torch.cos(angle + uniform(0, 2 * torch.pi, n, 1, 1, 3))
    inwards = uniform(0.15, 0.45, n, 1, 1) * (1 + bulges.sum(3)) - (x.square() + y.square()).sqrt()
    depth = inwards / vague.view(-1, 1, 1)

    tissue = 0.3 + 0.06 * smooth(5, patients)[of_patient] + 0.05 * smooth(9, n)
    pixels = tissue + contrast.view(-1, 1, 1) * depth.sigmoid() + 0.04 * torch.randn(n, size, size, generator=random)
    images = (255 * pixels).clamp(0, 255).to(torch.uint8)

    habit = torch.linspace(-1.2, 1.2, raters).view(1, -1, 1, 1) if raters > 1 else torch.zeros(1, 1, 1, 1)
    seen = torch.rand(n, raters, generator=random) > 0.5 * (-(contrast - 0.15) / 0.1).exp()[:, None]
    drawn = depth[:, None] > habit + 0.6 * smooth(6, n, raters)
    seen |= ~(drawn.flatten(2).any(2) & seen).any(1, keepdim=True)
    masks = drawn & seen[:, :, None, None]
    return from_raters(
        Path("lesions"),
        images,
        masks.to(torch.uint8),
        of_patient.tolist(),
        ("background", "lesion"),
        seed=seed,
    )


SETS = (DataSet("lesions", lesions),)
