"""Synthetic scans with lesions about which raters disagree: volumes that need no files, or that are written as files.

    python -m leanbayes.lab.data.sets.volumes scans

writes them as NIfTI files, in folders ``images`` and ``rater1`` to ``rater3``, to try the way from files to maps.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.named import DataSet
from leanbayes.lab.data.rated import from_raters
from leanbayes.lab.data.scans import Geometry, write_nifti
from leanbayes.lab.data.source import Source

__all__ = ["main", "volumes", "write_volumes"]

_SPACING = (1.0, 1.0, 2.5)
_SCANS_OF_A_PATIENT = 2


def volumes(
    folder: Path | str | None = None,  # noqa: ARG001 - every data set takes it
    seed: int = 0,
    *,
    patients: int = 40,
    size: int = 32,
    raters: int = 3,
) -> Source:
    """Draw scans of one lesion each, with a mask of every rater.

    A lesion is an ellipsoid. With the depth s(x) of a voxel below its edge, positive inside, and the width w of the
    edge, the brightness is contrast·sigmoid(s/w). Rater r draws the edge where s = w·tᵣ plus a smooth wobble; tᵣ runs
    from generous to strict. So raters disagree most where the edge is vague, which one can see in the scan.

    Args:
        folder: is not used, because the set is computed.
        seed: decides all draws.
        patients: how many patients there are, with two scans each.
        size: the voxels to the right and to the front; there are half as many upwards, of 2.5 mm instead of 1 mm.
        raters: how many raters draw a mask of each scan.

    >>> source = volumes(patients=12, size=16)
    >>> source.test[0][0].shape, source.preparation.spacing
    (torch.Size([1, 16, 16, 8]), (1.0, 1.0, 2.5))
    """
    scans, masks, whose = _draw(seed, patients, size, raters)
    return from_raters(Path("volumes"), scans, masks, whose, ("background", "lesion"), seed=seed, spacing=_SPACING)


def write_volumes(folder: Path, *, seed: int = 0, patients: int = 24, size: int = 32, raters: int = 3) -> list[Path]:
    """Write scans as ``images/<patient>_<number>.nii.gz`` and the masks of each rater as ``rater1/...`` and so on.

    The third rater has not seen every fourth scan. The axes of the files run to the left, to the back and up, as those
    of many scanners do.

    Args:
        folder: where the folders go.
        seed: decides all draws.
        patients: how many patients there are.
        size: see `volumes`.
        raters: how many raters there are.

    Returns:
        The folders: that of the images, and that of each rater.
    """
    scans, masks, whose = _draw(seed, patients, size, raters)
    folders = [folder / "images", *(folder / f"rater{number + 1}" for number in range(raters))]
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
    affine = np.diag([-_SPACING[0], -_SPACING[1], _SPACING[2], 1.0])
    geometry = Geometry(affine, tuple(scans.shape[1:]))
    for index, patient in enumerate(whose):
        name = f"{patient}_{index % _SCANS_OF_A_PATIENT}.nii.gz"
        write_nifti(folders[0] / name, np.asarray(scans[index]), geometry)
        for number in range(raters):
            if number != 2 or index % 4:
                write_nifti(folders[1 + number] / name, np.asarray(masks[index, number]), geometry)
    return folders


def _draw(seed: int, patients: int, size: int, raters: int) -> tuple[Tensor, Tensor, list[str]]:
    if min(patients, raters) < 1 or size < 8:
        raise InputError(
            f"patients and raters must be at least 1 and size at least 8, got {patients}, {raters} and {size}"
        )
    random = torch.Generator().manual_seed(seed)
    count, sides = patients * _SCANS_OF_A_PATIENT, (size, size, size // 2)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=random)

    def smooth(waves: int, many: int) -> Tensor:
        coarse = torch.randn(many, 1, waves, waves, waves, generator=random)
        return F.interpolate(coarse, size=sides, mode="trilinear", align_corners=True)[:, 0]

    of_patient = torch.arange(count) // _SCANS_OF_A_PATIENT
    axes = torch.meshgrid(*(torch.linspace(-1, 1, side) for side in sides), indexing="ij")
    centre, radius = uniform(-0.35, 0.35, count, 3), uniform(0.25, 0.5, count, 3)
    far = sum(((axes[k] - centre[:, k, None, None, None]) / radius[:, k, None, None, None]).square() for k in range(3))
    vague = uniform(0.05, 0.3, count)[:, None, None, None]
    depth = (1 - torch.as_tensor(far).sqrt()) / vague
    contrast = uniform(60, 240, patients)[of_patient][:, None, None, None]
    noise = 20 * torch.randn(count, *sides, generator=random)
    scans = 40 + 15 * smooth(4, count) + contrast * depth.sigmoid() + noise
    habit = torch.linspace(-1, 1, raters)[None, :, None, None, None] if raters > 1 else torch.zeros(1, 1, 1, 1, 1)
    wobble = torch.stack([0.5 * smooth(4, count) for _ in range(raters)], 1)
    masks = depth[:, None] > habit + wobble
    return scans.round().to(torch.int16), masks.to(torch.uint8), [f"P{int(who):03}" for who in of_patient]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write scans to the folder that the command line names; return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write("usage: python -m leanbayes.lab.data.sets.volumes FOLDER\n")
        return 2
    write_volumes(Path(words[0]))
    return 0


SETS = (DataSet("volumes", volumes),)

if __name__ == "__main__":
    sys.exit(main())
