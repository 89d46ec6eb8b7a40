"""Whether the scales of the random weights moved in training: no verdict rests on scales that did not.

The KL divergence moves log σ by at most β/n in a step. Adam rescales that; plain SGD does not, and a network whose
scales end where they began is a network with fixed noise. Every job of a study therefore records its scales.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from leanbayes.train.scales import LEAST, log_scales, movement

__all__ = ["collecting", "log_scales", "note", "still"]

_collected: ContextVar[list[dict[str, Any]] | None] = ContextVar("scales", default=None)


@contextmanager
def collecting() -> Iterator[list[dict[str, Any]]]:
    """Collect what `note` records in the block, in the list that the block gets."""
    records: list[dict[str, Any]] = []
    token = _collected.set(records)
    try:
        yield records
    finally:
        _collected.reset(token)


def note(stage: str, start: Tensor | None, end: Tensor | None) -> None:
    """Record the quantiles of σ at the start and the end of a stage of training, and how far the scales moved.

    Args:
        stage: the name of the stage.
        start: log σ before it, as `log_scales` returns it; None for a network without scales.
        end: log σ after it.
    """
    records = _collected.get()
    if records is None or start is None or end is None:
        return
    scales = movement(start.double(), end.double(), 0)
    records.append({"stage": stage, "start": list(scales.start), "end": list(scales.end), "moved": scales.moved})


def still(result: Mapping[str, Any]) -> bool:
    """Return whether the result of a job says that the scales of one of its stages did not move.

    The record is a list as `note` makes it, or a mapping from the names of the stages. A job without random weights has
    none, nor have the jobs that ran before there was one.

    >>> still({"scales": [{"stage": "vi", "moved": 0.0}]}), still({"scales": {"vi": {"moved": 0.4}}}), still({})
    (True, False, False)
    """
    scales = result.get("scales", ())
    records = scales.values() if isinstance(scales, Mapping) else scales
    return any(not record["moved"] >= LEAST for record in records)
