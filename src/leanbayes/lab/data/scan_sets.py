"""Sets of scans and of their masks, all with one spacing, which are found by their index."""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.images import Size, TensorCache, Track, untracked
from leanbayes.lab.data.scans import Geometry, Scan, read_scan, resampled, sizes_at

__all__ = ["RatedScan", "ScanFiles", "ScanMasks", "as_input", "own_size"]

RatedScan = tuple[Path, list[Path | None]]
"""A scan and its mask by each rater; None stands for a rater who has not segmented it."""

_ALIKE = 0.01  # the share by which spacings may differ and still count as one
_PLACE = 0.05  # the share of a voxel by which a mask may lie beside its scan


class ScanFiles:
    """The voxels of scans, (channels, right, front, up), or (channels, ., .) if every scan is a single slice.

    The constructor reads every file, so that it finds damaged ones at once. The scans stay in memory if they are small
    enough together; whole numbers take two bytes each. Otherwise each scan is read again whenever it is asked for.

    Args:
        paths: the scans.
        spacing: the spacing to which scans are brought, in the order right, front, up; None if all must be alike.
        track: shows the progress.

    Attributes:
        geometries: where each scan lies.
        sizes: the size of each scan.
        channels: how many channels each scan has.
        spacing: the common spacing.
        flat: whether every scan is a single slice.
    """

    def __init__(self, paths: Sequence[Path], spacing: tuple[float, ...] | None, track: Track = untracked) -> None:
        self.paths, self.wanted = list(paths), spacing
        self.geometries: list[Geometry] = []
        self.cache = TensorCache()
        channels: list[int] = []
        for path in track(self.paths, "reading scans"):
            scan = read_scan(path)
            self.geometries.append(scan.geometry)
            channels.append(len(scan.values))
            self._check(path, scan.geometry, channels)
            self.cache.add(scan.values)
        self.channels = channels[0]
        self.flat = all(1 in geometry.shape for geometry in self.geometries)
        self.spacing = self.wanted or self.geometries[0].spacing
        self.sizes = [own_size(geometry, self.wanted, self.flat) for geometry in self.geometries]

    @property
    def image_spacing(self) -> tuple[float, ...]:
        """The spacing along the axes that the images have: without the axis of a single slice."""
        return without_slice(self.spacing, self.geometries[0]) if self.flat else self.spacing

    def part(self, rows: Sequence[int]) -> "ScanFiles":
        """Return some of the scans, which are not read again."""
        part = copy.copy(self)
        part.paths = [self.paths[row] for row in rows]
        part.geometries = [self.geometries[row] for row in rows]
        part.sizes = [self.sizes[row] for row in rows]
        part.cache = copy.copy(self.cache)
        tensors = self.cache.tensors
        part.cache.tensors = None if tensors is None else [tensors[row] for row in rows]
        return part

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        values = self.cache[index]
        scan = read_scan(self.paths[index]) if values is None else Scan(values, self.geometries[index])
        return as_input(scan, self.sizes[index], self.flat)

    def _check(self, path: Path, geometry: Geometry, channels: Sequence[int]) -> None:
        first = self.geometries[0]
        if channels[-1] != channels[0]:
            raise InputError(
                f"scan {path} has {channels[-1]} channels, but {self.paths[0]} has {channels[0]}; make them alike"
            )
        if self.wanted is None and not np.allclose(geometry.spacing, first.spacing, rtol=_ALIKE, atol=0):
            raise InputError(
                f"scan {path} has the spacing {_by(geometry.spacing)} mm, but {self.paths[0]} has {_by(first.spacing)} "
                f"mm; give a spacing to bring all to, such as spacing={_by(first.spacing).replace(' x ', ' ')}"
            )


