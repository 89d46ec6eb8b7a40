"""How far the scales of a natural-gradient training have moved, for those who ask whether it has learnt them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["CurvatureSummary", "summarise"]

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST = 1_000_000  # torch.quantile takes at most 16 million numbers


@dataclass(frozen=True)
class CurvatureSummary:
    """How far the scales have moved.

    Attributes:
        start: the 5, 25, 50, 75 and 95 % quantiles of the scales at the start.
        end: the same quantiles of the scales now.
        moved: the median of |log σ − log σ₀|. A training that leaves it near 0 has not learnt its scales.
    """

    start: tuple[float, ...]
    end: tuple[float, ...]
    moved: float


@torch.no_grad()
def summarise(starts: Sequence[float], scales: Sequence[Tensor]) -> CurvatureSummary:
    """Compare the scale with which each tensor started to the scales that its weights have now.

    >>> summarise([0.1], [torch.full((3,), 0.2)]).moved
    0.693...
    """
    ends = [scale.flatten().double() for scale in scales]
    begins = [torch.full_like(end, start) for start, end in zip(starts, ends, strict=True)]
    start, end = torch.cat(begins), torch.cat(ends)
    stride = max(1, end.numel() // _MOST)
    start, end = start[::stride], end[::stride]
    levels = torch.tensor(_LEVELS, dtype=end.dtype, device=end.device)
    quantiles = [tuple(values.quantile(levels).tolist()) for values in (start, end)]
    return CurvatureSummary(quantiles[0], quantiles[1], float((end.log() - start.log()).abs().median()))
