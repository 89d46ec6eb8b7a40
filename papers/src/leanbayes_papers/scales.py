"""Whether the scales of the random weights moved in training: no verdict rests on scales that did not.

The KL divergence moves log σ by at most β/n in a step. Adam rescales that; plain SGD does not, and a network whose
scales end where they began is a network with fixed noise. Every job of a study therefore records its scales.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian

__all__ = ["LEAST", "collecting", "log_scales", "note", "still"]

LEAST = 0.01
"""The median of |log σ − log σ₀| below which scales count as still: one percent."""

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST = 100_000  # scales that are looked at
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


@torch.no_grad()
def log_scales(model: nn.Module) -> Tensor | None:
    """Return log σ of the random weights, or of evenly spaced ones if there are many; None for a plain network."""
    if not isinstance(model, Bayesian):
        return None
    rhos = [parts.rho for _, parts in model.parts() if parts.rho.numel()]
    stride = -(-sum(rho.numel() for rho in rhos) // _MOST)
    scales = torch.cat([model.posterior.spread(rho).flatten()[::stride].double() for rho in rhos])
    return scales.clamp_min(torch.finfo(torch.float64).tiny).log()


def note(stage: str, start: Tensor | None, end: Tensor | None) -> None:
    """Record the quantiles of σ at the start and the end of a stage of training, and how far the scales moved."""
    records = _collected.get()
    if records is None or start is None or end is None:
        return
    start, end = start.double(), end.double()
    levels = torch.tensor(_LEVELS, dtype=torch.float64, device=start.device)
    quantiles = [torch.quantile(logs, levels).exp().tolist() for logs in (start, end)]
    moved = (end - start).abs().median().item()
    records.append({"stage": stage, "start": quantiles[0], "end": quantiles[1], "moved": moved})


def still(result: Mapping[str, Any]) -> bool:
    """Return whether the result of a job says that the scales of one of its stages did not move.

    A job without random weights has no such record, nor have the jobs that ran before there was one.

    >>> still({"scales": [{"stage": "vi", "moved": 0.0}]}), still({"scales": [{"moved": 0.4}]}), still({})
    (True, False, False)
    """
    return any(not record["moved"] >= LEAST for record in result.get("scales", ()))