class ScanMasks:
    """The masks of scans by every rater, which are found by the index of the scan: (raters, ...) in bytes.

    The constructor reads every file and checks that each mask lies where its scan lies. The mask of a rater who has not
    segmented a scan is zero.

    Attributes:
        present: which rater has segmented which scan, (N, raters).
        first_with: for each value in the masks, the first file that has it.
        binary: whether the masks hold 0 for no and 255 for yes; 255 then becomes class 1.
        empty: the scans in which no rater has marked anything.
    """

    def __init__(self, rated: Sequence[RatedScan], scans: ScanFiles, track: Track = untracked) -> None:
        self.rated, self.scans, self.binary = list(rated), scans, False
        self.present = torch.tensor([[mask is not None for mask in masks] for _, masks in rated])
        self.first_with: dict[int, Path] = {}
        self.empty: list[Path] = []
        self.cache = TensorCache()
        for index, (scan, masks) in enumerate(track(self.rated, "reading masks")):
            labels = self._read(index)
            for mask, values in zip(masks, labels, strict=True):
                for value in [] if mask is None else values.unique().tolist():
                    self.first_with.setdefault(value, mask)
            if not labels.any():
                self.empty.append(scan)
            self.cache.add(labels)

    def __len__(self) -> int:
        return len(self.rated)

    def __getitem__(self, index: int) -> Tensor:
        cached = self.cache[index]
        labels = self._read(index) if cached is None else cached
        return labels.masked_fill(labels == 255, 1) if self.binary else labels

    def _read(self, index: int) -> Tensor:
        geometry, size = self.scans.geometries[index], self.scans.sizes[index]
        masks = [
            torch.zeros(size, dtype=torch.int16) if mask is None else self._labels(mask, index, geometry)
            for mask in self.rated[index][1]
        ]
        labels = torch.stack(masks)
        return labels.to(torch.uint8) if 0 <= labels.min() <= labels.max() < 256 else labels

    def _labels(self, path: Path, index: int, geometry: Geometry) -> Tensor:
        mask, scan = read_scan(path), self.scans.paths[index]
        if mask.values.shape[0] != 1 or mask.values.dtype != torch.int16:
            raise InputError(f"mask {path} holds no class indices, but channels or fractions; save whole numbers")
        ours, theirs = (tuple(np.array(of.to_ras(np.empty(of.shape))).shape) for of in (mask.geometry, geometry))
        if ours != theirs:
            raise InputError(
                f"mask {path} has {_by(ours)} voxels, but its scan {scan} has {_by(theirs)}; make them alike"
            )
        apart = np.abs(mask.geometry.ras_affine - geometry.ras_affine).max()
        if apart > _PLACE * min(geometry.spacing) * max(1, max(ours) / 100):
            raise InputError(
                f"mask {path} lies elsewhere than its scan {scan}: their affines differ by {apart:.3g} mm; save the "
                "mask with the affine of the scan"
            )
        return as_input(mask, self.scans.sizes[index], self.scans.flat, nearest=True)[0]


def own_size(geometry: Geometry, spacing: tuple[float, ...] | None, flat: bool) -> Size:
    """Return the size that a scan has as an input: at the wanted spacing, and without the axis of a single slice."""
    shape = tuple(int(side) for side in np.abs(geometry.to_ras(np.empty(geometry.shape, bool))).shape)
    size = shape if spacing is None else tuple(sizes_at(shape, geometry.spacing, spacing))
    if not flat:
        return size
    axis = shape.index(1)
    return (*size[:axis], *size[axis + 1 :])


def without_slice(numbers: Sequence[float], geometry: Geometry) -> tuple[float, ...]:
    """Return one number for each axis without that of the axis of a single slice."""
    axis = geometry.to_ras(np.empty(geometry.shape, bool)).shape.index(1)
    return (*numbers[:axis], *numbers[axis + 1 :])


def as_input(scan: Scan, size: Size, flat: bool, nearest: bool = False) -> Tensor:
    """Return the voxels of a scan as an input of this size."""
    values = scan.values
    if flat:
        values = values.squeeze(1 + tuple(values.shape[1:]).index(1))
    return resampled(values, size, nearest)


def _by(numbers: Sequence[float]) -> str:
    return " x ".join(
        f"{number:g}" if isinstance(number, int) else f"{round(float(number), 4):g}" for number in numbers
    )
