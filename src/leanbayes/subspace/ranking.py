"""The k highest of many scores, tensor by tensor: no second copy of the scores exists at any time.

The k-th highest score is found as radix sort would find it: digit by digit, each by one count over all scores. Then
every score above it is chosen, and as many of its equals as are missing, in the order of the tensors and of their
positions. The result is what a stable sort of all scores together would give, on every device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.subspace.slots import position_dtype

__all__ = ["Scores", "all_finite", "highest"]

_CHUNK = 2**20  # scores that are looked at together; a count of them takes some 32 bytes each
_DIGIT = 16  # bits of the keys that one count settles


@dataclass(frozen=True)
class Scores:
    """The scores of one tensor.

    Args:
        values: the scores, flat.
        last: positions that are ranked below all others, such as the padding row of an embedding.
    """

    values: Tensor
    last: slice | None = None


def highest(ranked: Sequence[Scores], count: int) -> list[Tensor | None]:
    """Return the sorted positions of the ``count`` highest scores in each tensor; None stands for all of a tensor.

    >>> highest([Scores(torch.tensor([1.0, 5.0, 2.0])), Scores(torch.tensor([3.0]))], 2)
    [tensor([1], dtype=torch.int32), None]
    """
    device = ranked[0].values.device
    dtype = torch.float32 if ranked[0].values.is_floating_point() else torch.int64
    for scores in ranked:
        dtype = torch.promote_types(dtype, scores.values.dtype)
    threshold, equals = _threshold(ranked, count, dtype, device)
    chosen: list[Tensor | None] = []
    for scores in ranked:
        parts: list[Tensor] = []
        for start, keys in _keys(scores, dtype, device):
            mask = keys > threshold
            if equals:
                ties = (keys == threshold).nonzero().squeeze(1)[:equals]
                mask[ties] = True
                equals -= len(ties)
            parts.append((mask.nonzero().squeeze(1) + start).to(position_dtype(scores.values.numel())))
        whole = sum(map(len, parts)) == scores.values.numel()
        chosen.append(None if whole else torch.cat(parts))
    return chosen


def all_finite(values: Tensor) -> bool:
    """Return whether no entry is NaN or infinite. The extremes say it, because a NaN becomes both of them."""
    return not values.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())


def _threshold(ranked: Sequence[Scores], count: int, dtype: torch.dtype, device: torch.device) -> tuple[int, int]:
    """Return the key of the ``count``-th highest score, and how many scores of that key are chosen."""
    bits = dtype.itemsize * 8
    known, wanted = 0, count  # the leading digits of the key, and its rank among the scores that begin with them
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        counts = torch.zeros(2**_DIGIT, dtype=torch.int64, device=device)
        for scores in ranked:
            for _, keys in _keys(scores, dtype, device):
                if shift < bits - _DIGIT:
                    keys = keys[(keys >> (shift + _DIGIT)) == known]
                digits = keys >> shift
                digits = digits + 2 ** (_DIGIT - 1) if shift == bits - _DIGIT else digits & (2**_DIGIT - 1)
                counts += torch.bincount(digits, minlength=2**_DIGIT)
        above = counts.flip(0).cumsum(0).flip(0) - counts  # how many have a higher digit
        digit = int(((above < wanted) & (above + counts >= wanted)).nonzero())
        wanted -= int(above[digit])
        known = digit - 2 ** (_DIGIT - 1) if shift == bits - _DIGIT else (known << _DIGIT) | digit
    return known, wanted


def _keys(scores: Scores, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield whole numbers in the order of the scores, chunk by chunk, with the position of the first of each chunk.

    The bits of a positive floating-point number, read as a whole number, are in the order of the numbers. Of negative
    ones the order is reversed. Adding zero makes a positive zero of a negative one, which is its equal.
    """
    size = scores.values.numel()
    for start in range(0, size, _CHUNK):
        part = scores.values[start : start + _CHUNK].to(device, dtype)
        if dtype.is_floating_point:
            whole = torch.int32 if dtype.itemsize == 4 else torch.int64
            keys = (part + 0.0).view(whole)
            keys = torch.where(keys < 0, keys ^ torch.iinfo(whole).max, keys)
        else:
            keys = part
        if scores.last is not None:
            first, end = max(scores.last.start - start, 0), max(scores.last.stop - start, 0)
            keys = keys.clone()
            keys[first:end] = torch.iinfo(keys.dtype).min
        yield start, keys
