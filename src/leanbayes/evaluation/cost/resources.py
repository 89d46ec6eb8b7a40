"""How much time and memory a function takes."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import profile

from leanbayes.errors import InputError

__all__ = ["Timing", "measure", "peak_memory"]


@dataclass(frozen=True)
class Timing:
    """The best and the median of the seconds that several calls took."""

    best: float
    median: float
    repeats: int


def measure(function: Callable[[], object], repeats: int = 5) -> Timing:
    """Measure the wall-clock time of ``function``: the best and the median of ``repeats`` calls.

    Each call is timed until CUDA has finished its work. The first call may be slow; it affects neither the best nor, of
    three or more calls, the median.

    >>> measure(lambda: time.sleep(0.01), repeats=3).best >= 0.01
    True
    """
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats}")
    seconds = []
    for _ in range(repeats):
        _synchronize()
        start = time.perf_counter()
        function()
        _synchronize()
        seconds.append(time.perf_counter() - start)
    return Timing(min(seconds), statistics.median(seconds), repeats)


def peak_memory(function: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Measure by how many bytes ``function`` raises the memory of tensors at its peak, above what was in use before.

    On CUDA this is what torch's allocator counts. On the CPU it is the same quantity, computed from the allocations
    that torch's profiler sees. It is exact and the same every time, but leaves out Python's own objects, the release of
    memory that was taken before, other threads, and the scratch memory of libraries with their own allocators. The
    profiler records every operation, so measure a training step, not a whole training.

    >>> peak_memory(lambda: torch.zeros(1000, dtype=torch.float64).sum())
    8008
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    if device.type != "cpu":
        raise InputError(f"memory is measured on cpu and cuda, not on {device.type!r}")
    with _quiet_profiler(), profile(profile_memory=True) as recorded:
        function()
    results: Any = recorded.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep the profiler's library from writing to the terminal when it starts and stops."""
    level = "KINETO_LOG_LEVEL"
    if level in os.environ:
        yield
        return
    os.environ[level] = "99"
    try:
        yield
    finally:
        os.environ.pop(level, None)


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_allocated(device):
                torch.cuda.synchronize(device)
