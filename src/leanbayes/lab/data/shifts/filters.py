"""Filters and resampling of batches of images (N, C, H, W).

The sums run tap by tap, so that the result for an image does not depend on the batch that it is in.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "Border",
    "correlate",
    "gaussian_blurred",
    "gaussian_kernel",
    "interpolate",
    "pixels_first",
    "resample",
    "smear",
    "zoomed",
]

Border = Literal["nearest", "reflect", "mirror"]
"""What lies beyond the edge, under the names that SciPy uses: aaa|abcd, cba|abcd or dcb|abcd."""


def correlate(x: Tensor, kernel: Sequence[Sequence[float]], border: Border) -> Tensor:
    """Return Σ_ij kernel_ij · x[h + i − rows//2, w + j − columns//2], for odd numbers of rows and columns."""
    height, width = x.shape[2:]
    rows, columns = len(kernel), len(kernel[0])
    padded = _padded(_padded(x, 2, rows // 2, border), 3, columns // 2, border)
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    for i, row in enumerate(kernel):
        for j, weight in enumerate(row):
            if weight:
                out.add_(padded[:, :, i : i + height, j : j + width], alpha=weight)
    return out


def gaussian_kernel(sigma: float, radius: int) -> list[float]:
    """Return exp(−i²/2σ²) for i = −radius … radius, divided by its sum, or a single 1 if σ = 0."""
    if not sigma:
        return [1.0]
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(-radius, radius + 1)]
    return [weight / sum(weights) for weight in weights]


def gaussian_blurred(x: Tensor, sigma: float, border: Border = "nearest", truncate: float = 4.0) -> Tensor:
    """Apply a Gaussian filter that is cut off at ``truncate`` standard deviations, as in SciPy and scikit-image."""
    kernel = gaussian_kernel(sigma, int(truncate * sigma + 0.5))
    return correlate(correlate(x, [kernel], border), [[weight] for weight in kernel], border)


def smear(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Blur along a line, as ImageMagick's motion blur does, with half a Gaussian of 2·``radius`` + 1 taps.

    The result is Σ_i k_i · x[h + ⌈i sin(angle) − ½⌉, w + ⌈i cos(angle) − ½⌉] with k_i ∝ exp(−i²/2σ²) and
    i = 0 … 2·radius. Beyond the edge, the nearest pixel is repeated. ``angle`` (N,) is in degrees.
    """
    height, width = x.shape[2:]
    taps = 2 * radius + 1
    kernel = gaussian_kernel(sigma, taps - 1)[taps - 1 :]
    turn = torch.deg2rad(angle).view(-1, 1, 1)
    h, w = torch.arange(height, device=x.device).view(-1, 1), torch.arange(width, device=x.device)
    flat, out = x.flatten(2), torch.zeros_like(x).flatten(2)
    for i, weight in enumerate(kernel):
        rows = (h + torch.ceil(i * turn.sin() - 0.5).long()).clamp(0, height - 1)
        columns = (w + torch.ceil(i * turn.cos() - 0.5).long()).clamp(0, width - 1)
        sources = (rows * width + columns).flatten(1)[:, None].expand_as(flat)
        out.add_(flat.gather(2, sources), alpha=weight / sum(kernel))
    return out.view(x.shape)


def interpolate(x: Tensor, rows: Tensor, columns: Tensor, border: Border | None) -> Tensor:
    """Return bilinear values of x at ``rows`` and ``columns``, each (N or 1, H', W').

    Without a border, pixels beyond the edge are zero.
    """
    height, width = x.shape[2:]
    flat = x.flatten(2)
    out = torch.zeros(*x.shape[:2], *rows.shape[1:], dtype=x.dtype, device=x.device)
    for i in (0, 1):
        for j in (0, 1):
            r, c = rows.floor().long() + i, columns.floor().long() + j
            weight = (1 - (rows - r).abs()) * (1 - (columns - c).abs())
            if border is None:
                weight = weight * ((r >= 0) & (r < height) & (c >= 0) & (c < width))
            sources = _within(r, height, border or "nearest") * width + _within(c, width, border or "nearest")
            sources = sources.flatten(1)[:, None].expand(*x.shape[:2], -1)
            out += weight[:, None].to(x.dtype) * flat.gather(2, sources).view_as(out)
    return out


def pixels_first(x: Tensor) -> Tensor:
    """Turn (N, C, H, W) into (H, W, N, C), or back.

    In this layout, picking pixels of many images at once copies whole runs of memory.
    """
    return x.permute(2, 3, 0, 1).contiguous()


def zoomed(x: Tensor, factor: float) -> Tensor:
    """Enlarge the middle of images (H, W, ...) by ``factor`` ≥ 1, and keep their size.

    As in CIFAR-10-C, the middle ⌈n/factor⌉ pixels of a side become round(⌈n/factor⌉·factor) pixels by linear
    interpolation, corners onto corners. The result is the middle n of these.
    """
    for axis in (0, 1):
        size = x.shape[axis]
        part = math.ceil(size / factor)
        larger = round(part * factor)
        start, skip = (size - part) // 2, (larger - size) // 2
        at = [start + (skip + i) * (part - 1) / max(larger - 1, 1) for i in range(size)]
        x = resample(x, axis, [[(int(a), 1 - a % 1), (min(int(a) + 1, size - 1), a % 1)] for a in at])
    return x


def resample(x: Tensor, axis: int, taps: Sequence[Sequence[tuple[int, float]]]) -> Tensor:
    """Return the sums of weight · x[index] over the pairs (index, weight) in ``taps[i]``, for each output i.

    The sums run along axis 0 or 1.
    """
    out: Tensor | None = None
    for t in range(max(map(len, taps))):
        pairs = [output[t] if t < len(output) else (0, 0.0) for output in taps]
        indices = torch.tensor([index for index, _ in pairs], device=x.device)
        weights = torch.tensor([weight for _, weight in pairs], dtype=x.dtype, device=x.device)
        part = x.index_select(axis, indices).mul_(weights.view(-1, *[1] * (x.dim() - 1 - axis)))
        out = part if out is None else out.add_(part)
    assert out is not None
    return out


def _padded(x: Tensor, axis: int, radius: int, border: Border) -> Tensor:
    if not radius:
        return x
    size = x.shape[axis]
    return x.index_select(axis, _within(torch.arange(-radius, size + radius, device=x.device), size, border))


def _within(index: Tensor, size: int, border: Border) -> Tensor:
    """Return the index of the pixel that stands for an index beyond the edge."""
    if border == "nearest":
        return index.clamp(0, size - 1)
    edge = 1 if border == "reflect" else 2  # whether the pixel at the edge is repeated
    index = index.remainder(2 * size - 2 * (edge - 1))
    return torch.minimum(index, 2 * size - edge - index)
